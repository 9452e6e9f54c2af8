//! Screens as text.

use super::*;
use crate::commands::watch::fixtures::{now, record, run, summary};
use fedanchor_record::{Checksums, ClientNote, LabelAccuracy, Losses, Outcome, files};
use fedanchor_report::{Follower, Status};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::path::Path;

/// Draws one run with this panel; the lines of the screen without trailing space.
fn screen_of(runs: &[&LiveRun], panel: Panel, width: u16, height: u16) -> Vec<String> {
    let view = View {
        folder: Path::new("runs"),
        problem: None,
        runs: runs.to_vec(),
        selected: 0,
        panel,
        help: false,
        colour: true,
        now: now(),
    };
    screen(&view, width, height)
}

fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let row =
        |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn contains(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line.contains(text))
}

#[track_caller]
fn assert_contains(screen: &[String], texts: &[&str]) {
    for text in texts {
        assert!(contains(screen, text), "no `{text}` in\n{}", screen.join("\n"));
    }
}

/// What most people see.
const SCREEN: &str = "\
fedanchor on cifar10  seed 1  round 12 of 40  running  0:26 elapsed, 0:55 left
quick
 Accuracy (%), peak 74.96 in round 12 ──  Pseudo-labels (%) ────────────────────
⠒⠒ test 74.96  •• validation 72.18       ⠒⠒ kept 66.33  •• accuracy 73.31
80│                   ⢀⣀⡠⠄               ++ accuracy of kept 89.42
  │           ⣀⡠⠤⠒⠒⠉⠉⠉⠁•••               90│         +++++++++++++
  │      ⢀⡠⠔⠒⠉•••                          │+++++++++••••••••⢀⣀⣀⣀⠤
55│  ⢀⡠⠔⠊⠁                               55│•••••••••⣀⠤⠤⠤⠔⠒⠊⠉⠁
  │⠤⠒⠁•                                    │   ⢀⣀⠤⠔⠒⠉
30│                                      20│⣀⠤⠊⠁
  └─────────────────────────────────────   └────────────────────────────────────
  0                             round 20   0                            round 20
 Clients  Losses  Seconds  Notes
Round 12: 5 clients drawn, 5 trained, 0 rejected, 0 failed; applied
drawn     3, 17, 4, 98, 51
anchors   97.0 % before the round, 95.5 % after aggregation
traffic   11.77 MiB down, 2.24 MiB up






q quit  Tab panel  ? help
";

#[test]
fn eighty_columns_and_24_rows_are_enough() {
    let screen = screen_of(&[&run(13)], Panel::Clients, 80, 24).join("\n") + "\n";
    assert_eq!(screen, SCREEN, "\n{screen}");
}

#[test]
fn a_tall_terminal_shows_everything_at_once() {
    let screen = screen_of(&[&run(13)], Panel::Clients, 120, 40);
    assert_contains(
        &screen,
        &[
            "fedanchor on cifar10  seed 1  round 12 of 40  running",
            "Accuracy (%), peak 74.96 in round 12",
            "Pseudo-labels (%)",
            "Losses",
            "Seconds per round",
            "Round 12: 5 clients drawn, 5 trained, 0 rejected, 0 failed; applied",
        ],
    );
}

#[test]
fn a_small_terminal_shows_the_most_important() {
    let screen = screen_of(&[&run(13)], Panel::Clients, 40, 12);
    assert_contains(
        &screen,
        &["fedanchor on cifar10", "round 12 of 40", "running", "Accuracy", "Round 12: "],
    );
    assert!(!contains(&screen, "Pseudo-labels"));
    // Less than that is no reason to fail.
    let several = [&run(3), &run(0)];
    for width in [1, 2, 3, 7, 15, 29, 69, 70, 200] {
        for height in [1, 2, 3, 5, 8, 13, 35, 36, 100] {
            for panel in Panel::all(true) {
                screen_of(&several, *panel, width, height);
            }
        }
    }
}

#[test]
fn a_run_without_rounds_has_an_empty_screen() {
    for panel in Panel::all(false) {
        let screen = screen_of(&[&run(0)], *panel, 80, 24);
        assert_contains(&screen, &["round 0 of 40", "pre-training", "nothing yet", "1:00 elapsed"]);
    }
    assert_contains(&screen_of(&[&run(0)], Panel::Clients, 80, 24), &["no round yet"]);
    assert_contains(&screen_of(&[&run(0)], Panel::Notes, 80, 24), &["nothing to note"]);
    let unknown = LiveRun::new("runs/x".into());
    assert_contains(
        &screen_of(&[&unknown], Panel::Clients, 80, 24),
        &["unknown experiment", "not started"],
    );
}

#[test]
fn one_round_is_a_point() {
    let screen = screen_of(&[&run(1)], Panel::Times, 80, 24);
    assert_contains(&screen, &["peak 40.00 in round 0", "test 40.00", "validation 38.00", "1.80"]);
    let screen = screen_of(&[&run(2)], Panel::Clients, 80, 24);
    assert_contains(
        &screen,
        &["Round 1: ", "drawn     3, 17, 4, 98, 51", "11.77 MiB down, 2.24 MiB up"],
    );
}

