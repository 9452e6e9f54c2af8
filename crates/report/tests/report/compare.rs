//! Comparisons of two experiments.

use crate::folders::{Folders, Made};
use fedanchor_record::{Checksums, Timing, files};
use fedanchor_report::{
    Average, Comparison, Evidence, Reached, ReportError, compare, comparison_text,
};

/// A run with these test accuracies from round 0 on, of which it had planned `planned` rounds. A round costs 100
/// bytes down and 20 up and takes `seconds`; pre-training costs no bytes and takes 1.5 s.
struct Run<'a> {
    name: &'a str,
    seed: u64,
    accuracies: &'a [f64],
    planned: usize,
    seconds: f64,
    changes: &'a [(&'a str, &'a str)],
}

/// A finished one whose rounds take two seconds.
fn finished<'a>(name: &'a str, seed: u64, accuracies: &'a [f64]) -> Run<'a> {
    Run { name, seed, accuracies, planned: accuracies.len() - 1, seconds: 2.0, changes: &[] }
}

impl Run<'_> {
    fn write(&self, folders: &Folders) {
        let rounds = self.accuracies.len() - 1;
        let (seed, planned) =
            (format!("seed = {}", self.seed), format!("rounds = {}", self.planned));
        let mut changes = vec![("seed = 0", seed.as_str()), ("rounds = 500", planned.as_str())];
        changes.extend(self.changes);
        let made = Made { changes: &changes, last: 0.0, best: 0.0, rounds: Some(rounds as u32) };
        folders.make(self.name, made);
        let mut checksums = Checksums::default();
        let (mut records, mut timings) = (String::new(), String::new());
        for (round, accuracy) in self.accuracies.iter().enumerate() {
            let (down, up) = if round == 0 { (0, 0) } else { (100, 20) };
            let record = format!(
                r#"{{"round":{round},"test_accuracy":{accuracy},"test_loss":1.0,"clients":[],"trained":0,"seen":0,"kept":0,"anchor_head":{{}},"classifier_head":{{}},"losses":{{}},"bytes_down":{down},"bytes_up":{up}}}"#
            );
            records += &(checksums.seal(&record) + "\n");
            let total = if round == 0 { 1.5 } else { self.seconds };
            let timing = Timing { round: round as u32, total, ..Timing::default() };
            timings += &(serde_json::to_string(&timing).unwrap() + "\n");
        }
        let folder = folders.path(self.name);
        fs_err::write(folder.join(files::ROUNDS), records).unwrap();
        fs_err::write(folder.join(files::TIMINGS), timings).unwrap();
    }
}

fn compared(folders: &Folders, accuracy: Option<f64>) -> Result<Comparison, ReportError> {
    compare(&folders.path("a"), &folders.path("b"), accuracy, &|_| None)
}

fn refused(folders: &Folders, a: &str, b: &str) -> String {
    let error = compare(&folders.path(a), &folders.path(b), None, &|_| None).unwrap_err();
    folders.relative(&error.to_string())
}

fn notes(folders: &Folders, comparison: &Comparison) -> Vec<String> {
    comparison.notes.iter().map(|note| folders.relative(note)).collect()
}

fn average(mean: f64) -> Average {
    Average { mean, std: Some(0.0) }
}

const BATCH: &[(&str, &str)] = &[("batch = 10", "batch = 32")];

/// Twelve rounds each, three seeds, of which the last ten rounds are flat but for one point.
fn three_pairs() -> Folders {
    let folders = Folders::new();
    for (seed, a, b) in [(0, 70.0, 73.0), (1, 72.0, 74.5), (2, 69.0, 72.75)] {
        for (side, level, changes) in [("a", a, &[][..]), ("b", b, BATCH)] {
            // Round 0, two rounds that the last ten do not contain, nine flat ones and the last.
            let mut accuracies = vec![10.0, 20.0, 40.0];
            accuracies.extend([level; 9]);
            accuracies.push(level + 1.0);
            let name = format!("{side}/seed{seed}");
            let seconds = if side == "a" { 2.0 } else { 3.0 };
            Run { seconds, changes, ..finished(&name, seed, &accuracies) }.write(&folders);
        }
    }
    folders
}

