//! Runs that are followed while they are written.

use crate::folders::{Folders, Made};
use fedanchor_record::{Checksums, RoundRecord, Timing, files};
use fedanchor_report::{Follower, Followers, LiveRun, Status};
use proptest::prelude::*;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// A process that runs an experiment, as far as its folder shows.
struct Writer {
    folder: PathBuf,
    records: File,
    checksums: Checksums,
}

impl Writer {
    /// Starts or resumes.
    fn start(folders: &Folders, name: &str) -> Self {
        folders.make(name, Made { changes: &[], last: 0.0, best: 0.0, rounds: None });
        let folder = folders.path(name);
        let path = folder.join(files::ROUNDS);
        let records = OpenOptions::new().create(true).append(true).open(path).unwrap();
        records.try_lock().unwrap();
        Self { folder, records, checksums: Checksums::default() }
    }

    fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.records.write_all(bytes.as_ref()).unwrap();
    }

    /// Records a round.
    fn round(&mut self, round: u32) {
        let line = self.checksums.seal(&serde_json::to_string(&record(round)).unwrap());
        self.write(format!("{line}\n"));
        let timing = Timing { round, total: 2.0, ..Timing::default() };
        self.timing(&format!("{}\n", serde_json::to_string(&timing).unwrap()));
    }

    fn timing(&self, line: &str) {
        let path = self.folder.join(files::TIMINGS);
        let mut timings = OpenOptions::new().create(true).append(true).open(path).unwrap();
        timings.write_all(line.as_bytes()).unwrap();
    }

    /// All rounds are done.
    fn finish(self, folders: &Folders, name: &str) {
        let records = fs_err::read(self.folder.join(files::ROUNDS)).unwrap();
        folders.make(name, Made { changes: &[], last: 80.0, best: 81.0, rounds: Some(500) });
        fs_err::write(self.folder.join(files::ROUNDS), records).unwrap();
    }
}

fn record(round: u32) -> RoundRecord {
    let text = format!(
        "{{\"round\":{round},\"test_accuracy\":{},\"test_loss\":1.5,\"clients\":[3,1],\"trained\":2,\
         \"seen\":60,\"kept\":40,\"anchor_head\":{{\"all\":null,\"kept\":null}},\
         \"classifier_head\":{{\"all\":null,\"kept\":null}},\"losses\":{{}},\"bytes_down\":1,\
         \"bytes_up\":1}}",
        50.0 + f64::from(round % 40)
    );
    serde_json::from_str(&text).unwrap()
}

fn rounds(run: &LiveRun) -> Vec<u32> {
    run.rounds.iter().map(|round| round.round).collect()
}

#[test]
fn a_run_is_followed_from_before_its_start_to_its_end() {
    let folders = Folders::new();
    let mut follower = Follower::new(folders.path("run"));
    assert!(!follower.poll());
    assert_eq!(follower.run, LiveRun::new(folders.path("run")));

    let mut writer = Writer::start(&folders, "run");
    assert!(follower.poll());
    let run = &follower.run;
    assert_eq!((run.status, run.seed, run.planned), (Status::Running, Some(0), Some(500)));
    assert_eq!(run.heading.as_ref().unwrap().method, "fedanchor");
    assert!(run.rounds.is_empty() && run.remaining(SystemTime::now()).is_none());
    assert!(!follower.poll());

    writer.round(0);
    writer.round(1);
    assert!(follower.poll());
    assert_eq!(rounds(&follower.run), [0, 1]);
    writer.round(2);
    assert!(follower.poll());
    let run = &follower.run;
    assert_eq!(rounds(run), [0, 1, 2]);
    assert_eq!(run.last(), Some(&record(2)));
    assert_eq!(run.timing(1).map(|timing| timing.total), Some(2.0));
    // Three times two seconds, and four in the round that is not done; 498 rounds are left.
    let now = run.recorded.unwrap() + Duration::from_secs(4);
    assert_eq!(run.elapsed(now), Duration::from_secs(10));
    assert_eq!(run.remaining(now), Some(Duration::from_secs(498 * 2 - 4)));

    writer.finish(&folders, "run");
    assert!(follower.poll());
    let run = &follower.run;
    assert_eq!((run.status, rounds(run)), (Status::Finished, vec![0, 1, 2]));
    assert_eq!((run.elapsed(now), run.remaining(now)), (Duration::from_secs(1), None));
    assert!(run.problems.is_empty(), "{:?}", run.problems);
    assert!(!follower.poll());
}

