//! Event files of runs that are left alone, killed and resumed.

use super::format::tests::{read, read_texts};
use super::*;
use fedanchor_record::{Checksums, LabelAccuracy, files};
use tempfile::TempDir;

const CONFIG: &str = r#"preset = "paper"
data = { name = "sample", anchors = 30 }
partition = { kind = "iid" }
model = { name = "small" }
method = { name = "fedanchor" }
"#;

/// A round in which nothing is kept and only one head labels.
fn record(round: u32) -> RoundRecord {
    RoundRecord {
        round,
        test_accuracy: 50.0 + f64::from(round),
        test_loss: 0.5,
        clients: vec![3],
        trained: 1,
        seen: if round == 0 { 0 } else { 30 },
        anchor_head: LabelAccuracy { all: Some(40.0), kept: None },
        losses: [("server_fix", Some(0.25))].into_iter().collect(),
        bytes_down: 1000,
        bytes_up: 10,
        ..RoundRecord::default()
    }
}

fn timing(round: u32) -> Timing {
    Timing { round, clients: 1.5, total: 2.0, ..Timing::default() }
}

/// A run folder with this many rounds on record.
fn run_folder(rounds: u32) -> TempDir {
    let run = TempDir::new().unwrap();
    let mut checksums = Checksums::default();
    let (mut records, mut timings) = (String::new(), String::new());
    for round in 0..rounds {
        records += &(checksums.seal(&serde_json::to_string(&record(round)).unwrap()) + "\n");
        timings += &(serde_json::to_string(&timing(round)).unwrap() + "\n");
    }
    fs_err::write(run.path().join(files::CONFIG), CONFIG).unwrap();
    fs_err::write(run.path().join(files::ROUNDS), records).unwrap();
    fs_err::write(run.path().join(files::TIMINGS), timings).unwrap();
    run
}

