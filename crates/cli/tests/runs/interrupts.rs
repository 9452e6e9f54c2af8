//! How a run ends early, and who may write where.

#![cfg(unix)]

use crate::workspace::{DRAWN, Workspace, text};
use fedanchor_record::files;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run in progress, which does not outlive its test.
struct Running(Child);

impl Running {
    /// Starts a run whose talk goes to the file `OUT.txt`.
    fn start(workspace: &Workspace, out: &str, settings: &[&str]) -> Self {
        let talk = std::fs::File::create(workspace.at(format!("{out}.txt"))).unwrap();
        let mut command = workspace.command(out, &[DRAWN, settings]);
        Self(command.stdout(Stdio::null()).stderr(talk).spawn().unwrap())
    }

    fn interrupt(&self) {
        self.signal("-INT");
    }

    /// Its exit status and what it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let mut printed = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        (self.0.wait().unwrap().code(), printed)
    }

    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended already unless the test failed
    }
}

/// Waits until a file holds a text.
fn wait_for(path: &Path, text: &str) {
    let start = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|content| content.contains(text)) {
        assert!(start.elapsed() < Duration::from_secs(120), "{}: no `{text}`", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_file_that_was_changed_meanwhile_is_named() {
    let workspace = Workspace::with_pictures(16);
    for (out, change) in [("other", Some("rounds = 1\n")), ("gone", None)] {
        let mut run = Running::start(&workspace, out, &["rounds=100000"]);
        wait_for(&workspace.at(format!("{out}.txt")), "round 1/100000");
        let config = workspace.at(out).join(files::CONFIG);
        match change {
            Some(content) => std::fs::write(config, content).unwrap(),
            None => std::fs::remove_file(config).unwrap(),
        }
        run.interrupt();
        assert_eq!(run.0.wait().unwrap().code(), Some(1));
        let said = std::fs::read_to_string(workspace.at(format!("{out}.txt"))).unwrap();
        assert!(said.contains("config.toml: was changed or removed while the run"), "{said}");
    }
}

#[test]
fn the_first_ends_the_run_after_its_round() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "long", &["rounds=100000"]);
    wait_for(&workspace.at("long.txt"), "round 1/100000");
    run.interrupt();
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    let (summary, records) = (workspace.summary("long"), workspace.records("long"));
    assert!(summary.rounds >= 1 && summary.rounds < summary.rounds_planned, "{summary:?}");
    assert_eq!(records.last().unwrap().round, summary.rounds);
    assert_eq!(records.last().unwrap().test_accuracy, summary.final_accuracy);
    assert!(workspace.at("long").join(files::MODEL).exists());
    let said = std::fs::read_to_string(workspace.at("long.txt")).unwrap();
    let advice = "of 100000 rounds are done; resume with `fedanchor run --resume long`";
    assert!(said.trim_end().ends_with(advice), "{said}");
    assert!(said.contains(&format!("interrupted: {} of", summary.rounds)), "{said}");
}

/// What it says can be typed, and SIGTERM is the same.
#[test]
fn the_advice_works() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "a run", &["rounds=100000"]);
    wait_for(&workspace.at("a run.txt"), "round 1/100000");
    run.signal("-TERM");
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    let said = std::fs::read_to_string(workspace.at("a run.txt")).unwrap();
    let advice = said.rsplit_once("resume with `fedanchor ").unwrap().1.split_once('`').unwrap().0;
    assert_eq!(advice, "run --resume 'a run'");
    let done = workspace.summary("a run").rounds;
    let line = format!("exec {} {advice} --set rounds={}", env!("CARGO_BIN_EXE_fedanchor"), done);
    let mut shell = Command::new("sh");
    shell.current_dir(workspace.at("")).args(["-c", &line]);
    let said = text(&shell.output().unwrap().stderr).to_owned();
    // Fewer rounds than planned are another experiment: the folder was found, and named.
    assert!(said.contains("differs in rounds (there 100000"), "{said}");
}

#[test]
fn pre_training_ends_after_its_epoch() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "early", &["pretrain.epochs=100000"]);
    wait_for(&workspace.at("early.txt"), "anchors");
    run.interrupt();
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    let said = std::fs::read_to_string(workspace.at("early.txt")).unwrap();
    assert!(said.contains("0 of 2 rounds are done; resume with"), "{said}");
    assert_eq!((workspace.summary("early").rounds, workspace.records("early").len()), (0, 1));
}

#[test]
fn no_seed_begins_after_it_and_nothing_is_averaged() {
    let workspace = Workspace::with_pictures(16);
    let talk = std::fs::File::create(workspace.at("seeds.txt")).unwrap();
    let mut command = workspace.command("seeds", &[DRAWN, &["rounds=100000"]]);
    command.args(["--seeds", "0,1"]).stdout(Stdio::null()).stderr(talk);
    let mut run = Running(command.spawn().unwrap());
    wait_for(&workspace.at("seeds.txt"), "seed 0: round 1/100000");
    run.interrupt();
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    let said = std::fs::read_to_string(workspace.at("seeds.txt")).unwrap();
    let resume = "rounds are done; resume with `fedanchor run --resume seeds/seed0`\n";
    assert!(said.contains(resume), "{said}");
    let end = "interrupted: 0 of 2 seeds finished; resume as stated above, and start the others with \
               the same command and `--seeds 1`\n";
    assert!(said.ends_with(end), "{said}");
    assert!(workspace.at("seeds/seed0").exists() && !workspace.at("seeds/seed1").exists());
}

