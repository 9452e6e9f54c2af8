//! Runs that are killed, extended, damaged and resumed end as runs that were left alone.

use crate::workspace::{DRAWN, Workspace, text};
use fedanchor_record::files;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

pub fn resume(workspace: &Workspace, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1");
    command.args(["run", "--resume", out]).args(more);
    command
}

/// What must be the same bytes: the records and the model.
pub fn outcome(workspace: &Workspace, out: &str) -> (String, Vec<u8>) {
    (workspace.read(out, files::ROUNDS), workspace.content(out)[files::MODEL].clone())
}

pub fn checkpoints(workspace: &Workspace, out: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(workspace.at(out).join("checkpoints")).unwrap();
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Two rounds, and then two more: as four at once, with everything a method keeps between rounds.
#[test]
fn an_extended_run_is_the_longer_run() {
    let workspace = Workspace::with_pictures(16);
    let shared: Vec<&str> =
        DRAWN.iter().copied().filter(|key| !key.starts_with("method.")).collect();
    let keeps = ["client.keep_momentum=true", "server.keep_momentum=true", "server.momentum=0.5"];
    let cases = [
        ("fedanchor", &["batch_norm.statistics=static-all"][..]),
        ("fedanchor", &["method.warm_up.rounds=1"]),
        ("semifl", &["method.threshold=0.3"]),
        ("fedavg-fixmatch", &["method.threshold=0.3"]),
        ("fedcon", &["method.predictor=32"]),
        (
            "fedmatch",
            &[
                "batch_norm.statistics=static-server",
                "method.refresh=1",
                "method.threshold=0.3",
                "method.distance=0.1",
            ],
        ),
        ("fl2", &["aggregation.weights=method"]),
        // More than there are anchors.
        ("supervised", &["server.batch=64"]),
        ("server-only", &[]),
    ];
    for (number, (name, more)) in cases.into_iter().enumerate() {
        let method = format!("method.name={name}");
        let settings = [&shared[..], &keeps, &[&method], more];
        let (whole, parts) = (format!("{name}-{number}-whole"), format!("{name}-{number}-parts"));
        workspace.run(&whole, &[settings[0], settings[1], settings[2], more, &["rounds=4"]]);
        workspace.run(&parts, &settings);
        workspace.succeed(&mut resume(&workspace, &parts, &["--set", "rounds=4"]));
        assert!(outcome(&workspace, &whole) == outcome(&workspace, &parts), "{name}");
        assert_eq!(workspace.summary(&parts).rounds, 4);
    }
}

/// Kills a run at random moments, resuming it after each, until it comes to its end: as if nothing
/// had happened. Where that is before the last kill, the next run begins.
fn kill(times: u32) {
    let workspace = Workspace::with_pictures(16);
    let record = ["record.latents=[0, 5, 6, 12]", "record.samples=3"];
    let settings = [DRAWN, &["client.keep_momentum=true", "rounds=12"], &record];
    workspace.run("whole", &settings);
    let figures = |out: &str| {
        let names =
            [0, 5, 6, 12].map(files::latents).into_iter().chain([files::SAMPLES.to_owned()]);
        names.map(|name| std::fs::read(workspace.at(out).join(name)).unwrap()).collect::<Vec<_>>()
    };
    let (mut random, mut killed, mut runs) = (12345u64, 0, 0);
    while killed < times {
        runs += 1;
        let out = format!("killed{runs}");
        let mut finished = 0; // rounds on record when it was killed, and round 0
        loop {
            let begun = workspace.at(&out).join(files::CONFIG).exists();
            let mut command = if begun {
                resume(&workspace, &out, &[])
            } else {
                workspace.command(&out, &settings)
            };
            if killed == times {
                workspace.succeed(&mut command);
                break;
            }
            let talk = std::fs::File::create(workspace.at("talk")).unwrap();
            let mut child = command.stderr(talk).stdout(Stdio::null()).spawn().unwrap();
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(20 + (random >> 33) % 900));
            child.kill().unwrap(); // SIGKILL
            let ended = child.wait().unwrap().success(); // before it could be killed
            // A kill costs the round in flight, never a finished one.
            let talk = std::fs::read_to_string(workspace.at("talk")).unwrap();
            let from = talk
                .split_once("resuming after round ")
                .map(|(_, rest)| rest.split_whitespace().next().unwrap().parse::<usize>().unwrap());
            let from = from.map_or(0, |round| round + 1);
            let said = from > 0 || talk.contains("starting from the beginning");
            assert!(!said || from >= finished, "{finished} rounds on record: {talk}");
            if ended {
                break;
            }
            killed += 1;
            let lines = std::fs::read_to_string(workspace.at(&out).join(files::ROUNDS));
            finished = finished.max(lines.map_or(0, |text| text.matches('\n').count()));
        }
        assert!(outcome(&workspace, "whole") == outcome(&workspace, &out), "after {killed} kills");
        assert!(figures("whole") == figures(&out), "after {killed} kills");
    }
    println!("{killed} kills in {runs} runs: all as the run that was left alone");
}

