//! One line per round, and in a terminal a bar below them.

use super::{POLL, header, name, state_line};
use crate::commands::progress::{self, after_bar};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_record::RoundRecord;
use fedanchor_record::words::printable;
use fedanchor_report::{Followers, LiveRun, Status};
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Looks at a folder of several runs without one in progress before this ends: the next run of a sweep does not start at
/// once.
const PATIENCE: u32 = 60;

/// Prints the rounds of all runs as they come, until the runs end.
pub(super) fn follow(mut followers: Followers, printer: &Printer) -> Result<()> {
    let mut log = Log::default();
    let bar = match std::io::stdout().is_terminal() {
        true => printer.round_bar(0),
        false => ProgressBar::hidden(),
    };
    // Until there is a round.
    bar.finish_and_clear();
    loop {
        let now = SystemTime::now();
        let runs: Vec<&LiveRun> = followers.runs.iter().map(|follower| &follower.run).collect();
        let lines = log.news(&followers.folder, &runs, now);
        let read = bar.suspend(|| {
            lines.into_iter().all(|line| match line {
                Line::Result(text) => printer.try_line(&text),
                Line::Note(text) => {
                    printer.status(text);
                    true
                }
            })
        });
        show(&bar, &runs, now);
        // The reader of the lines may have gone away.
        if !read || log.is_over(&followers.folder, &runs)? {
            return Ok(());
        }
        std::thread::sleep(POLL);
        followers.poll();
    }
}

/// Shows the newest run in progress on the bar.
fn show(bar: &ProgressBar, runs: &[&LiveRun], now: SystemTime) {
    let running = runs.iter().find(|run| run.status == Status::Running);
    let Some((run, last)) = running.and_then(|run| Some((run, run.last()?))) else {
        bar.finish_and_clear();
        return;
    };
    if bar.is_finished() {
        bar.reset();
    }
    bar.set_length(run.planned.unwrap_or(last.round).into());
    bar.set_message(after_bar(last, run.timing(last.round), run.remaining(now)));
    bar.set_position(last.round.into());
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
    waiting: bool,
    /// Whether a run was in progress at any look, and the looks since without one.
    seen_running: bool,
    idle: u32,
}

#[derive(Debug, Default)]
struct Printed {
    header: bool,
    rounds: Vec<RoundRecord>,
    problems: Vec<String>,
    end: bool,
}

impl Log {
    /// The new lines, those of the run that was started first before the others.
    fn news(&mut self, folder: &Path, runs: &[&LiveRun], now: SystemTime) -> Vec<Line> {
        let mut lines = Vec::new();
        if runs.is_empty() && !self.waiting {
            self.waiting = true;
            lines.push(Line::Note(format!("waiting for a run in {}", folder.display())));
        }
        for run in runs.iter().rev() {
            let single = run.path == folder;
            let printed = self.runs.entry(run.path.clone()).or_insert_with(|| {
                // Of the runs of a sweep that ended before, only the end is printed.
                let over = !single && has_ended(run);
                let rounds = if over { run.rounds.clone() } else { Vec::new() };
                Printed { header: over, rounds, ..Printed::default() }
            });
            if !printed.header && (run.heading.is_some() || !run.rounds.is_empty()) {
                printed.header = true;
                lines.push(Line::Result(header(run, folder)));
            }
            let prefix = if single { String::new() } else { format!("{}: ", name(run, folder)) };
            printed.news(run, &prefix, now, &mut lines);
        }
        lines
    }