#[test]
fn what_is_not_known_is_left_out() {
    let mut unlabelled = run(5);
    for record in &mut unlabelled.rounds {
        record.anchor_head = LabelAccuracy::default();
        record.classifier_head = LabelAccuracy::default();
        record.validation_accuracy = None;
        record.losses = Losses::default();
    }
    let screen = screen_of(&[&unlabelled], Panel::Losses, 80, 24);
    assert_contains(&screen, &["test", "kept"]);
    for text in ["validation", "accuracy", "client fix", "anchors alone"] {
        assert!(!contains(&screen, text), "{text}");
    }
    // Without clients there is nothing to keep either.
    unlabelled.rounds.iter_mut().for_each(|record| (record.seen, record.kept) = (0, 0));
    assert!(!contains(&screen_of(&[&unlabelled], Panel::Losses, 80, 24), "kept"));
}

#[test]
fn a_finished_run_shows_the_anchors_alone() {
    let mut done = run(41);
    done.status = Status::Finished;
    done.summary = Some(summary(Some(61.5)));
    let screen = screen_of(&[&done], Panel::Clients, 80, 24);
    assert_contains(&screen, &["finished", "-- anchors alone 61.50", "2:03 elapsed"]);
    assert!(!contains(&screen, "left"));
    done.status = Status::Running;
    let screen = screen_of(&[&done], Panel::Clients, 80, 24);
    assert_contains(&screen, &["comparing with the anchors alone"]);
}

#[test]
fn trouble_is_shown() {
    let mut bad = run(8);
    let last = bad.rounds.last_mut().unwrap();
    let note = |client, reason: &str| ClientNote { client, reason: reason.to_owned() };
    last.rejected = vec![note(17, "the update is 40 times as long as the median")];
    last.failed = vec![note(4, "out of memory")];
    last.outcome = Outcome::RolledBack;
    last.notes = vec!["the clients' updates cost accuracy on the anchors".to_owned()];
    bad.rounds[3].excluded = vec![98];
    bad.status = Status::Stopped;
    bad.problems = vec!["timings.jsonl: line 9: damaged".to_owned()];
    let screen = screen_of(&[&bad], Panel::Clients, 80, 24);
    assert_contains(
        &screen,
        &[
            "stopped",
            "5 clients drawn, 5 trained, 1 rejected, 1 failed; rolled back",
            "rejected  17: the update is 40 times as long as the median",
            "failed    4: out of memory",
            "excluded  98",
            "anchors   97.0 % before the round, 95.5 % after aggregation",
            "Notes (7)",
        ],
    );
    let screen = screen_of(&[&bad], Panel::Notes, 80, 30);
    assert_contains(
        &screen,
        &[
            "resume with `fedanchor run --resume runs/quick`",
            "timings.jsonl: line 9: damaged",
            "round 7: 1 update rejected: client 17 the update",
            "round 7: the clients' updates cost accuracy",
            "round 3: excluded from further rounds: client 98",
        ],
    );
}

#[test]
fn the_runs_of_a_sweep_are_listed() {
    let mut done = run(41);
    (done.path, done.status) = ("runs/table2/iid/seed0".into(), Status::Finished);
    let runs = [&run(13), &done];
    let screen = screen_of(&runs, Panel::Runs, 80, 24);
    assert_contains(&screen, &["Runs (2)", "quick (1 of 2)", "n/p run", "table2/iid/seed0"]);
    let line = screen.iter().find(|line| line.starts_with("table2/iid/seed0")).unwrap();
    assert!(
        line.contains("finished") && line.contains("round 40 of 40") && line.contains("84.70 %"),
        "{line}"
    );
}

#[test]
fn long_names_are_cut_and_control_characters_replaced() {
    let mut odd = run(3);
    odd.path = format!("runs/{}/seed0", "very-long-".repeat(50)).into();
    let heading = odd.heading.as_mut().unwrap();
    heading.data = format!("\u{1b}[31m大\r\n{}", "x".repeat(300));
    odd.rounds[2].rejected =
        vec![ClientNote { client: 1, reason: format!("\u{1b}]0;title\u{7}{}", "y".repeat(500)) }];
    odd.rounds[2].notes = vec!["a\u{9b}2Jb\u{202e}c".to_owned()];
    for (width, height) in [(80, 24), (120, 40), (40, 12)] {
        for panel in Panel::all(false) {
            let screen = screen_of(&[&odd], *panel, width, height);
            assert_contains(
                &screen,
                &["fedanchor on \u{fffd}[31m大", "…", "round 2 of 40", "running"],
            );
            let control =
                |line: &String| line.contains(|c: char| c.is_control() || c == '\u{202e}');
            assert!(!screen.iter().any(control), "{screen:?}");
        }
    }
    assert_contains(&screen_of(&[&odd], Panel::Clients, 80, 24), &["-long-/seed0"]);
}

