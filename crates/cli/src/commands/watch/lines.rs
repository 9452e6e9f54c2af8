//! One plain line per round, where standard output is no terminal.

use super::POLL;
use super::text::{name, state_line};
use crate::commands::round_text;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_record::RoundRecord;
use fedanchor_record::words::printable;
use fedanchor_report::{Followers, LiveRun, Status};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Looks at a folder of several runs without one in progress before it is left: the next run of a sweep does
/// not start at once.
const PATIENCE: u32 = 60;

/// Prints the rounds of all runs as they come, until the runs end.
pub(super) fn follow(mut followers: Followers, printer: &Printer) -> Result<()> {
    let mut log = Log::default();
    loop {
        let runs: Vec<&LiveRun> = followers.runs().iter().map(|follower| follower.run()).collect();
        for line in log.news(followers.folder(), &runs, SystemTime::now()) {
            match line {
                // Nobody reads any more.
                Line::Result(text) if !printer.try_line(&text) => return Ok(()),
                Line::Result(_) => {}
                Line::Note(text) => printer.status(text),
            }
        }
        if log.is_over(followers.folder(), &runs)? {
            return Ok(());
        }
        std::thread::sleep(POLL);
        followers.poll();
    }
}

/// A line to print.
#[derive(Debug, PartialEq)]
enum Line {
    /// To standard output.
    Result(String),
    /// To standard error.
    Note(String),
}

/// What was printed.
#[derive(Debug, Default)]
struct Log {
    runs: BTreeMap<PathBuf, Printed>,
    said_waiting: bool,
    /// Whether a run was in progress at any look, and the looks since without one.
    seen_running: bool,
    idle: u32,
}

#[derive(Debug, Default)]
struct Printed {
    rounds: Vec<RoundRecord>,
    problems: Vec<String>,
    end: bool,
}

impl Log {
    /// The lines that are new, the run that was started first first.
    fn news(&mut self, folder: &Path, runs: &[&LiveRun], now: SystemTime) -> Vec<Line> {
        let mut lines = Vec::new();
        if runs.is_empty() && !self.said_waiting {
            self.said_waiting = true;
            let folder = printable(&folder.display().to_string());
            lines.push(Line::Note(format!("waiting for a run in {folder}")));
        }
        for run in runs.iter().rev() {
            let single = run.path == folder;
            let prefix = if single { String::new() } else { format!("{}: ", name(run, folder)) };
            let known = self.runs.contains_key(&run.path);
            let printed = self.runs.entry(run.path.clone()).or_default();
            if !known && !single && has_ended(run) {
                // Of a sweep, what was done before is in its folders.
                printed.rounds.clone_from(&run.rounds);
            }
            printed.news(run, &prefix, now, &mut lines);
        }
        lines
    }

    /// Whether there is nothing to wait for; an error if what was watched is gone.
    fn is_over(&mut self, folder: &Path, runs: &[&LiveRun]) -> Result<bool> {
        if runs.is_empty() && !self.runs.is_empty() {
            bail!("{}: was removed", folder.display());
        }
        if runs.is_empty() || runs.iter().any(|run| !has_ended(run)) {
            (self.seen_running, self.idle) = (!runs.is_empty(), 0);
            return Ok(false);
        }
        let single = matches!(runs, [run] if run.path == folder);
        self.idle += 1;
        Ok(single || !self.seen_running || self.idle > PATIENCE)
    }
}

impl Printed {
    fn news(&mut self, run: &LiveRun, prefix: &str, now: SystemTime, lines: &mut Vec<Line>) {
        let note = |text: &str| Line::Note(printable(&format!("note: {prefix}{text}")));
        let same = self.rounds.iter().zip(&run.rounds).take_while(|(a, b)| a == b).count();
        if same < self.rounds.len().min(run.rounds.len()) {
            let round = run.rounds[same].round;
            lines.push(note(&format!("round {round} and those after it were repeated")));
            self.rounds.truncate(same);
        }
        let new = run.rounds.get(self.rounds.len()..).unwrap_or_default();
        for (index, record) in new.iter().enumerate() {
            let timing = run.timing(record.round);
            // The timing is written right after the record.
            if timing.is_none() && index + 1 == new.len() && !has_ended(run) {
                break;
            }
            for text in round_text::notes(record) {
                lines.push(note(&format!("round {}: {text}", record.round)));
            }
            lines.extend(record.notes.iter().map(|text| note(text)));
            let text = round_text::line(record, timing, run.planned);
            lines.push(Line::Result(format!("{prefix}{text}")));
            self.rounds.push(record.clone());
        }
        for problem in run.problems.iter().filter(|problem| !self.problems.contains(problem)) {
            lines.push(note(problem));
        }
        self.problems.clone_from(&run.problems);
        if has_ended(run) && !self.end {
            lines.push(Line::Result(state_line(run, now)));
        }
        self.end = has_ended(run);
    }
}