    /// Whether there is nothing to wait for; an error if the folder is gone.
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
            lines.push(note(&format!("rounds {} and later were repeated", run.rounds[same].round)));
            self.rounds.truncate(same);
        }
        let new = run.rounds.get(self.rounds.len()..).unwrap_or_default();
        for (index, record) in new.iter().enumerate() {
            let (timing, is_last) = (run.timing(record.round), index + 1 == new.len());
            // The timing is written right after the record.
            if timing.is_none() && is_last && !has_ended(run) {
                break;
            }
            lines
                .extend(progress::notes(record).iter().chain(&record.notes).map(|text| note(text)));
            let left = if is_last { run.remaining(now) } else { None };
            let text = progress::line(record, timing, run.planned, left);
            lines.push(Line::Result(format!("{prefix}{text}")));
            self.rounds.push(record.clone());
        }
        let problems = run.problems.iter().filter(|problem| !self.problems.contains(problem));
        lines.extend(problems.map(|problem| note(problem)));
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
    use crate::commands::watch::fixtures::{record, run};
    use fedanchor_report::{Follower, Heading, Partition};
    use proptest::prelude::*;

    /// What is printed; notes start with `#`.
    fn news(log: &mut Log, runs: &[&LiveRun]) -> Vec<String> {
        let lines = log.news(Path::new("runs"), runs, SystemTime::UNIX_EPOCH).into_iter();
        let text = lines.map(|line| match line {
            Line::Result(text) => text,
            Line::Note(text) => format!("# {text}"),
        });
        text.collect()
    }

    const HEADER: &str = "runs: unknown experiment: 4 rounds";
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
        let left = ", 0:06 left";
        assert_eq!(news(&mut log, &[&one]), [HEADER, PRETRAINED, &(round(1) + left)]);
        assert!(news(&mut log, &[&one]).is_empty());
        // A round whose timing is on its way is waited for, unless there is a later one.
        one.rounds.push(record(2));
        assert!(news(&mut log, &[&one]).is_empty());
        one.rounds.push(record(3));
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
    fn the_header_describes_the_run() {
        let mut known = run("runs/a", 0);
        known.heading = Some(Heading {
            data: "cifar10".to_owned(),
            model: "small".to_owned(),
            anchors: 500,
            partition: Partition::Iid,
            method: "fedanchor".to_owned(),
            preset: "paper".to_owned(),
        });
        known.seed = Some(1);
        let wanted = "a: fedanchor on cifar10: 500 anchors, small, seed 1, 4 rounds";
        let mut log = Log::default();
        assert_eq!(news(&mut log, &[&known]), [wanted]);
        assert!(news(&mut log, &[&known]).is_empty());
    }

    #[test]
    fn rounds_that_are_cut_off_and_repeated_are_printed_only_if_they_differ() {
        let mut log = Log::default();
        news(&mut log, &[&run("runs", 5)]);
        assert!(news(&mut log, &[&run("runs", 2)]).is_empty());
        assert!(news(&mut log, &[&run("runs", 5)]).is_empty());
        let mut other = run("runs", 5);
        other.rounds[3].test_accuracy = 60.0;
        let repeated = "# note: rounds 3 and later were repeated";
        let third = "round 3/4: accuracy 60.00 %, 2.0 s";
        assert_eq!(news(&mut log, &[&other]), [repeated, third, &round(4)]);
    }

    #[test]
    fn notes_are_printed_before_their_round() {
        let mut noted = run("runs", 5);
        noted.rounds[4].notes = vec!["it does\u{1b}[2J not learn".to_owned()];
        noted.rounds[4].excluded = vec![7];
        noted.problems = vec!["timings.jsonl: line 3: damaged".to_owned()];
        let wanted = [
            "# note: round 4: excluded from further rounds: client 7",
            "# note: it does\u{fffd}[2J not learn",
            &round(4),
            "# note: timings.jsonl: line 3: damaged",
        ];
        let mut log = Log::default();
        assert_eq!(news(&mut log, &[&noted])[5..], wanted);
        assert!(news(&mut log, &[&noted]).is_empty());
    }

    #[test]
    fn runs_of_a_sweep_have_their_names_before_their_lines() {
        let (folder, mut log) = (Path::new("runs"), Log::default());
        let mut done = run("runs/a/seed0", 5);
        done.status = Status::Finished;
        let mut running = run("runs/a/seed1", 1);
        let end = "runs/a/seed0: unknown experiment: finished, round 4 of 4, accuracy 50.00 %, 0:10 elapsed";
        let header = "a/seed1: unknown experiment: 4 rounds";
        let first = format!("a/seed1: {PRETRAINED}");
        assert_eq!(news(&mut log, &[&running, &done]), [end, header, &first]);
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

    proptest! {
        /// Whatever bytes are in the records, lines have no control characters, and every round is printed or a problem
        /// named.
        #[test]
        fn any_records_give_lines(
            good in 0u32..4,
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                ".{0,200}".prop_map(String::into_bytes),
                mutated(),
            ],
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut text = Vec::new();
            for round in 0..good {
                text.extend(serde_json::to_vec(&record(round)).unwrap());
                text.push(b'\n');
            }
            text.extend(&bytes);
            std::fs::write(folder.path().join("rounds.jsonl"), &text).unwrap();
            std::fs::write(folder.path().join("timings.jsonl"), &bytes).unwrap();
            let mut follower = Follower::new(folder.path().to_owned());
            follower.poll();
            let run = &follower.run;
            prop_assert!(run.rounds.len() >= good as usize);
            let lines = news(&mut Log::default(), &[run]);
            prop_assert!(!lines.iter().any(|line| line.contains(char::is_control)), "{lines:?}");
            let shown = text.iter().filter(|&&byte| byte == b'\n').count() == run.rounds.len();
            let is_whole = shown && (text.is_empty() || text.ends_with(b"\n"));
            prop_assert!(is_whole || !run.problems.is_empty());
        }
    }

    /// A record with numbers of any size and a byte changed.
    fn mutated() -> impl Strategy<Value = Vec<u8>> {
        let numbers = (any::<f64>(), any::<u32>(), any::<usize>(), any::<usize>());
        (numbers, any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
            |((accuracy, round, seen, kept), place, byte, change)| {
                let numbers = RoundRecord { test_accuracy: accuracy, seen, kept, ..record(round) };
                let mut line = serde_json::to_vec(&numbers).unwrap();
                if change {
                    let place = place.index(line.len());
                    line[place] = byte;
                }
                line.push(b'\n');
                line
            },
        )
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