#[test]
fn ten_kills_leave_no_trace() {
    kill(10);
}

#[test]
#[ignore = "slow"]
fn a_hundred_kills_leave_no_trace() {
    kill(100);
}

/// A torn record, and damaged checkpoints: the last good one is used, with a note.
#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("whole", &[DRAWN, &["rounds=4"]]);
    workspace.run("damaged", &[DRAWN, &["rounds=3"]]);
    let files = checkpoints(&workspace, "damaged");
    assert_eq!(files.len(), 2, "{files:?}"); // rounds 2 and 3
    let mut bytes = std::fs::read(&files[1]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&files[1], bytes).unwrap();
    let mut record = workspace.read("damaged", files::ROUNDS);
    record.push_str("{\"round\": 4, \"test_ac");
    std::fs::write(workspace.at("damaged").join(files::ROUNDS), record).unwrap();
    let output = workspace.succeed(&mut resume(&workspace, "damaged", &["--set", "rounds=4"]));
    let said = text(&output.stderr);
    assert!(
        said.contains(
            "round-000003.checkpoint, the checkpoint of round 3, is damaged and not used"
        ),
        "{said}"
    );
    assert!(said.contains("resuming after round 2"), "{said}");
    assert!(outcome(&workspace, "whole") == outcome(&workspace, "damaged"));
}

/// What differs is named and refused; `--force` resumes anyway.
#[test]
fn another_experiment_is_refused() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("run", &[DRAWN]);
    let refused = |more: &[&str], expected: &str| {
        let output = resume(&workspace, "run", more).output().unwrap();
        let said = text(&output.stderr).to_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    refused(&["--set", "client.batch=4"], "client.batch (there 8, now 4)");
    refused(&["--set", "rounds=1"], "rounds: 2 rounds are done, more than 1");
    refused(&["--force", "--set", "rounds=1"], "rounds: 2 rounds are done, more than 1");
    refused(
        &["--set", "optimiser.lr=0.5", "--set", "rounds=3"],
        "optimiser.lr (there 0.03, now 0.5)",
    );
    let forced = ["--force", "--set", "optimiser.lr=0.01", "--set", "rounds=3"];
    workspace.succeed(&mut resume(&workspace, "run", &forced));
    assert_eq!(workspace.records("run").len(), 4);
    // Another network's checkpoint does not fit, and nothing is changed.
    let before = workspace.content("run");
    refused(
        &["--force", "--set", "model.name=wrn28x2", "--set", "rounds=4"],
        "does not fit this experiment",
    );
    assert!(before == workspace.content("run"));
    // Other pictures under the same name.
    crate::workspace::draw(&workspace.at("drawn"), 17);
    refused(&["--set", "rounds=4"], "the data set's pixels or labels");
    let output = resume(&workspace, "nothing", &[]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("nothing: is not a run folder: it has no config.toml"), "{said}");
}