#[test]
fn a_run_whose_process_has_ended_is_stopped() {
    let folders = Folders::new();
    let mut follower = Follower::new(folders.path("run"));
    let mut writer = Writer::start(&folders, "run");
    writer.round(0);
    follower.poll();
    drop(writer);
    assert!(follower.poll());
    assert_eq!(follower.run.status, Status::Stopped);
    assert!(follower.run.remaining(SystemTime::now()).is_none());
    // A follower does not prevent a resume.
    let mut writer = Writer::start(&folders, "run");
    writer
        .checksums
        .accepts(fs_err::read_to_string(folders.path("run/rounds.jsonl")).unwrap().trim_end());
    writer.round(1);
    assert!(follower.poll());
    assert_eq!((follower.run.status, rounds(&follower.run)), (Status::Running, vec![0, 1]));
}

#[test]
fn half_a_line_is_waited_for() {
    let folders = Folders::new();
    let mut follower = Follower::new(folders.path("run"));
    let mut writer = Writer::start(&folders, "run");
    writer.round(0);
    let line = writer.checksums.seal(&serde_json::to_string(&record(1)).unwrap());
    writer.write(&line[..40]);
    follower.poll();
    assert_eq!(rounds(&follower.run), [0]);
    assert!(follower.run.problems.is_empty());
    writer.write(format!("{}\n", &line[40..]));
    assert!(follower.poll());
    assert_eq!(rounds(&follower.run), [0, 1]);
    // Of a run that was killed, the other half will not come.
    writer.write("{\"round\":2,");
    drop(writer);
    follower.poll();
    assert_eq!(follower.run.problems, ["rounds.jsonl: the last line is incomplete"]);
}

#[test]
fn a_resumed_run_is_read_again_where_it_differs() {
    let folders = Folders::new();
    let mut follower = Follower::new(folders.path("run"));
    let mut writer = Writer::start(&folders, "run");
    (0..4).for_each(|round| writer.round(round));
    follower.poll();
    // Cut to two rounds.
    let text = fs_err::read_to_string(folders.path("run/rounds.jsonl")).unwrap();
    let two: usize = text.split_inclusive('\n').take(2).map(str::len).sum();
    writer.records.set_len(two as u64).unwrap();
    assert!(follower.poll());
    assert_eq!(rounds(&follower.run), [0, 1]);
    writer.checksums = Checksums::default();
    assert!(text.lines().take(2).all(|line| writer.checksums.accepts(line)));
    writer.round(2);
    assert!(follower.poll());
    assert_eq!(rounds(&follower.run), [0, 1, 2]);
    // Another run in its place.
    drop(writer);
    fs_err::remove_dir_all(folders.path("run")).unwrap();
    let mut other = Writer::start(&folders, "run");
    other.round(0);
    assert!(follower.poll());
    assert_eq!(rounds(&follower.run), [0]);
    assert_eq!(follower.run.timings.len(), 1);
}

#[test]
fn a_folder_that_is_removed_is_missing() {
    let folders = Folders::new();
    let mut follower = Follower::new(folders.path("run"));
    let mut writer = Writer::start(&folders, "run");
    writer.round(0);
    writer.finish(&folders, "run");
    follower.poll();
    fs_err::remove_dir_all(folders.path("run")).unwrap();
    assert!(follower.poll());
    assert_eq!(follower.run, LiveRun::new(folders.path("run")));
    assert!(!follower.poll());
}

#[test]
fn damage_is_named_and_what_is_before_it_is_shown() {
    let folders = Folders::new();
    let mut follower = Follower::new(folders.path("run"));
    let mut writer = Writer::start(&folders, "run");
    writer.round(0);
    writer.write("{\"round\":1}\n");
    writer.round(2);
    writer.timing("{\"round\":\n");
    fs_err::write(folders.path("run/config.toml"), "seed = 1\n[data").unwrap();
    fs_err::write(folders.path("run/summary.json"), "{}").unwrap();
    assert!(follower.poll());
    assert_eq!(rounds(&follower.run), [0]);
    assert_eq!(follower.run.timings.len(), 2);
    let starts = [
        "config.toml: line 2: ",
        "rounds.jsonl: line 2: missing field `test_accuracy`",
        "timings.jsonl: line 3 is incomplete",
        "summary.json: missing field",
    ];
    let problems = &follower.run.problems;
    assert_eq!(problems.len(), starts.len(), "{problems:?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem}");
    }
    assert!(problems[1].ends_with(": shown up to round 0"), "{}", problems[1]);
    assert!(!follower.poll());
    // A repaired file is read again.
    fs_err::remove_file(folders.path("run/summary.json")).unwrap();
    assert!(follower.poll());
    assert_eq!(follower.run.problems.len(), 3);
}