#[test]
fn pairs_are_compared_in_all_they_have() {
    let folders = three_pairs();
    let comparison = compared(&folders, None).unwrap();
    let Comparison { a, b, settings, .. } = &comparison;
    let settings: Vec<String> =
        settings.iter().map(|one| format!("{} {:?} {:?}", one.key, one.a, one.b)).collect();
    assert_eq!(settings, [r#"client.batch Some("10") Some("32")"#]);
    assert_eq!((comparison.up_to_round, comparison.notes.len()), (None, 0));
    assert_eq!(a.runs.iter().map(|run| run.seed).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(a.runs.iter().chain(&b.runs).all(|run| run.finished && run.rounds == 12));

    // A: 71, 73, 70; the mean 71.33 is the lower one.
    assert!((a.final_accuracy.mean - 214.0 / 3.0).abs() < 1e-9);
    assert!((a.last_ten.mean - (211.0 / 3.0 + 0.1)).abs() < 1e-9);
    assert_eq!((comparison.accuracy, comparison.accuracy_given), (71.0, false));
    // Seed 0 of A reaches 71 % in its last round, seed 1 in round 3, and seed 2 never does.
    let reached: Vec<_> = a.runs.iter().map(|run| run.reached).collect();
    let first = Reached { round: 12, bytes: 1440, seconds: Some(25.5) };
    let second = Reached { round: 3, bytes: 360, seconds: Some(7.5) };
    assert_eq!(reached, [Some(first), Some(second), None]);
    assert_eq!((a.runs_with_accuracy, b.runs_with_accuracy), (2, 3));
    assert_eq!(a.rounds_to_accuracy.unwrap().mean, 7.5);
    assert_eq!(a.bytes_to_accuracy.unwrap().mean, 900.0);
    assert_eq!(a.seconds_to_accuracy.unwrap().mean, 16.5);
    assert_eq!(b.seconds_to_accuracy, Some(average(10.5)));
    assert_eq!((a.bytes, b.bytes), (average(1440.0), average(1440.0)));
    assert_eq!((a.seconds_per_round, a.seconds), (Some(average(2.0)), Some(average(25.5))));
    assert_eq!((b.seconds_per_round, b.seconds), (Some(average(3.0)), Some(average(37.5))));

    // SciPy 1.17.1: scipy.stats.ttest_rel([74, 75.5, 73.75], [71, 73, 70]); the last ten differ by the same.
    for difference in [&comparison.final_accuracy, &comparison.last_ten] {
        let Evidence::Paired { seeds, result: Some(test) } = &difference.evidence else {
            panic!("{difference:?}")
        };
        assert_eq!(seeds, &[0, 1, 2]);
        assert!((difference.mean - 9.25 / 3.0).abs() < 1e-9);
        for (found, expected) in [
            (test.t, 8.488382153210786),
            (test.p, 0.013596339246753486),
            (test.low, 1.5204309634893898),
            (test.high, 4.646235703177277),
        ] {
            assert!((found - expected).abs() < 1e-9, "{found} and {expected}");
        }
        assert!(test.significant);
    }
}

#[test]
fn the_text_says_it_all() {
    let folders = three_pairs();
    let text = |comparison: &Comparison| folders.relative(&comparison_text(comparison));
    let whole = text(&compared(&folders, None).unwrap());
    let expected = [
        "A  RUNS/a  fedanchor, seeds 0, 1, 2",
        "B  RUNS/b  fedanchor, seeds 0, 1, 2",
        "",
        "setting that differs  A   B",
        "client.batch          10  32",
        "",
        "                                    A                       B             from A to B",
        "test accuracy (%), last ten rounds  70.43 ± 1.53            73.52 ± 0.95  +3.08",
        "test accuracy (%), final round      71.33 ± 1.53            74.42 ± 0.95  +3.08",
        "rounds to 71 %                      7.5 (2 of 3 seeds)      3.0",
        "traffic to 71 %                     900 B (2 of 3 seeds)    360 B",
        "time to 71 %                        16.50 s (2 of 3 seeds)  10.50 s",
        "traffic in total                    1.41 KiB                1.41 KiB      +0 %",
        "time per round                      2.00 s                  3.00 s        +50 %",
        "time in total                       25.50 s                 37.50 s       +47 %",
        "",
        "last ten rounds: +3.08 points from A to B, more than the seeds' spread (paired t test over 3 seeds: 95 % confidence interval +1.52 to +4.65, p = 0.014)",
        "final round: +3.08 points from A to B, more than the seeds' spread (paired t test over 3 seeds: 95 % confidence interval +1.52 to +4.65, p = 0.014)",
        "",
        "71 % is the lower of both final accuracies, rounded down; --accuracy sets another",
        "means over seeds, ± sample standard deviation; traffic in both directions; time in total with pre-training, per round without",
    ];
    assert_eq!(whole.lines().collect::<Vec<_>>(), expected);
    let given = text(&compared(&folders, Some(99.5)).unwrap());
    let line = |start: &str| given.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    assert_eq!(line("rounds to"), "rounds to 99.5 %                    not reached   not reached");
    assert!(!given.contains("--accuracy"), "{given}");
}

#[test]
fn seeds_that_one_side_lacks_are_named() {
    let folders = three_pairs();
    fs_err::remove_dir_all(folders.path("b/seed1")).unwrap();
    let comparison = compared(&folders, None).unwrap();
    let Evidence::Paired { seeds, result: Some(_) } = &comparison.final_accuracy.evidence else {
        panic!("{comparison:?}")
    };
    assert_eq!(seeds, &[0, 2]);
    assert!((comparison.final_accuracy.mean - 6.75 / 2.0).abs() < 1e-9); // 3 and 3.75
    assert_eq!(
        notes(&folders, &comparison),
        ["seed 1 only in A: part of its means, but not of the differences and their tests"]
    );
    let text = comparison_text(&comparison);
    assert!(text.contains("paired t test over 2 seeds"), "{text}");
    assert!(text.contains("with two pairs, only"), "{text}");

    // One seed in common is no pair to test; Welch's test takes all runs.
    fs_err::remove_dir_all(folders.path("b/seed2")).unwrap();
    let mut seven = vec![10.0; 12];
    seven.push(71.5);
    Run { changes: BATCH, ..finished("b/seed7", 7, &seven) }.write(&folders);
    let comparison = compared(&folders, None).unwrap();
    let Evidence::Welch { result: Some(test) } = &comparison.final_accuracy.evidence else {
        panic!("{comparison:?}")
    };
    // SciPy 1.17.1: scipy.stats.ttest_ind([74, 71.5], [71, 73, 70], equal_var=False).
    assert!((test.degrees - 1.9960454857022338).abs() < 1e-9, "{test:?}");
    assert!((test.p - 0.4523488199235537).abs() < 1e-9, "{test:?}");
    let text = comparison_text(&comparison);
    assert!(text.contains("Welch's t test, unpaired seeds"), "{text}");
    assert!(text.contains("without common seeds"), "{text}");
}

#[test]
fn one_run_each_gives_no_test() {
    let folders = Folders::new();
    finished("a", 0, &[50.0, 60.0, 64.0]).write(&folders);
    Run { changes: BATCH, ..finished("b", 0, &[50.0, 63.0, 62.0]) }.write(&folders);
    let comparison = compared(&folders, Some(62.5)).unwrap();
    assert_eq!(comparison.final_accuracy.mean, -2.0);
    assert_eq!(comparison.last_ten.mean, 0.5); // without pre-training
    assert_eq!(comparison.final_accuracy.evidence, Evidence::TooFewRuns);
    assert_eq!(comparison.a.runs[0].reached.unwrap().round, 2);
    assert_eq!(comparison.b.runs[0].reached.unwrap().round, 1);
    let text = comparison_text(&comparison);
    assert!(text.contains("final round: −2.00 points from A to B; not tested, for lack of seeds"));
    assert!(text.contains("a single run says nothing about the spread between seeds"), "{text}");
}

#[test]
fn finished_runs_are_compared_at_their_own_ends() {
    let folders = Folders::new();
    finished("a", 0, &[50.0, 60.0, 64.0]).write(&folders);
    finished("b", 0, &[50.0, 58.0, 61.0, 66.0]).write(&folders);
    let comparison = compared(&folders, None).unwrap();
    assert_eq!(comparison.final_accuracy.mean, 2.0);
    assert_eq!(comparison.settings[0].key, "rounds");
    assert_eq!(
        notes(&folders, &comparison),
        ["A ran 2 rounds and B 3: each is compared at its own end"]
    );
}

#[test]
fn unfinished_runs_are_compared_up_to_the_last_common_round() {
    let folders = Folders::new();
    finished("a/0", 0, &[50.0, 60.0, 64.0, 70.0]).write(&folders);
    finished("a/1", 1, &[51.0, 61.0, 67.0, 71.0]).write(&folders);
    let stopped = Run { planned: 3, changes: BATCH, ..finished("b/0", 0, &[50.0, 62.0, 65.0]) };
    stopped.write(&folders);
    fs_err::remove_file(folders.path("b/0/summary.json")).unwrap(); // still running
    Run { changes: BATCH, ..finished("b/1", 1, &[49.0, 60.0, 66.0, 90.0]) }.write(&folders);
    let comparison = compared(&folders, None).unwrap();
    assert_eq!(comparison.up_to_round, Some(2));
    assert_eq!(comparison.final_accuracy.mean, 0.0); // 65 - 64 and 66 - 67
    assert_eq!(comparison.accuracy, 65.0);
    assert_eq!(comparison.a.seconds, Some(average(5.5)));
    assert_eq!(comparison.a.bytes, average(240.0));
    let finished: Vec<bool> = comparison.b.runs.iter().map(|run| run.finished).collect();
    assert_eq!(finished, [false, true]);
    assert_eq!(
        notes(&folders, &comparison),
        [
            "not all runs are finished: all are compared up to round 2",
            "unfinished: RUNS/b/0: 2 of 3 rounds"
        ]
    );
    // The run without a summary has no fingerprint of its data; that is no difference.
    assert_eq!(comparison.settings.len(), 1, "{:?}", comparison.settings);
}

#[test]
fn no_run_is_compared_with_itself() {
    let folders = Folders::new();
    finished("a/0", 0, &[50.0, 60.0]).write(&folders);
    finished("a/1", 1, &[50.0, 60.0]).write(&folders);
    finished("b", 0, &[50.0, 60.0]).write(&folders);
    let said = "is on both sides of the comparison: give two different folders";
    assert_eq!(refused(&folders, "a", "a"), format!("RUNS/a/0: {said}"));
    assert_eq!(refused(&folders, "a", "a/1"), format!("RUNS/a/1: {said}"));
    std::os::unix::fs::symlink(folders.path("a"), folders.path("c")).unwrap();
    assert_eq!(refused(&folders, "a/1", "c"), format!("RUNS/c/1: {said}"));
    // Another folder with the same settings is another run.
    let comparison = compared(&folders, None).unwrap();
    assert!(comparison_text(&comparison).contains("no setting differs"));
    // One run per seed: a copy is not a second sample.
    finished("a/2", 1, &[50.0, 90.0]).write(&folders);
    let comparison = compared(&folders, None).unwrap();
    assert_eq!(comparison.a.runs.len(), 2);
    assert_eq!(
        notes(&folders, &comparison)[0],
        "left out: RUNS/a/2: RUNS/a/1 is a run of the same experiment and seed"
    );
}

#[test]
fn a_folder_of_several_experiments_is_refused() {
    let folders = Folders::new();
    finished("a/0", 0, &[50.0, 60.0]).write(&folders);
    finished("a/1", 1, &[50.0, 60.0]).write(&folders);
    Run { changes: BATCH, ..finished("a/2", 0, &[50.0, 60.0]) }.write(&folders);
    let method =
        &[("name = \"fedanchor\"", "name = \"semifl\""), ("anchors = 500", "anchors = 250")];
    Run { changes: method, ..finished("a/3", 0, &[50.0, 60.0]) }.write(&folders);
    finished("b", 0, &[50.0, 60.0]).write(&folders);
    assert_eq!(
        refused(&folders, "a", "b"),
        "RUNS/a: contains runs of 3 experiments: give a folder with the runs of one; found fedanchor, 500 \
         anchors, client.batch=10 (RUNS/a/0 and 1 more); fedanchor, 500 anchors, client.batch=32 (RUNS/a/2); \
         semifl, 250 anchors (RUNS/a/3)"
    );
    fs_err::create_dir(folders.path("empty")).unwrap();
    assert!(refused(&folders, "empty", "b").starts_with("RUNS/empty: contains no run"));
}

#[test]
fn damaged_runs_are_named() {
    let folders = three_pairs();
    let damage = |file: &str, content: &str| fs_err::write(folders.path(file), content).unwrap();
    damage("a/seed0/config.toml", "seed = 1");
    damage("a/seed1/rounds.jsonl", "");
    let records = fs_err::read_to_string(folders.path("a/seed2/rounds.jsonl")).unwrap();
    damage("a/seed2/rounds.jsonl", &records.replace("\"round\":7", "\"round\":8"));
    let comparison = compared(&folders, None).unwrap();
    assert_eq!(comparison.up_to_round, Some(6));
    assert_eq!(
        notes(&folders, &comparison),
        [
            "left out: RUNS/a/seed0: config.toml: missing field `preset`",
            "left out: RUNS/a/seed1: rounds.jsonl: no round was recorded",
            "RUNS/a/seed2: rounds.jsonl: line 8 does not match its checksum: shown up to round 6",
            "not all runs are finished: all are compared up to round 6",
            "unfinished: RUNS/a/seed2: 6 of 12 rounds",
        ]
    );
    fs_err::remove_dir_all(folders.path("a/seed2")).unwrap();
    assert_eq!(
        refused(&folders, "a", "b"),
        "RUNS/a: no run in it can be compared: RUNS/a/seed0: config.toml: missing field `preset`; \
         RUNS/a/seed1: rounds.jsonl: no round was recorded"
    );
}

#[test]
fn time_is_unknown_without_timings() {
    let folders = three_pairs();
    fs_err::remove_file(folders.path("a/seed0/timings.jsonl")).unwrap();
    let text = fs_err::read_to_string(folders.path("b/seed0/timings.jsonl")).unwrap();
    let some: String = text.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs_err::write(folders.path("b/seed0/timings.jsonl"), some).unwrap();
    let comparison = compared(&folders, None).unwrap();
    assert_eq!((comparison.a.seconds_per_round, comparison.b.seconds_per_round), (None, None));
    assert_eq!(comparison.a.runs[0].seconds, Some(1.0)); // of the summary
    assert!(comparison_text(&comparison).contains("time is unknown where"));
}

#[test]
fn other_machines_and_other_data_are_pointed_out() {
    let folders = three_pairs();
    let config = folders.path("b/seed2/config.toml");
    let text = fs_err::read_to_string(&config).unwrap();
    fs_err::write(&config, text.replace("device = \"cpu\"", "device = \"cuda:0\"")).unwrap();
    for seed in 0..3 {
        let summary = folders.path(&format!("b/seed{seed}/summary.json"));
        let text = fs_err::read_to_string(&summary).unwrap();
        fs_err::write(&summary, text.replace("35d6fc94154a", "0123456789ab")).unwrap();
    }
    let comparison = compared(&folders, None).unwrap();
    let [batch, data, device] = &comparison.settings[..] else { panic!("{comparison:?}") };
    assert_eq!((batch.key.as_str(), data.key.as_str()), ("client.batch", "data_fingerprint"));
    assert_eq!((device.key.as_str(), device.b.as_deref()), ("device", Some("cpu, cuda:0")));
    assert!(notes(&folders, &comparison)[0].starts_with("the data sets differ"));
}

#[test]
fn an_accuracy_is_a_percentage() {
    let folders = three_pairs();
    for wrong in [-1.0, 100.5, f64::NAN] {
        let error = compared(&folders, Some(wrong)).unwrap_err().to_string();
        assert_eq!(error, format!("accuracy {wrong}: expected a percentage from 0 to 100"));
    }
}

/// For programs: names of the keys do not change by accident.
#[test]
fn json_has_the_numbers_by_seed() {
    let comparison = compared(&three_pairs(), None).unwrap();
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(json["final_accuracy"]["test"], "paired");
    assert_eq!(json["final_accuracy"]["result"]["significant"], true);
    assert_eq!(json["a"]["runs"][1]["reached"]["round"], 3);
    assert_eq!(json["b"]["seconds_per_round"]["mean"], 3.0);
    assert_eq!(json["settings"][0]["key"], "client.batch");
}
