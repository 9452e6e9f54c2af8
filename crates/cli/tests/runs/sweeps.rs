//! Sweeps and the other methods, as a user starts them.

use crate::workspace::{DRAWN, Workspace, text};
use fedanchor_record::files;
use std::process::Command;

const METHODS: [&str; 8] = [
    "fedanchor",
    "semifl",
    "fedavg-fixmatch",
    "fedcon",
    "fedmatch",
    "fl2",
    "supervised",
    "server-only",
];

/// The keys of [`DRAWN`] that every method has.
fn shared() -> Vec<&'static str> {
    DRAWN.iter().copied().filter(|key| !key.starts_with("method.")).collect()
}

fn sweep(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").arg("sweep").args(arguments);
    command
}

/// Every method runs to its end and records what it must.
#[test]
fn every_method_runs() {
    let workspace = Workspace::with_pictures(16);
    for method in METHODS {
        let name = format!("method.name={method}");
        let settings = [&shared()[..], &[&name, "client.keep_momentum=true"]];
        let records = workspace.run(method, &settings);
        assert_eq!(workspace.summary(method).method, method);
        assert!(records.iter().all(|record| record.rejected.is_empty()), "{method}: {records:?}");
        // What labels are compared: none of true labels and of nobody's, one head or both.
        let last = &records[2];
        assert_eq!(last.anchor_head.all.is_some(), method == "fedanchor", "{method}");
        let asked = !["supervised", "server-only"].contains(&method);
        assert_eq!(last.classifier_head.all.is_some(), asked, "{method}");
        assert_eq!(last.seen > 0, method != "server-only", "{method}");
        assert_eq!(last.bytes_down > 0, method != "server-only", "{method}");
    }
}

/// A loss is known by its content: finished runs of it are skipped, wherever its file is, and a run is resumed from
/// another folder.
#[test]
fn a_sweep_with_a_loss_is_repeated() {
    let workspace = Workspace::with_pictures(16);
    let loss = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/fedprox.loss");
    std::fs::copy(loss, workspace.at("a.loss")).unwrap();
    std::fs::copy(loss, workspace.at("b.loss")).unwrap();
    let mut keys = shared();
    keys.extend(["method.name=supervised", "client.loss.arguments.mu=0.1"]);
    let set: Vec<&str> = keys.iter().flat_map(|key| ["--set", key]).collect();
    std::fs::write(workspace.at("some.toml"), "[base]\npreset = \"paper\"\n[axes.a]\nx = {}\n")
        .unwrap();
    for (file, expected) in [("a.loss", "1 of 1: x seed 0"), ("b.loss", "skipping 1 of 1 runs")] {
        let file = format!("client.loss.file={file}");
        let output = workspace.succeed(&mut sweep(
            &workspace,
            &[&["some.toml", "--seeds", "0", "--set", &file], &set[..]].concat(),
        ));
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{said}");
    }
    let run = workspace.at("runs/some/x/seed0");
    let mut resume = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    resume.current_dir(workspace.at("runs")).args(["run", "--set", "rounds=3", "--resume"]);
    workspace.succeed(resume.arg(run));
}

