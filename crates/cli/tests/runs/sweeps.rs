//! Sweeps and the other methods, as a user starts them.

use crate::place::{DRAWN, Place, text};
use fedanchor_record::files;
use std::process::Command;

const METHODS: [&str; 7] =
    ["fedanchor", "semifl", "fedavg-fixmatch", "fedcon", "fedmatch", "supervised", "server-only"];

/// The keys of [`DRAWN`] that every method has.
fn shared() -> Vec<&'static str> {
    DRAWN.iter().copied().filter(|key| !key.starts_with("method.")).collect()
}

fn sweep(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(place.at("")).env("OMP_NUM_THREADS", "1").arg("sweep").args(arguments);
    command
}

/// Every method runs to its end and records what it must.
#[test]
fn every_method_runs() {
    let place = Place::with_pictures(16);
    for method in METHODS {
        let name = format!("method.name={method}");
        let settings = [&shared()[..], &[&name, "client.keep_momentum=true"]];
        let records = place.run(method, &settings);
        assert_eq!(place.summary(method).method, method);
        assert!(records.iter().all(|record| record.dropped.is_empty()), "{method}: {records:?}");
        // What labels are compared: none of true labels and of nobody's, one head or both.
        let last = &records[2];
        assert_eq!(last.anchor_head.all.is_some(), method == "fedanchor", "{method}");
        let asked = !["supervised", "server-only"].contains(&method);
        assert_eq!(last.classifier_head.all.is_some(), asked, "{method}");
        assert_eq!(last.seen > 0, method != "server-only", "{method}");
        assert_eq!(last.bytes_down > 0, method != "server-only", "{method}");
    }
}

/// A sweep runs what is missing, runs what is broken again, and says what failed.
#[test]
fn a_sweep_goes_on_where_it_was_broken_off() {
    let place = Place::with_pictures(16);
    let base: String = shared()
        .iter()
        .map(|key| {
            let (key, value) = key.split_once('=').unwrap();
            let word = value.parse::<f64>().is_err();
            format!("{key} = {}\n", if word { format!("\"{value}\"") } else { value.to_owned() })
        })
        .collect();
    let axes = "[axes.method]\nfloor = { method = { name = \"server-only\", contrastive.batch = 18 } }\n\
                bound = { method.name = \"supervised\" }\n\
                ill = { method.name = \"supervised\", optimiser.clip = 0, pretrain = { lr = 100.0, epochs = 20 } }\n";
    let file = format!("seeds = [0, 1]\n[base]\n{base}{axes}");
    std::fs::write(place.at("some.toml"), &file).unwrap();

    let output = place.succeed(&mut sweep(&place, &["some.toml", "--list"]));
    assert_eq!(text(&output.stdout), "floor\nbound\nill\n");

    let output = sweep(&place, &["some.toml"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("failed: ill seed 0: "), "{said}");
    assert!(said.contains("2 of 6 runs did not come to their end"), "{said}");
    let table = text(&output.stdout);
    assert!(table.contains("server-only") && table.contains("supervised"), "{table}");
    assert!(table.contains("ill/seed0"), "{table}"); // as unfinished

    // Again, one of them broken by hand: only that one is run.
    let record = place.read("runs/some/bound/seed1", files::ROUNDS);
    std::fs::remove_file(place.at("runs/some/bound/seed1").join(files::SUMMARY)).unwrap();
    let output = place.succeed(&mut sweep(&place, &["some.toml", "floor", "b*"]));
    let said = text(&output.stderr);
    assert!(said.contains("3 of 4 runs are there already"), "{said}");
    assert!(said.contains("1 of 1: bound seed 1"), "{said}");
    assert_eq!(place.read("runs/some/bound/seed1", files::ROUNDS), record);

    // A finished run of another experiment is not taken for this one's.
    let output = sweep(&place, &["some.toml", "floor", "--set", "rounds=3"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("another experiment (it differs in "), "{said}");

    let output =
        sweep(&place, &["some.toml", "floor", "--set", "server.batch=12"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("it differs in server.batch (there 10, now 12)"), "{said}");

    // An unfinished run of another experiment is left alone, and that is said.
    std::fs::remove_file(place.at("runs/some/floor/seed0").join(files::SUMMARY)).unwrap();
    let output = sweep(&place, &["some.toml", "floor", "--seeds", "0", "--set", "server.batch=12"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("failed: floor seed 0: ") && said.contains("server.batch"), "{said}");
    assert_eq!(place.records("runs/some/floor/seed0").len(), 3);
    place.succeed(&mut sweep(&place, &["some.toml", "floor"]));

    // And the table by itself, in every format.
    for (format, part) in [
        ("text", "server-only"),
        ("markdown", "| server-only |"),
        ("csv", ",server-only,"),
        ("latex", "\\begin{tabular}"),
    ] {
        let mut table = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        table.current_dir(place.at("")).args(["table", "runs/some/floor", "--format", format]);
        let output = place.succeed(&mut table);
        assert!(text(&output.stdout).contains(part), "{}", text(&output.stdout));
    }
}