fn has_ended(run: &LiveRun) -> bool {
    matches!(run.status, Status::Finished | Status::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::watch::fixtures;
    use fedanchor_record::LabelAccuracy;

    fn record(round: u32, accuracy: f64) -> RoundRecord {
        RoundRecord {
            test_accuracy: accuracy,
            validation_accuracy: None,
            anchor_head: LabelAccuracy::default(),
            classifier_head: LabelAccuracy::default(),
            seen: 0,
            ..fixtures::record(round)
        }
    }

    /// A run of an unknown experiment in progress, with rounds 0 to `rounds - 1`.
    fn run(path: &str, rounds: u32) -> LiveRun {
        let mut run = fixtures::run(rounds);
        run.timings.iter_mut().for_each(|timing| timing.total = 2.0);
        LiveRun {
            path: path.into(),
            heading: None,
            seed: None,
            planned: Some(4),
            rounds: (0..rounds).map(|round| record(round, 50.0)).collect(),
            ..run
        }
    }

    /// What is printed; notes start with `#`.
    fn news(log: &mut Log, runs: &[&LiveRun]) -> Vec<String> {
        let lines = log.news(Path::new("runs"), runs, SystemTime::UNIX_EPOCH).into_iter();
        let text = lines.map(|line| match line {
            Line::Result(text) => text,
            Line::Note(text) => format!("# {text}"),
        });
        text.collect()
    }

    const PRETRAINED: &str = "pre-trained: accuracy 50.00 %, 2.0 s";

    fn round(round: u32) -> String {
        format!("round {round}/4: accuracy 50.00 %, 2.0 s")
    }

    #[test]
    fn rounds_are_printed_as_they_come() {
        let mut log = Log::default();
        assert_eq!(news(&mut log, &[]), ["# waiting for a run in runs"]);
        assert!(news(&mut log, &[]).is_empty() && !log.is_over(Path::new("runs"), &[]).unwrap());
        let mut one = run("runs", 2);
        assert_eq!(news(&mut log, &[&one]), [PRETRAINED, &round(1)]);
        assert!(news(&mut log, &[&one]).is_empty());
        // A round whose timing is on its way is waited for, unless there is a later one.
        one.rounds.push(record(2, 50.0));
        assert!(news(&mut log, &[&one]).is_empty());
        one.rounds.push(record(3, 50.0));
        assert_eq!(news(&mut log, &[&one]), ["round 2/4: accuracy 50.00 %"]);
        assert!(!log.is_over(Path::new("runs"), &[&one]).unwrap());
        one.status = Status::Stopped;
        let end = "runs: unknown experiment: stopped, round 3 of 4, accuracy 50.00 %, 0:04 elapsed; \
                   resume with `fedanchor run --resume runs`";
        assert_eq!(news(&mut log, &[&one]), ["round 3/4: accuracy 50.00 %", end]);
        assert!(log.is_over(Path::new("runs"), &[&one]).unwrap());
        assert!(news(&mut log, &[&one]).is_empty());
    }

    #[test]
    fn rounds_that_are_cut_off_and_repeated_are_printed_only_if_they_differ() {
        let mut log = Log::default();
        news(&mut log, &[&run("runs", 4)]);
        assert!(news(&mut log, &[&run("runs", 2)]).is_empty());
        assert!(news(&mut log, &[&run("runs", 4)]).is_empty());
        let mut other = run("runs", 4);
        other.rounds[2] = record(2, 60.0);
        let repeated = "# note: round 2 and those after it were repeated";
        let second = "round 2/4: accuracy 60.00 %, 2.0 s";
        assert_eq!(news(&mut log, &[&other]), [repeated, second, &round(3)]);
    }

    #[test]
    fn notes_are_printed_before_their_round() {
        let mut noted = run("runs", 2);
        noted.rounds[1].notes = vec!["it does\u{1b}[2J not learn".to_owned()];
        noted.rounds[1].excluded = vec![7];
        noted.problems = vec!["timings.jsonl: line 3: damaged".to_owned()];
        let wanted = [
            PRETRAINED,
            "# note: round 1: excluded from further rounds: client 7",
            "# note: it does\u{fffd}[2J not learn",
            &round(1),
            "# note: timings.jsonl: line 3: damaged",
        ];
        let mut log = Log::default();
        assert_eq!(news(&mut log, &[&noted]), wanted);
        assert!(news(&mut log, &[&noted]).is_empty());
    }

    #[test]
    fn runs_of_a_sweep_have_their_names_before_their_lines() {
        let (folder, mut log) = (Path::new("runs"), Log::default());
        let mut done = run("runs/a/seed0", 5);
        done.status = Status::Finished;
        let mut running = run("runs/a/seed1", 1);
        let end = "runs/a/seed0: unknown experiment: finished, round 4 of 4, accuracy 50.00 %, 0:10 elapsed";
        let first = format!("a/seed1: {PRETRAINED}");
        assert_eq!(news(&mut log, &[&running, &done]), [end, &first]);
        assert!(!log.is_over(folder, &[&running, &done]).unwrap());
        running.status = Status::Finished;
        assert_eq!(news(&mut log, &[&running, &done]).len(), 1);
        // The next one may be on its way.
        for _ in 0..PATIENCE {
            assert!(!log.is_over(folder, &[&running, &done]).unwrap());
        }
        assert!(log.is_over(folder, &[&running, &done]).unwrap());
        // A sweep that was over before is not waited for.
        assert!(Log::default().is_over(folder, &[&running, &done]).unwrap());
    }

    #[test]
    fn a_folder_that_is_removed_is_an_error() {
        let mut log = Log::default();
        news(&mut log, &[&run("runs", 1)]);
        assert_eq!(
            log.is_over(Path::new("runs"), &[]).unwrap_err().to_string(),
            "runs: was removed"
        );
    }
}