#[test]
fn a_sweep_says_how_to_resume_it() {
    let workspace = Workspace::with_pictures(16);
    let keys = DRAWN.iter().skip(1).map(|key| {
        let (key, value) = key.split_once('=').unwrap();
        let quote = if value.parse::<f64>().is_ok() { "" } else { "\"" };
        format!("base.{key} = {quote}{value}{quote}\n")
    });
    let file = format!(
        "seeds = [0, 1]\nbase.preset = \"paper\"\nbase.rounds = 100000\n{}",
        keys.collect::<String>()
    );
    std::fs::write(workspace.at("some.toml"), file).unwrap();
    let talk = std::fs::File::create(workspace.at("sweep.txt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").stderr(talk);
    command.args(["sweep", "some.toml", "--out", "my runs", "--json"]).stdout(Stdio::piped());
    let run = Running(command.spawn().unwrap());
    wait_for(&workspace.at("my runs/all/seed0").join(files::ROUNDS), "\"round\":1,");
    run.interrupt();
    let (code, printed) = run.end();
    assert_eq!(code, Some(130));
    let said = std::fs::read_to_string(workspace.at("sweep.txt")).unwrap();
    assert!(said.contains("interrupted: all seed 0: "), "{said}");
    assert!(said.contains("interrupted: all seed 1: not started\n"), "{said}");
    let end = "interrupted: 2 of 2 runs did not finish; resume with \
               `fedanchor sweep some.toml --out 'my runs' --json`\n";
    assert!(said.ends_with(end), "{said}");
    // The table, and nothing else.
    let table: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(table["rows"], serde_json::json!([]));
    assert_eq!(table["left_out"].as_array().unwrap().len(), 1);
}

#[test]
fn labels_are_written_as_a_whole_or_not_at_all() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("run", &[DRAWN, &["rounds=1"]]);
    std::fs::create_dir(workspace.at("many")).unwrap();
    for number in 0..5000 {
        let link = workspace.at(format!("many/{number}.png"));
        std::fs::hard_link(workspace.at("drawn/test/lying/00.png"), link).unwrap();
    }
    let talk = std::fs::File::create(workspace.at("label.txt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").env("FEDANCHOR_CACHE", "");
    command.args(["label", "run", "many", "--out", "my labels"]).stderr(talk);
    let mut label = Running(command.stdout(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    while !workspace.at("my labels").exists() {
        assert!(start.elapsed() < Duration::from_secs(120), "no folder of labels");
        std::thread::sleep(Duration::from_millis(5));
    }
    label.interrupt();
    assert_eq!(label.0.wait().unwrap().code(), Some(130));
    let said = std::fs::read_to_string(workspace.at("label.txt")).unwrap();
    let end = "interrupted: no labels were written; start over with \
               `fedanchor label run many --out 'my labels'`\n";
    assert!(said.ends_with(end), "{said}");
    assert_eq!(std::fs::read_dir(workspace.at("my labels")).unwrap().count(), 0);
}

/// And a process that is killed does not leave its claim behind.
#[test]
fn a_folder_belongs_to_one_process() {
    let workspace = Workspace::with_pictures(16);
    let mut run = Running::start(&workspace, "one", &["pretrain.epochs=100000"]);
    wait_for(&workspace.at("one.txt"), "anchors");
    let refused = workspace.command("one", &[DRAWN]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    let writing =
        format!("one: another process (number {}) is writing to this folder: wait", run.0.id());
    assert!(said.contains(&writing) && !said.contains("remove"), "{said}");
    wait_for(&workspace.at("one").join(files::CONFIG), "checkpoint");
    let set = ["--set", "pretrain.epochs=100000"];
    let refused = crate::kills::resume(&workspace, "one", &set).output().unwrap();
    let said = text(&refused.stderr);
    assert!(said.contains(&writing), "{said}");
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    assert_eq!(workspace.run("one", &[DRAWN]).len(), 3);
}

/// Whatever else is in a folder, no run is written beside it.
#[test]
fn a_folder_of_something_else_is_refused() {
    let workspace = Workspace::with_pictures(16);
    std::fs::create_dir(workspace.at("empty")).unwrap();
    for (name, files) in
        [("one", &["notes.txt"][..]), ("many", &["a", "b", "c", "d", "config.toml"])]
    {
        std::fs::create_dir(workspace.at(name)).unwrap();
        files.iter().for_each(|file| std::fs::write(workspace.at(name).join(file), "x").unwrap());
        let refused = workspace.command(name, &[DRAWN]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let named = ["notes.txt", "a, b, c and 2 more"][usize::from(files.len() > 1)];
        let problem = format!("error: {name}: is not empty and holds no run, but {named}: choose");
        assert!(text(&refused.stderr).contains(&problem), "{}", text(&refused.stderr));
        assert_eq!(workspace.content(name).len(), files.len());
    }
    assert_eq!(workspace.run("empty", &[DRAWN]).len(), 3);
}

#[test]
fn the_second_ends_it_at_once() {
    let workspace = Workspace::with_pictures(16);
    // A round that would not end today.
    let mut run = Running::start(&workspace, "endless", &["client.epochs=100000"]);
    wait_for(&workspace.at("endless.txt"), "pre-trained");
    run.interrupt();
    wait_for(&workspace.at("endless.txt"), "stopping after this round");
    assert!(run.0.try_wait().unwrap().is_none());
    run.interrupt();
    let status = run.0.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(!workspace.at("endless").join(files::SUMMARY).exists());
}
