//! Runs that are no longer what was written: they are named, and the others are still used.

use crate::workspace::{DRAWN, Workspace, text};
use std::process::{Command, Output};

fn fedanchor(workspace: &Workspace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").env("FEDANCHOR_CACHE", "");
    command.args(arguments).output().unwrap()
}

/// Flips a bit in the middle of a file.
fn flip(workspace: &Workspace, name: &str) {
    let mut bytes = std::fs::read(workspace.at(name)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(workspace.at(name), bytes).unwrap();
}

#[test]
fn a_changed_file_is_named_by_every_command_that_reads_it() {
    let workspace = Workspace::with_pictures(16);
    for (name, seed) in [("runs/a", "seed=0"), ("runs/b", "seed=1")] {
        workspace.run(name, &[DRAWN, &["rounds=1", "checks.anchor_margin=0", seed]]);
    }
    let output = fedanchor(&workspace, &["verify", "runs"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(said.matches(": intact: 9 files, 1 round, ").count(), 2, "{said}");

    flip(&workspace, "runs/a/summary.json");
    let output = fedanchor(&workspace, &["verify", "runs"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("runs/a: DAMAGED") && said.contains("  summary.json: does not match"),
        "{said}"
    );
    assert!(said.contains("runs/b: intact"), "{said}");
    assert!(text(&output.stderr).contains("1 of 2 runs are damaged"));
    let json = fedanchor(&workspace, &["verify", "runs", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json[0]["intact"], &json[1]["intact"]), (&false.into(), &true.into()));

    let table = fedanchor(&workspace, &["table", "runs"]);
    let said = text(&table.stdout);
    assert!(
        table.status.success() && said.contains("not in the table: runs/a: summary.json"),
        "{said}"
    );
    let resumed = fedanchor(&workspace, &["run", "--resume", "runs/a"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert!(fedanchor(&workspace, &["verify", "runs"]).status.success());

    flip(&workspace, "runs/a/model.safetensors");
    for arguments in [&["eval", "runs/a"][..], &["export", "runs/a"], &["predict", "runs/a", "x"]] {
        let refused = fedanchor(&workspace, arguments);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("runs/a/model.safetensors: does not match its checksum"), "{said}");
    }
    flip(&workspace, "runs/a/config.toml");
    let resumed = fedanchor(&workspace, &["run", "--resume", "runs/a"]);
    assert!(!resumed.status.success() && text(&resumed.stderr).contains("config.toml"));

    // Larger than any config: refused before it is read, and the other run is in the table.
    let config = std::fs::File::options().write(true).open(workspace.at("runs/a/config.toml"));
    config.unwrap().set_len(15 << 30).unwrap();
    let table = fedanchor(&workspace, &["table", "runs"]);
    let said = text(&table.stdout);
    assert!(table.status.success(), "{said}");
    assert!(said.contains("runs/a/config.toml: expected at most"), "{said}");
}

/// Of a run that has not ended, only what is there from its start has a checksum of the whole file.
#[test]
fn damage_to_a_run_that_has_not_ended_is_named() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("runs/a", &[DRAWN, &["rounds=2", "checks.anchor_margin=0"]]);
    std::fs::remove_file(workspace.at("runs/a/summary.json")).unwrap();
    let all = workspace.read("runs/a", "checksums.txt");
    let files = ["config.toml", "partition.csv", "partition.json"];
    let is_first = |line: &&str| files.iter().any(|file| line.ends_with(&format!("  {file}")));
    let first: Vec<&str> = all.lines().filter(is_first).collect();
    assert_eq!(first.len(), 3, "{all}");
    let first = first.join("\n") + "\n";
    std::fs::write(workspace.at("runs/a/checksums.txt"), &first).unwrap();
    let verify = || fedanchor(&workspace, &["verify", "runs"]);
    let report = || fedanchor(&workspace, &["report", "runs", "--out", "report"]);
    let output = verify();
    assert!(output.status.success(), "{}", text(&output.stdout));
    assert!(!text(&report().stderr).contains(".json"), "{}", text(&report().stderr));

    let timings = workspace.read("runs/a", "timings.jsonl");
    let partition = workspace.read("runs/a", "partition.json");
    let changed = timings.replacen("\"round\":1", "\"round\":2", 1);
    for (name, content, problem) in [
        ("checksums.txt", String::new(), "is empty"),
        (
            "checksums.txt",
            first.repeat(2),
            "line 4 is damaged: it lists config.toml, as an earlier line does",
        ),
        ("timings.jsonl", String::new(), "has 0 of 3 lines"),
        ("timings.jsonl", changed, "line 2 does not match its checksum"),
        ("partition.json", partition.replacen(',', ";", 1), "does not match its checksum"),
    ] {
        let path = workspace.at("runs/a").join(name);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, content).unwrap();
        let problem = format!("{name}: {problem}");
        let (output, said) = (verify(), report());
        assert_eq!(output.status.code(), Some(1), "{problem}");
        assert!(text(&output.stdout).contains(&problem), "{}", text(&output.stdout));
        assert!(text(&said.stderr).contains(&problem), "{}", text(&said.stderr));
        std::fs::write(&path, before).unwrap();
    }
    // A checksum that is lost, and one whose file is.
    std::fs::write(
        workspace.at("runs/a/checksums.txt"),
        first.lines().next().unwrap().to_owned() + "\n",
    )
    .unwrap();
    assert!(text(&verify().stdout).contains("partition.json: has no checksum: resume the run"));
    std::fs::write(workspace.at("runs/a/checksums.txt"), &first).unwrap();
    std::fs::remove_file(workspace.at("runs/a/partition.json")).unwrap();
    assert!(text(&verify().stdout).contains("partition.json: is in checksums.txt, but missing"));
    assert!(text(&report().stderr).contains("partition.json"));

    // A link that leads nowhere but to itself hides no run.
    std::os::unix::fs::symlink("loop", workspace.at("runs/loop")).unwrap();
    let output = fedanchor(&workspace, &["watch", "--once", "runs"]);
    let (said, notes) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && said.contains("runs/a: fedanchor on drawn"),
        "{said}{notes}"
    );
    assert!(notes.contains("note: runs/loop: "), "{notes}");
    std::fs::remove_dir_all(workspace.at("runs/a")).unwrap();
    let output = fedanchor(&workspace, &["watch", "--once", "runs"]);
    assert!(!output.status.success() && text(&output.stderr).contains("runs/loop"));
}

/// Without checksums, a summary is still compared with the records; and of two copies of a run the whole one is shown.
#[test]
fn a_summary_that_the_records_contradict_is_named() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("runs/b", &[DRAWN, &["rounds=2", "checks.anchor_margin=0"]]);
    let files = ["config.toml", "rounds.jsonl", "timings.jsonl", "summary.json"];
    std::fs::create_dir(workspace.at("runs/a")).unwrap();
    for file in files {
        let (from, to) = (workspace.at("runs/b").join(file), workspace.at("runs/a").join(file));
        std::fs::copy(from, to).unwrap();
    }
    assert!(fedanchor(&workspace, &["verify", "runs"]).status.success());
    let path = workspace.at("runs/a/summary.json");
    let mut summary: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    summary["final_accuracy"] = 99.5.into();
    std::fs::write(&path, summary.to_string()).unwrap();
    const PROBLEM: &str = "summary.json: has 99.5 % after round 2, but the records end with";
    let output = fedanchor(&workspace, &["verify", "runs"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(PROBLEM), "{}", text(&output.stdout));
    let table = fedanchor(&workspace, &["table", "runs"]);
    let said = text(&table.stdout);
    assert!(said.contains(&format!("not in the table: runs/a: {PROBLEM}")), "{said}");

    // A damaged line instead: the report is of the other copy.
    std::fs::copy(workspace.at("runs/b/summary.json"), &path).unwrap();
    let records = std::fs::read_to_string(workspace.at("runs/a/rounds.jsonl")).unwrap();
    let damaged = records.replacen("\"round\":2", "\"round\":3", 1);
    assert_ne!(damaged, records);
    std::fs::write(workspace.at("runs/a/rounds.jsonl"), damaged).unwrap();
    let output = fedanchor(&workspace, &["report", "runs", "--out", "report"]);
    let said = text(&output.stderr);
    let left_out = "runs/a is left out: runs/b is a run of the same experiment and seed";
    assert!(output.status.success() && said.contains(left_out), "{said}");
}

/// Rounds on record are not replaced by others: a schedule that depends on the number of rounds would change those that
/// have to be repeated.
#[test]
fn rounds_on_record_are_not_repeated_differently() {
    let workspace = Workspace::with_pictures(16);
    let settings = ["rounds=3", "checks.anchor_margin=0", "optimiser.schedule=cosine"];
    workspace.run("run", &[DRAWN, &settings]);
    let records = || std::fs::read(workspace.at("run/rounds.jsonl")).unwrap();
    let before = records();
    flip(&workspace, "run/checkpoints/round-000003.checkpoint");
    let longer = ["run", "--resume", "run", "--set", "rounds=4"];
    let output = fedanchor(&workspace, &longer);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("3 rounds are on record, but the last intact checkpoint is of round 2"));
    assert_eq!(records(), before);
    assert!(fedanchor(&workspace, &["run", "--resume", "run"]).status.success());
    assert_eq!(records(), before);
    let output = fedanchor(&workspace, &longer);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(records().starts_with(&before));
}

/// A sweep of two seeds with the settings of the drawn pictures and these.
fn two_seeds(workspace: &Workspace, more: &str) {
    let settings: Vec<String> = DRAWN
        .iter()
        .map(|setting| {
            let (key, value) = setting.split_once('=').unwrap();
            match value.parse::<f64>() {
                Ok(_) => format!("{key} = {value}"),
                Err(_) => format!("{key} = \"{value}\""),
            }
        })
        .collect();
    let settings = settings.join("\n");
    let sweep = format!(
        "seeds = [0, 1]\n\n[base]\npreset = \"paper\"\n{settings}\n{more}\n\n[axes.cell]\nonly = {{}}\n"
    );
    std::fs::write(workspace.at("two.toml"), sweep).unwrap();
}

#[test]
fn one_bad_run_does_not_stop_a_sweep() {
    let workspace = Workspace::with_pictures(16);
    two_seeds(&workspace, "");
    let first = fedanchor(&workspace, &["sweep", "two.toml", "--seeds", "0"]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    flip(&workspace, "runs/two/only/seed0/rounds.jsonl");
    let second = fedanchor(&workspace, &["sweep", "two.toml"]);
    let (said, table) = (text(&second.stderr), text(&second.stdout));
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("failed: only seed 0: ") && said.contains("rounds.jsonl"), "{said}");
    assert!(table.contains("not in the table: runs/two/only/seed0: rounds.jsonl"), "{table}");
    assert!(workspace.at("runs/two/only/seed1/summary.json").exists(), "{said}");
    // A file that no table reads: the run is not what was written all the same.
    flip(&workspace, "runs/two/only/seed1/model.safetensors");
    let third = fedanchor(&workspace, &["sweep", "two.toml", "--seeds", "1"]);
    let said = text(&third.stderr);
    assert_eq!(third.status.code(), Some(1), "{said}");
    assert!(said.contains("failed: only seed 1: ") && said.contains("model.safetensors"), "{said}");
}

/// What failed once fails again: its rounds are done, and changed nothing.
#[test]
fn a_run_without_effect_is_not_finished_work() {
    let workspace = Workspace::with_pictures(16);
    two_seeds(&workspace, "faults = { kind = \"drop-out\", share = 1.0 }");
    for _ in 0..2 {
        let output = fedanchor(&workspace, &["sweep", "two.toml", "--seeds", "0"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("rounds changed the model"), "{said}");
    }
}