#[test]
fn a_folder_in_place_of_a_file_is_named() {
    let folders = Folders::new();
    fs_err::create_dir_all(folders.path("run/rounds.jsonl")).unwrap();
    fs_err::create_dir_all(folders.path("run/config.toml")).unwrap();
    let mut follower = Follower::new(folders.path("run"));
    assert!(follower.poll());
    let problems = &follower.run.problems;
    assert!(problems[0].ends_with("config.toml: not a file"), "{problems:?}");
    assert!(problems[1].ends_with("rounds.jsonl: not a file"), "{problems:?}");
    assert!(!follower.poll());
}

/// Looks often enough to search the folder again.
fn look(followers: &mut Followers) {
    (0..4).for_each(|_| {
        followers.poll();
    });
}

#[test]
fn the_runs_of_a_sweep_appear_as_they_start() {
    let folders = Folders::new();
    let mut followers = Followers::new(folders.path("sweep"));
    assert!(!followers.poll());
    let names = |followers: &Followers| -> Vec<String> {
        let paths = followers.runs.iter().map(|follower| follower.run.path.clone());
        paths.map(|path| folders.relative(&path.display().to_string())).collect()
    };
    let mut first = Writer::start(&folders, "sweep/a/seed0");
    first.round(0);
    let earlier = SystemTime::now() - Duration::from_secs(60);
    let config = File::options().write(true).open(folders.path("sweep/a/seed0/config.toml"));
    config.unwrap().set_modified(earlier).unwrap();
    assert!(followers.poll());
    assert_eq!(names(&followers), ["RUNS/sweep/a/seed0"]);
    first.finish(&folders, "sweep/a/seed0");
    let config = File::options().write(true).open(folders.path("sweep/a/seed0/config.toml"));
    config.unwrap().set_modified(earlier).unwrap();
    let _second = Writer::start(&folders, "sweep/a/seed1");
    look(&mut followers);
    assert_eq!(names(&followers), ["RUNS/sweep/a/seed1", "RUNS/sweep/a/seed0"]);
    let status: Vec<Status> = followers.runs.iter().map(|run| run.run.status).collect();
    assert_eq!(status, [Status::Running, Status::Finished]);
    fs_err::remove_dir_all(folders.path("sweep/a/seed1")).unwrap();
    look(&mut followers);
    assert_eq!(names(&followers), ["RUNS/sweep/a/seed0"]);
    fs_err::remove_dir_all(folders.path("sweep")).unwrap();
    look(&mut followers);
    assert!(followers.runs.is_empty() && followers.problem.is_none());
}

#[test]
fn what_cannot_be_searched_is_named() {
    let folders = Folders::new();
    fs_err::write(folders.path("file"), "").unwrap();
    let mut followers = Followers::new(folders.path("file"));
    assert!(followers.poll());
    assert!(followers.problem.as_ref().unwrap().contains("/file"), "{:?}", followers.problem);
    assert!(!followers.poll());
}

proptest! {
    /// Whatever is in the files, in whatever pieces it arrives: the rounds that are read are the same.
    #[test]
    fn pieces_of_any_bytes_are_read_as_the_whole(
        start in 0usize..4,
        damage in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(0usize..3000, 0..6),
    ) {
        let folders = Folders::new();
        let mut writer = Writer::start(&folders, "whole");
        (0..start as u32).for_each(|round| writer.round(round));
        writer.write(&damage);
        let bytes = fs_err::read(folders.path("whole/rounds.jsonl")).unwrap();
        let mut whole = Follower::new(folders.path("whole"));
        whole.poll();
        prop_assert!(whole.run.rounds.len() >= start);

        let mut writer = Writer::start(&folders, "pieces");
        let mut pieces = Follower::new(folders.path("pieces"));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort();
        for pair in cuts.windows(2) {
            writer.write(&bytes[pair[0]..pair[1]]);
            pieces.poll();
        }
        prop_assert_eq!(&pieces.run.rounds, &whole.run.rounds);
        prop_assert_eq!(&pieces.run.problems, &whole.run.problems);
    }
}