/// The event file; at most one other is there: the previous one, which is empty.
fn only_file(run: &TempDir) -> PathBuf {
    let entries = fs_err::read_dir(run.path().join(FOLDER)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (last, old) = files.split_last().unwrap();
    assert!(old.len() <= 1, "{files:?}");
    assert!(old.iter().all(|path| fs_err::read(path).unwrap().is_empty()), "{files:?}");
    last.clone()
}

fn steps(file: &Path) -> Vec<i64> {
    let events = read(&fs_err::read(file).unwrap());
    // Rounds follow one another by the seconds they took, also where there was a break.
    assert!(events.windows(2).all(|pair| (pair[1].1 - pair[0].1 - 2.0).abs() < 1e-3), "{events:?}");
    events.into_iter().map(|(step, ..)| step).collect()
}

#[test]
fn every_round_is_a_step_with_what_it_has() {
    let run = run_folder(0);
    let mut events = EventFile::new(run.path());
    assert!(!EventFile::exists(run.path()));
    for round in 0..3 {
        events.add(&record(round), &timing(round)).unwrap();
        // Readable after every round.
        assert_eq!(steps(&only_file(&run)).len(), round as usize + 1);
    }
    assert!(EventFile::exists(run.path()));
    let file = only_file(&run);
    let before = fs_err::read(&file).unwrap();
    events.finish().unwrap();
    assert_eq!(fs_err::read(only_file(&run)).unwrap(), before);
    let found = read(&before);
    assert!(found[0].1 > 1.7e9, "seconds since 1970: {}", found[0].1);
    let expected = [
        ("accuracy/test", 52.0),
        ("loss/test", 0.5),
        ("loss/server_fix", 0.25),
        ("pseudo_labels/kept_percent", 0.0),
        ("pseudo_labels/anchor_head_all", 40.0),
        ("traffic/bytes_down", 1000.0),
        ("traffic/bytes_up", 10.0),
        ("seconds/broadcast", 0.0),
        ("seconds/clients", 1.5),
        ("seconds/aggregate", 0.0),
        ("seconds/server", 0.0),
        ("seconds/test", 0.0),
        ("seconds/total", 2.0),
    ];
    let expected = expected.map(|(tag, value)| (tag.to_owned(), value));
    assert_eq!(found[2], (2, found[2].1, expected.to_vec()));
    // Without samples there is no share of them.
    assert!(found[0].2.iter().all(|(tag, _)| tag != "pseudo_labels/kept_percent"));
}

#[test]
fn a_resumed_run_has_every_round_once() {
    // Killed in the middle of an event, with two rounds in the file that are not on record.
    let run = run_folder(3);
    let mut events = EventFile::new(run.path());
    (0..5).for_each(|round| events.add(&record(round), &timing(round)).unwrap());
    let killed = only_file(&run);
    let mut torn = fs_err::read(&killed).unwrap();
    torn.extend_from_slice(&torn.clone()[..30]);
    fs_err::write(&killed, torn).unwrap();
    // What a kill during an earlier resumption left.
    fs_err::write(run.path().join(FOLDER).join("new.part"), "half").unwrap();

    let mut events = EventFile::new(run.path());
    events.add(&record(3), &timing(3)).unwrap();
    let resumed = only_file(&run);
    assert_eq!(steps(&resumed), [0, 1, 2, 3]);
    assert!(resumed.file_name() > killed.file_name(), "{resumed:?} after {killed:?}");
    events.add(&record(4), &timing(4)).unwrap();
    assert_eq!(steps(&resumed), [0, 1, 2, 3, 4]);

    // Rounds on record that are repeated (--force) are not taken from there.
    let mut events = EventFile::new(run.path());
    events.add(&record(1), &timing(1)).unwrap();
    assert_eq!(steps(&only_file(&run)), [0, 1]);
}

#[test]
fn the_build_is_named_where_it_changes() {
    let with = |round, commit: &str| {
        let build = Build { version: "1.0".into(), commit: commit.to_owned(), changed: false };
        Timing { build, ..timing(round) }
    };
    let run = run_folder(2); // of an earlier version
    let mut events = EventFile::new(run.path());
    events.add(&record(2), &with(2, "abc")).unwrap();
    events.add(&record(3), &with(3, "abc")).unwrap();
    events.add(&record(4), &with(4, "def")).unwrap();
    let found = read_texts(&fs_err::read(only_file(&run)).unwrap());
    let text = |step, text: &str| (step, "build".to_owned(), text.to_owned());
    let unknown = "unknown (commit unknown)";
    assert_eq!(found, [text(0, unknown), text(2, "1.0 (abc)"), text(4, "1.0 (def)")]);
}

#[test]
fn a_link_is_not_written_through() {
    let run = run_folder(3);
    let folder = run.path().join(FOLDER);
    fs_err::create_dir_all(&folder).unwrap();
    fs_err::write(run.path().join("precious"), "precious").unwrap();
    std::os::unix::fs::symlink("../precious", folder.join("new.part")).unwrap();
    EventFile::new(run.path()).add(&record(3), &timing(3)).unwrap();
    assert_eq!(steps(&only_file(&run)), [0, 1, 2, 3]);
    assert_eq!(fs_err::read_to_string(run.path().join("precious")).unwrap(), "precious");
}

#[test]
fn a_run_without_rounds_to_do_gets_its_file() {
    let run = run_folder(4);
    EventFile::new(run.path()).finish().unwrap();
    assert_eq!(steps(&only_file(&run)), [0, 1, 2, 3]);
    // Records of an earlier version may have no timings.
    fs_err::remove_file(run.path().join(files::TIMINGS)).unwrap();
    EventFile::new(run.path()).finish().unwrap();
    let events = read(&fs_err::read(only_file(&run)).unwrap());
    assert_eq!(events.len(), 4);
    assert!(events.iter().all(|(_, _, tags)| tags.iter().all(|(tag, _)| !tag.starts_with("sec"))));
}

#[test]
fn other_files_in_the_folder_stay() {
    let run = run_folder(1);
    let other = run.path().join(FOLDER).join("events.out.tfevents.123.elsewhere");
    fs_err::create_dir(run.path().join(FOLDER)).unwrap();
    fs_err::write(&other, "").unwrap();
    EventFile::new(run.path()).finish().unwrap();
    assert!(other.exists());
}