/// A sweep runs what is missing, runs what is broken again, and says what failed.
#[test]
fn an_interrupted_sweep_is_resumed() {
    let workspace = Workspace::with_pictures(16);
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
    let file = format!("seeds = [0, 1]\n[base]\npreset = \"paper\"\n{base}{axes}");
    std::fs::write(workspace.at("some.toml"), &file).unwrap();

    let output = workspace.succeed(&mut sweep(&workspace, &["some.toml", "--list"]));
    assert_eq!(text(&output.stdout), "floor\nbound\nill\n");

    let output = sweep(&workspace, &["some.toml"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("failed: ill seed 0: "), "{said}");
    assert!(said.contains("2 of 6 runs did not finish"), "{said}");
    let table = text(&output.stdout);
    assert!(table.contains("server-only") && table.contains("supervised"), "{table}");
    assert!(table.contains("ill/seed0"), "{table}"); // as unfinished

    // Again, one of them broken by hand: only that one is run.
    let record = workspace.read("runs/some/bound/seed1", files::ROUNDS);
    std::fs::remove_file(workspace.at("runs/some/bound/seed1").join(files::SUMMARY)).unwrap();
    let output = workspace.succeed(&mut sweep(&workspace, &["some.toml", "floor", "b*"]));
    let said = text(&output.stderr);
    assert!(said.contains("skipping 3 of 4 runs"), "{said}");
    assert!(said.contains("1 of 1: bound seed 1"), "{said}");
    assert_eq!(workspace.read("runs/some/bound/seed1", files::ROUNDS), record);

    // A finished run of another experiment is not taken for this one's.
    let output = sweep(&workspace, &["some.toml", "floor", "--set", "rounds=3"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("another experiment (it differs in "), "{said}");

    let output =
        sweep(&workspace, &["some.toml", "floor", "--set", "server.batch=12"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("it differs in server.batch (there 10, now 12)"), "{said}");

    // An unfinished run of another experiment is left alone, with an error.
    std::fs::remove_file(workspace.at("runs/some/floor/seed0").join(files::SUMMARY)).unwrap();
    let output =
        sweep(&workspace, &["some.toml", "floor", "--seeds", "0", "--set", "server.batch=12"])
            .output()
            .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("failed: floor seed 0: ") && said.contains("server.batch"), "{said}");
    assert_eq!(workspace.records("runs/some/floor/seed0").len(), 3);
    workspace.succeed(&mut sweep(&workspace, &["some.toml", "floor"]));

    // And the table by itself, in every format.
    for (format, part) in [
        ("text", "server-only"),
        ("markdown", "| server-only |"),
        ("csv", ",server-only,"),
        ("latex", "\\begin{tabular}"),
    ] {
        let mut table = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        table.current_dir(workspace.at("")).args(["table", "runs/some/floor", "--format", format]);
        let output = workspace.succeed(&mut table);
        assert!(text(&output.stdout).contains(part), "{}", text(&output.stdout));
    }

    // A sweep with nothing left to do prints the same table, also for a program.
    let arguments = ["some.toml", "floor", "bound", "--json"];
    let output = workspace.succeed(&mut sweep(&workspace, &arguments));
    let table: serde_json::Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(table["rows"].as_array().unwrap().len(), 2);
    let mean = table["rows"][1]["final"]["mean"].as_f64().unwrap();
    let each = [0, 1].map(|seed| workspace.summary(&format!("runs/some/floor/seed{seed}")));
    assert_eq!(mean, (each[0].final_accuracy + each[1].final_accuracy) / 2.0);
    let output = workspace.succeed(&mut sweep(&workspace, &["some.toml", "--list", "--json"]));
    let names: Vec<String> = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(names, ["floor", "bound", "ill"]);
}

/// Two runs at once, of networks that compute with different numbers of threads, give the same bytes as one
/// after the other; and a sweep starts once.
#[test]
fn runs_at_once_do_not_disturb_each_other() {
    let workspace = Workspace::with_pictures(16);
    let keys: Vec<String> = DRAWN
        .iter()
        .filter(|key| !key.starts_with("model.name"))
        .map(|key| {
            let (key, value) = key.split_once('=').unwrap();
            let quote = if value.parse::<f64>().is_ok() { "" } else { "\"" };
            format!("base.{key} = {quote}{value}{quote}\n")
        })
        .collect();
    let sweep_file = format!(
        "seeds = [0, 1]\nbase.preset = \"paper\"\ngrid.model.name = [\"cnn\", \"small\"]\n{}",
        keys.concat()
    );
    std::fs::write(workspace.at("both.toml"), sweep_file).unwrap();
    let runs = |jobs: &str| {
        let mut command = sweep(&workspace, &["both.toml", "--jobs", jobs, "--out", jobs]);
        command.env_remove("OMP_NUM_THREADS").env_remove("OMP_WAIT_POLICY");
        let output = workspace.succeed(&mut command);
        let said = text(&output.stderr).to_owned();
        assert_eq!(said.matches("1 of 4: ").count(), 1, "{said}");
        let cells = ["model.name=cnn", "model.name=small"];
        let folders =
            cells.iter().flat_map(|cell| [0, 1].map(|seed| format!("{jobs}/{cell}/seed{seed}")));
        folders.map(|folder| workspace.read(&folder, files::ROUNDS)).collect::<Vec<_>>()
    };
    assert!(runs("1") == runs("4"));
}