#[test]
fn absurd_numbers_are_drawn_somehow() {
    let mut absurd = run(6);
    for (index, value) in [f64::MAX, f64::MIN, 1e300, -1e12, 0.0, 1e-300].into_iter().enumerate() {
        let record = &mut absurd.rounds[index];
        (record.test_accuracy, record.test_loss) = (value, value);
        record.validation_accuracy = Some(-value);
        record.losses = Losses::from_iter([("client_fix", Some(value))]);
        record.anchor_accuracy = Some(value);
        (record.kept, record.seen) = (usize::MAX, 1);
        (record.bytes_down, record.bytes_up) = (u64::MAX, 0);
        let timing = &mut absurd.timings[index];
        (timing.clients, timing.total, timing.server) = (value, -value, f64::MAX);
    }
    absurd.rounds[5].round = u32::MAX;
    for planned in [None, Some(0), Some(u32::MAX)] {
        absurd.planned = planned;
        for (width, height) in [(80, 24), (120, 40), (40, 12)] {
            for panel in Panel::all(true) {
                screen_of(&[&absurd, &absurd], *panel, width, height);
            }
        }
    }
}

#[test]
fn without_colour_lines_differ_by_their_markers() {
    let run = run(30);
    let mut view = View {
        folder: Path::new("runs"),
        problem: None,
        runs: vec![&run],
        selected: 0,
        panel: Panel::Losses,
        help: false,
        colour: false,
        now: now(),
    };
    let coloured = |view: &View| {
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let cells = terminal.backend().buffer().content.clone();
        cells.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset).count()
    };
    assert_eq!(coloured(&view), 0);
    let screen = screen(&view, 100, 30);
    for sign in [
        "⠒⠒ test",
        "•• validation",
        "•• client fix",
        "++ client mix",
        "×× server fix",
        "-- contrastive",
    ] {
        assert_contains(&screen, &[sign]);
    }
    // Beside its sign in the legend, each marker is in the chart.
    for marker in ['•', '+', '×', '-'] {
        let count: usize = screen[15..].iter().map(|line| line.matches(marker).count()).sum();
        assert!(count > 4, "{marker}: {count}");
    }
    view.colour = true;
    assert!(coloured(&view) > 100);
}

#[test]
fn without_a_run_it_says_what_it_waits_for() {
    let mut view = View {
        folder: Path::new("runs/not\u{7}yet"),
        problem: None,
        runs: Vec::new(),
        selected: 0,
        panel: Panel::Clients,
        help: false,
        colour: true,
        now: now(),
    };
    assert_contains(
        &screen(&view, 80, 24),
        &["waiting for a run in runs/not\u{fffd}yet", "q quit"],
    );
    view.problem = Some("runs/not-yet: permission denied");
    assert_contains(&screen(&view, 80, 24), &["runs/not-yet: permission denied"]);
    view.help = true;
    assert_contains(&screen(&view, 80, 24), &["Keys", "q, Esc, Ctrl-C   leave; the run continues"]);
    for (width, height) in [(1, 1), (10, 3), (40, 12)] {
        screen(&view, width, height);
    }
}

proptest! {
    /// Whatever bytes are in the records, there is a screen, and it names what is wrong.
    #[test]
    fn any_records_give_a_screen(
        good in 0u32..4,
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            ".{0,200}".prop_map(String::into_bytes),
            mutated(),
        ],
        width in 1u16..150,
        height in 1u16..60,
        panel in 0usize..5,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut checksums = Checksums::default();
        let mut text = Vec::new();
        for round in 0..good {
            let line = checksums.seal(&serde_json::to_string(&record(round)).unwrap());
            text.extend(format!("{line}\n").into_bytes());
        }
        text.extend(&bytes);
        std::fs::write(folder.path().join(files::ROUNDS), &text).unwrap();
        std::fs::write(folder.path().join(files::TIMINGS), &bytes).unwrap();
        let mut follower = Follower::new(folder.path().to_owned());
        follower.poll();
        let run = follower.run();
        prop_assert!(run.rounds.len() >= good as usize);
        let screen = screen_of(&[run, run], Panel::all(true)[panel], width, height);
        prop_assert!(screen.iter().any(|line| !line.is_empty()));
        // All bytes are part of a round that is shown, or something is said about them.
        let shown = text.iter().filter(|&&byte| byte == b'\n').count() == run.rounds.len();
        prop_assert!((shown && text.ends_with(b"\n")) || text.is_empty() || !run.problems.is_empty());
    }
}

/// A record without a checksum, with numbers of any size in it and a byte changed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let numbers = (any::<f64>(), any::<f64>(), any::<u32>(), any::<usize>(), any::<usize>());
    (numbers, any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |((accuracy, loss, round, seen, kept), place, byte, change)| {
            let mut record = record(round);
            (record.test_accuracy, record.test_loss) = (accuracy, loss);
            record.losses = Losses::from_iter([("client_fix", Some(loss))]);
            (record.seen, record.kept, record.clients) = (seen, kept, vec![round; 40]);
            // A number that JSON does not have is null there, and no record.
            let mut line = serde_json::to_vec(&record).unwrap();
            if change {
                let place = place.index(line.len());
                line[place] = byte;
            }
            line.push(b'\n');
            line
        },
    )
}
