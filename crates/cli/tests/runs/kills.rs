//! Runs that are killed, extended, damaged and resumed end as runs that were left alone.

use crate::place::{DRAWN, Place, text};
use fedanchor_record::files;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

pub fn resume(place: &Place, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(place.at("")).env("OMP_NUM_THREADS", "1");
    command.args(["run", "--resume", out]).args(more);
    command
}

/// What must be the same bytes: the records and the model.
pub fn outcome(place: &Place, out: &str) -> (String, Vec<u8>) {
    (place.read(out, files::ROUNDS), place.content(out)[files::MODEL].clone())
}

pub fn checkpoints(place: &Place, out: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.at(out).join("checkpoints")).unwrap();
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Two rounds, and then two more: as four at once, with everything a method keeps between rounds.
#[test]
fn an_extended_run_is_the_longer_run() {
    let place = Place::with_pictures(16);
    let shared: Vec<&str> =
        DRAWN.iter().copied().filter(|key| !key.starts_with("method.")).collect();
    let keeps = ["client.keep_momentum=true", "server.keep_momentum=true", "server.momentum=0.5"];
    for (name, more) in [
        ("fedanchor", &["batch_norm.statistics=static-all"][..]),
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
        ("supervised", &[]),
        ("server-only", &[]),
    ] {
        let method = format!("method.name={name}");
        let settings = [&shared[..], &keeps, &[&method], more];
        let (whole, parts) = (format!("{name}-whole"), format!("{name}-parts"));
        place.run(&whole, &[settings[0], settings[1], settings[2], more, &["rounds=4"]]);
        place.run(&parts, &settings);
        place.succeed(&mut resume(&place, &parts, &["--set", "rounds=4"]));
        assert!(outcome(&place, &whole) == outcome(&place, &parts), "{name}");
        assert_eq!(place.summary(&parts).rounds, 4);
    }
}

/// Kills a run at random moments, resuming it after each, until it comes to its end: as if nothing
/// had happened. Where that is before the last kill, the next run begins.
fn kill(times: u32) {
    let place = Place::with_pictures(16);
    let settings = [DRAWN, &["client.keep_momentum=true", "rounds=12"]];
    place.run("whole", &settings);
    let (mut random, mut killed, mut runs) = (12345u64, 0, 0);
    while killed < times {
        runs += 1;
        let out = format!("killed{runs}");
        let mut finished = 0; // rounds on record when it was killed, and round 0
        loop {
            let begun = place.at(&out).join(files::CONFIG).exists();
            let mut command =
                if begun { resume(&place, &out, &[]) } else { place.command(&out, &settings) };
            if killed == times {
                place.succeed(&mut command);
                break;
            }
            let talk = std::fs::File::create(place.at("talk")).unwrap();
            let mut child = command.stderr(talk).stdout(Stdio::null()).spawn().unwrap();
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis(20 + (random >> 33) % 900));
            child.kill().unwrap(); // SIGKILL
            let ended = child.wait().unwrap().success(); // before it could be killed
            // A kill costs the round in flight, never a finished one.
            let talk = std::fs::read_to_string(place.at("talk")).unwrap();
            let from = talk
                .split_once("going on after round ")
                .map(|(_, rest)| rest.split_whitespace().next().unwrap().parse::<usize>().unwrap());
            let from = from.map_or(0, |round| round + 1);
            let said = from > 0 || talk.contains("starting again");
            assert!(!said || from >= finished, "{finished} rounds on record: {talk}");
            if ended {
                break;
            }
            killed += 1;
            let lines = std::fs::read_to_string(place.at(&out).join(files::ROUNDS));
            finished = finished.max(lines.map_or(0, |text| text.matches('\n').count()));
        }
        assert!(outcome(&place, "whole") == outcome(&place, &out), "after {killed} kills");
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

/// A torn record, and damaged checkpoints: the last good one is used, and that is said.
#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let place = Place::with_pictures(16);
    place.run("whole", &[DRAWN, &["rounds=4"]]);
    place.run("damaged", &[DRAWN, &["rounds=3"]]);
    let files = checkpoints(&place, "damaged");
    assert_eq!(files.len(), 2, "{files:?}"); // rounds 2 and 3
    let mut bytes = std::fs::read(&files[1]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&files[1], bytes).unwrap();
    let mut record = place.read("damaged", files::ROUNDS);
    record.push_str("{\"round\": 4, \"test_ac");
    std::fs::write(place.at("damaged").join(files::ROUNDS), record).unwrap();
    let output = place.succeed(&mut resume(&place, "damaged", &["--set", "rounds=4"]));
    let said = text(&output.stderr);
    assert!(said.contains("the checkpoint of round 3 is damaged and not used"), "{said}");
    assert!(said.contains("going on after round 2"), "{said}");
    assert!(outcome(&place, "whole") == outcome(&place, "damaged"));
}

