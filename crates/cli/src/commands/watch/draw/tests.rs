//! Screens as text.

use super::*;
use fedanchor_record::{ClientNote, LabelAccuracy, Losses, Outcome, RoundRecord, Summary, Timing};
use fedanchor_report::{Heading, Partition, Status};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Duration;

/// Any moment: screens show only differences.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

/// A round of a run that learns.
fn record(round: u32) -> RoundRecord {
    let gone = 1.0 - (-f64::from(round) / 8.0).exp();
    RoundRecord {
        round,
        test_accuracy: 40.0 + 45.0 * gone,
        test_loss: 2.0 - 1.5 * gone,
        validation_accuracy: Some(38.0 + 44.0 * gone),
        pretrain_epochs: None,
        clients: vec![3, 17, 4, 98, 51],
        trained: 5,
        seen: 300,
        kept: 60 + (180.0 * gone) as usize,
        kept_deviation: None,
        anchor_head: LabelAccuracy {
            all: Some(50.0 + 30.0 * gone),
            kept: Some(70.0 + 25.0 * gone),
        },
        classifier_head: LabelAccuracy { all: Some(45.0), kept: Some(65.0) },
        losses: Losses {
            client_fix: Some(1.2 - gone),
            client_mix: Some(1.5 - gone),
            server_fix: Some(0.8 - 0.5 * gone),
            server_mix: None,
            server_contrastive: Some(3.0 - gone),
        },
        bytes_down: 12_345_678,
        bytes_up: 2_345_678,
        anchor_accuracy_before: Some(97.0),
        anchor_accuracy: Some(95.5),
        rejected: Vec::new(),
        failed: Vec::new(),
        excluded: Vec::new(),
        outcome: Outcome::Applied,
        notes: Vec::new(),
    }
}

fn timing(round: u32) -> Timing {
    let clients = 1.0 + f64::from(round % 5) / 10.0;
    Timing {
        round,
        broadcast: 0.1,
        clients,
        aggregate: 0.05,
        server: 0.4,
        test: 0.2,
        total: clients + 0.8,
        peak_memory: Some(1 << 30),
        peak_gpu_memory: None,
    }
}

/// A run in progress with rounds 0 to `rounds - 1`.
fn run(rounds: u32) -> LiveRun {
    LiveRun {
        status: Status::Running,
        heading: Some(Heading {
            data: "cifar10".to_owned(),
            model: "small".to_owned(),
            anchors: 500,
            partition: Partition::Iid,
            method: "fedanchor".to_owned(),
            preset: "paper".to_owned(),
        }),
        seed: Some(1),
        planned: Some(40),
        started: Some(now() - Duration::from_secs(60)),
        recorded: Some(now() - Duration::from_secs(1)),
        rounds: (0..rounds).map(record).collect(),
        timings: (0..rounds).map(timing).collect(),
        ..LiveRun::new("runs/quick".into())
    }
}

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

#[test]
fn show() {
    for panel in Panel::all(true) {
        println!("{}", screen_of(&[&run(13)], *panel, 80, 24).join("\n"));
    }
    println!("{}", screen_of(&[&run(13)], Panel::Clients, 120, 40).join("\n"));
    println!("{}", screen_of(&[&run(13)], Panel::Clients, 40, 12).join("\n"));
}