/// Nothing on record is given up without --force, and no checkpoint of another run is used.
#[test]
fn what_cannot_be_resumed_is_refused() {
    let workspace = Workspace::with_pictures(16);
    let settings = [DRAWN, &["rounds=3", "client.keep_momentum=true"][..]];
    workspace.run("run", &settings);
    let whole = outcome(&workspace, "run");
    let copy = |to: &str| {
        let copied =
            Command::new("cp").args(["-r", "run", to]).current_dir(workspace.at("")).status();
        assert!(copied.unwrap().success());
    };
    let refused = |out: &str, more: &[&str], expected: &str| {
        let before = workspace.content(out);
        let output = resume(&workspace, out, more).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(before == workspace.content(out), "{out} was changed");
    };
    let resumes = |out: &str, expected: &str| {
        let output = workspace.succeed(&mut resume(&workspace, out, &["--force"]));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert!(whole == outcome(&workspace, out), "{out}");
    };

    // A record in the middle that is no record.
    copy("torn");
    let records = workspace.read("torn", files::ROUNDS).replacen("\"round\":1", "\"rxxxx\":1", 1);
    std::fs::write(workspace.at("torn").join(files::ROUNDS), records).unwrap();
    refused("torn", &[], "rounds.jsonl: line 2 is damaged or missing");
    resumes("torn", "no round is complete: starting from the beginning"); // rounds 2 and 3 were kept
    // A digit that was changed inside a finished line: still a record, but not the one that was written.
    copy("changed");
    let records = workspace.read("changed", files::ROUNDS);
    let kept = records.lines().nth(1).unwrap().split_once("\"kept\":").unwrap().1;
    let digit = &kept[..1];
    let other = if digit == "7" { "8" } else { "7" };
    let changed = records.replacen(
        &format!("\"kept\":{kept}"),
        &format!("\"kept\":{other}{}", &kept[1..]),
        1,
    );
    assert_ne!(changed, records);
    std::fs::write(workspace.at("changed").join(files::ROUNDS), changed).unwrap();
    let mut table = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    table.current_dir(workspace.at("")).args(["table", "changed"]);
    let output = table.output().unwrap();
    assert!(text(&output.stderr).contains("line 2 does not match its checksum"), "{output:?}");
    refused("changed", &[], "rounds.jsonl: line 2 is damaged or missing");
    resumes("changed", "starting from the beginning");
    // A first line whose checksum is damaged looks like one of an older version; the checkpoint's own
    // line does not follow it.
    workspace.run("short", &[DRAWN, &["rounds=1"]]);
    let records =
        workspace.read("short", files::ROUNDS).replacen("\"checksum\"", "\"checksun\"", 1);
    std::fs::write(workspace.at("short").join(files::ROUNDS), records).unwrap();
    refused("short", &["--set", "rounds=2"], "does not lead up to the checkpoint of round 1");
    copy("gone");
    std::fs::remove_file(workspace.at("gone").join(files::ROUNDS)).unwrap();
    refused("gone", &[], "--force starts without it");
    resumes("gone", "starting from the beginning");
    // No checkpoint.
    copy("bare");
    std::fs::remove_dir_all(workspace.at("bare").join("checkpoints")).unwrap();
    refused("bare", &[], "3 rounds are on record, but there is no checkpoint");
    let records = workspace.read("bare", files::ROUNDS);
    let first = records.replacen("\"round\":0", "\"round\":8", 1);
    std::fs::write(workspace.at("bare").join(files::ROUNDS), first).unwrap();
    refused("bare", &[], "to resume from; line 1 of rounds.jsonl is damaged; --force starts over");
    std::fs::write(workspace.at("bare").join(files::ROUNDS), records).unwrap();
    resumes("bare", "starting from the beginning");
    copy("both");
    for path in checkpoints(&workspace, "both") {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[60] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    refused("both", &[], "round-000003.checkpoint is damaged; ");

    // A config that was edited by hand, and a checkpoint of another run.
    copy("edited");
    let config = workspace.read("edited", files::CONFIG).replacen("lr = 0.03", "lr = 0.5", 1);
    std::fs::write(workspace.at("edited").join(files::CONFIG), config).unwrap();
    refused("edited", &["--set", "rounds=4"], "config.toml: does not match its checksum");
    // Nor where its checksum was left out, as by an earlier version.
    std::fs::remove_file(workspace.at("edited").join(files::CHECKSUMS)).unwrap();
    let made = "the settings that the checkpoint of round 3 was made with";
    refused("edited", &["--set", "rounds=4"], made);
    workspace.run("other", &[settings[0], settings[1], &["seed=5"]]);
    copy("mixed");
    let last = checkpoints(&workspace, "other").pop().unwrap();
    let name = last.file_name().unwrap();
    std::fs::copy(&last, workspace.at("mixed").join("checkpoints").join(name)).unwrap();
    let clients = |out: &str| {
        let entries = std::fs::read_dir(workspace.at(out).join("checkpoints/clients")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    for path in clients("other") {
        std::fs::copy(
            &path,
            workspace.at("mixed/checkpoints/clients").join(path.file_name().unwrap()),
        )
        .unwrap();
    }
    refused("mixed", &["--set", "rounds=4"], "does not lead up to the checkpoint of round 3");
    // The files of two clients exchanged.
    copy("swapped");
    let [first, .., last] = &clients("swapped")[..] else { panic!() };
    let [a, b] = [first, last].map(|path| std::fs::read(path).unwrap());
    std::fs::write(first, b).unwrap();
    std::fs::write(last, a).unwrap();
    let output = workspace.succeed(&mut resume(&workspace, "swapped", &[]));
    for path in [first, last] {
        let name = path.file_name().unwrap().to_str().unwrap();
        let note = format!("starts without its saved state: checkpoints/clients/{name} is damaged");
        assert!(text(&output.stderr).contains(&note), "{output:?}");
    }

    // A checkpoint of an earlier format.
    copy("earlier");
    for path in checkpoints(&workspace, "earlier") {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[..8].copy_from_slice(b"fedanch1");
        std::fs::write(path, bytes).unwrap();
    }
    refused("earlier", &["--set", "rounds=4"], "was written by an earlier version of fedanchor");

    // A checkpoint of another version, with a valid seal.
    copy("later");
    for path in checkpoints(&workspace, "later") {
        let bytes = std::fs::read(&path).unwrap();
        let now = format!("\\\"version\\\":\\\"{}\\\"", env!("CARGO_PKG_VERSION"));
        let at = bytes.windows(now.len()).position(|window| window == now.as_bytes()).unwrap();
        let mut payload = bytes[40..].to_vec();
        payload[at - 40 + now.len() - 3] = b'9';
        let sealed = [&bytes[..8], blake3::hash(&payload).as_bytes(), &payload].concat();
        std::fs::write(path, sealed).unwrap();
    }
    refused("later", &["--set", "rounds=4"], "differs in version (there ");

    // A folder that holds only checkpoints is refused for a new run.
    std::fs::create_dir(workspace.at("left")).unwrap();
    std::fs::rename(workspace.at("other/checkpoints"), workspace.at("left/checkpoints")).unwrap();
    let output = workspace.command("left", &settings).output().unwrap();
    assert!(text(&output.stderr).contains("holds checkpoints of a run"), "{output:?}");
}

/// A schedule over all rounds changes when there are more of them, which a note says.
#[test]
fn an_extended_schedule_is_noted() {
    let workspace = Workspace::with_pictures(16);
    workspace.run("run", &[DRAWN, &["optimiser.schedule=cosine"]]);
    let said = |more: &[&str]| {
        text(&workspace.succeed(&mut resume(&workspace, "run", more)).stderr).to_owned()
    };
    assert!(!said(&[]).contains("depends on the number of rounds"));
    assert!(said(&["--set", "rounds=3"]).contains("depends on the number of rounds"));
}

/// Old checkpoints are removed, those to be kept stay.
#[test]
pub fn checkpoints_are_thinned() {
    let workspace = Workspace::with_pictures(16);
    let keep = ["rounds=6", "checkpoint.every=2", "client.keep_momentum=true"];
    workspace.run("run", &[DRAWN, &keep]);
    let names: Vec<String> = checkpoints(&workspace, "run")
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let rounds = [2, 4, 5, 6].map(|round| format!("round-{round:06}.checkpoint"));
    assert_eq!(names, rounds);
    // The best alone stays, also after a resume.
    let best = |out: &str, rounds: &[&str]| {
        workspace.run(out, &[DRAWN, &["checkpoint.best=true", rounds[0]]]);
        for rounds in &rounds[1..] {
            workspace.succeed(&mut resume(&workspace, out, &["--set", rounds]));
        }
        let files = checkpoints(&workspace, out).into_iter();
        files.map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let whole = best("whole", &["rounds=6"]);
    assert!(whole.len() <= 3, "{whole:?}");
    assert_eq!(whole, best("parts", &["rounds=1", "rounds=2", "rounds=3", "rounds=6"]));
    // Four clients, at most one file each for every checkpoint that stays.
    let clients =
        std::fs::read_dir(workspace.at("run").join("checkpoints/clients")).unwrap().count();
    assert!((4..=16).contains(&clients), "{clients}");
}