/// What differs is named and refused; `--force` goes on.
#[test]
fn another_experiment_is_refused() {
    let place = Place::with_pictures(16);
    place.run("run", &[DRAWN]);
    let refused = |more: &[&str], expected: &str| {
        let output = resume(&place, "run", more).output().unwrap();
        let said = text(&output.stderr).to_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    refused(&["--set", "client.batch=4"], "client.batch (there 8, now 4)");
    refused(&["--set", "rounds=1"], "rounds: 2 are done, more than 1");
    refused(&["--force", "--set", "rounds=1"], "rounds: 2 are done, more than 1");
    refused(
        &["--set", "optimiser.lr=0.5", "--set", "rounds=3"],
        "optimiser.lr (there 0.03, now 0.5)",
    );
    let forced = ["--force", "--set", "optimiser.lr=0.01", "--set", "rounds=3"];
    place.succeed(&mut resume(&place, "run", &forced));
    assert_eq!(place.records("run").len(), 4);
    // Another network's checkpoint does not fit, and nothing is changed.
    let before = place.content("run");
    refused(
        &["--force", "--set", "model.name=wrn28x2", "--set", "rounds=4"],
        "does not fit this experiment",
    );
    assert!(before == place.content("run"));
    // Other pictures under the same name.
    crate::place::draw(&place.at("drawn"), 17);
    refused(&["--set", "rounds=4"], "the data set's pixels or labels");
    let output = resume(&place, "nothing", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("nothing/config.toml"), "{}", text(&output.stderr));
}

/// Nothing that is on record is thrown away unasked, and no checkpoint of another run is taken up.
#[test]
fn what_cannot_be_gone_on_with_is_refused() {
    let place = Place::with_pictures(16);
    let settings = [DRAWN, &["rounds=3", "client.keep_momentum=true"][..]];
    place.run("run", &settings);
    let whole = outcome(&place, "run");
    let copy = |to: &str| {
        let copied = Command::new("cp").args(["-r", "run", to]).current_dir(place.at("")).status();
        assert!(copied.unwrap().success());
    };
    let refused = |out: &str, more: &[&str], expected: &str| {
        let before = place.content(out);
        let output = resume(&place, out, more).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(before == place.content(out), "{out} was changed");
    };
    let goes_on = |out: &str, expected: &str| {
        let output = place.succeed(&mut resume(&place, out, &["--force"]));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
        assert!(whole == outcome(&place, out), "{out}");
    };

    // A record in the middle that is no record.
    copy("torn");
    let records = place.read("torn", files::ROUNDS).replacen("\"round\":1", "\"rxxxx\":1", 1);
    std::fs::write(place.at("torn").join(files::ROUNDS), records).unwrap();
    refused("torn", &[], "rounds.jsonl: line 2 is damaged or missing");
    goes_on("torn", "no round is complete: starting again"); // rounds 2 and 3 were kept
    copy("gone");
    std::fs::remove_file(place.at("gone").join(files::ROUNDS)).unwrap();
    refused("gone", &[], "--force starts without it");
    goes_on("gone", "starting again");
    // No checkpoint.
    copy("bare");
    std::fs::remove_dir_all(place.at("bare").join("checkpoints")).unwrap();
    refused("bare", &[], "3 rounds are on record and there is no checkpoint");
    goes_on("bare", "starting again");

    // Settings that were changed behind its back, and a checkpoint of another run.
    copy("edited");
    let config = place.read("edited", files::CONFIG).replacen("lr = 0.03", "lr = 0.5", 1);
    std::fs::write(place.at("edited").join(files::CONFIG), config).unwrap();
    let made = "the settings that the checkpoint of round 3 was made with";
    refused("edited", &["--set", "rounds=4"], made);
    place.run("other", &[settings[0], settings[1], &["seed=5"]]);
    copy("mixed");
    let last = checkpoints(&place, "other").pop().unwrap();
    let name = last.file_name().unwrap();
    std::fs::copy(&last, place.at("mixed").join("checkpoints").join(name)).unwrap();
    let clients = |out: &str| {
        let entries = std::fs::read_dir(place.at(out).join("checkpoints/clients")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    for path in clients("other") {
        std::fs::copy(&path, place.at("mixed/checkpoints/clients").join(path.file_name().unwrap()))
            .unwrap();
    }
    refused("mixed", &["--set", "rounds=4"], made);
    // Two clients' files in each other's place.
    copy("swapped");
    let [first, .., last] = &clients("swapped")[..] else { panic!() };
    let [a, b] = [first, last].map(|path| std::fs::read(path).unwrap());
    std::fs::write(first, b).unwrap();
    std::fs::write(last, a).unwrap();
    let output = resume(&place, "swapped", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("no checkpoint to go on from"), "{output:?}");

    // A checkpoint of another version: the seal made anew around it.
    copy("later");
    for path in checkpoints(&place, "later") {
        let bytes = std::fs::read(&path).unwrap();
        let now = format!("\\\"version\\\":\\\"{}\\\"", env!("CARGO_PKG_VERSION"));
        let at = bytes.windows(now.len()).position(|window| window == now.as_bytes()).unwrap();
        let mut payload = bytes[40..].to_vec();
        payload[at - 40 + now.len() - 3] = b'9';
        let sealed = [&bytes[..8], blake3::hash(&payload).as_bytes(), &payload].concat();
        std::fs::write(path, sealed).unwrap();
    }
    refused("later", &["--set", "rounds=4"], "this run differs in version (there ");

    // A folder that holds nothing but checkpoints is no place for a new run.
    std::fs::create_dir(place.at("left")).unwrap();
    std::fs::rename(place.at("other/checkpoints"), place.at("left/checkpoints")).unwrap();
    let output = place.command("left", &settings).output().unwrap();
    assert!(text(&output.stderr).contains("holds checkpoints of a run"), "{output:?}");
}

/// A schedule over all rounds is another one when there are more of them, and that is said.
#[test]
fn a_schedule_that_is_extended_is_said() {
    let place = Place::with_pictures(16);
    place.run("run", &[DRAWN, &["optimiser.schedule=cosine"]]);
    let said =
        |more: &[&str]| text(&place.succeed(&mut resume(&place, "run", more)).stderr).to_owned();
    assert!(!said(&[]).contains("follows the number of rounds"));
    assert!(said(&["--set", "rounds=3"]).contains("follows the number of rounds"));
}

/// Old checkpoints go, those that were asked for stay.
#[test]
pub fn checkpoints_are_thinned() {
    let place = Place::with_pictures(16);
    let keep = ["rounds=6", "checkpoint.every=2", "client.keep_momentum=true"];
    place.run("run", &[DRAWN, &keep]);
    let names: Vec<String> = checkpoints(&place, "run")
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let rounds = [2, 4, 5, 6].map(|round| format!("round-{round:06}.checkpoint"));
    assert_eq!(names, rounds);
    // The best alone stays, also after a resume.
    let best = |out: &str, rounds: &[&str]| {
        place.run(out, &[DRAWN, &["checkpoint.best=true", rounds[0]]]);
        for rounds in &rounds[1..] {
            place.succeed(&mut resume(&place, out, &["--set", rounds]));
        }
        let files = checkpoints(&place, out).into_iter();
        files.map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let whole = best("whole", &["rounds=6"]);
    assert!(whole.len() <= 3, "{whole:?}");
    assert_eq!(whole, best("parts", &["rounds=1", "rounds=2", "rounds=3", "rounds=6"]));
    // Four clients, at most one file each for every checkpoint that stays.
    let clients = std::fs::read_dir(place.at("run").join("checkpoints/clients")).unwrap().count();
    assert!((4..=16).contains(&clients), "{clients}");
}
