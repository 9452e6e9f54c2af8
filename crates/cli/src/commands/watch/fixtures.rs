//! Runs for tests, as a follower would give them.

use fedanchor_record::{Build, Incidents, LabelAccuracy, Losses, RoundRecord, Summary, Timing};
use fedanchor_report::{Heading, LiveRun, Partition, Status};
use std::time::{Duration, SystemTime};

/// Any moment: screens show only differences.
pub(super) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

/// A round of a run that learns.
pub(super) fn record(round: u32) -> RoundRecord {
    let gone = 1.0 - (-f64::from(round) / 8.0).exp();
    RoundRecord {
        round,
        test_accuracy: 40.0 + 45.0 * gone,
        test_loss: 2.0 - 1.5 * gone,
        validation_accuracy: Some(38.0 + 44.0 * gone),
        clients: vec![3, 17, 4, 98, 51],
        trained: 5,
        seen: 300,
        kept: 60 + (180.0 * gone) as usize,
        kept_deviation: Some(12.5),
        anchor_head: LabelAccuracy {
            all: Some(50.0 + 30.0 * gone),
            kept: Some(70.0 + 25.0 * gone),
        },
        classifier_head: LabelAccuracy { all: Some(45.0), kept: Some(65.0) },
        losses: Losses::from_iter([
            ("client_fix", Some(1.2 - gone)),
            ("client_mix", Some(1.5 - gone)),
            ("server_fix", Some(0.8 - 0.5 * gone)),
            ("server_mix", None),
            ("server_contrastive", Some(3.0 - gone)),
        ]),
        bytes_down: 12_345_678,
        bytes_up: 2_345_678,
        anchor_accuracy_before: Some(97.0),
        anchor_accuracy: Some(95.5),
        ..RoundRecord::default()
    }
}

pub(super) fn timing(round: u32) -> Timing {
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
        build: Build::default(),
    }
}

/// A run in progress with rounds 0 to `rounds - 1`.
pub(super) fn run(rounds: u32) -> LiveRun {
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
        recorded: (rounds > 0).then(|| now() - Duration::from_secs(1)),
        rounds: (0..rounds).map(record).collect(),
        timings: (0..rounds).map(timing).collect(),
        ..LiveRun::new("runs/quick".into())
    }
}

/// The summary of a run with all its rounds.
pub(super) fn summary(server_only_accuracy: Option<f64>) -> Summary {
    Summary {
        build: Build::default(),
        builds: Vec::new(),
        method: "fedanchor".to_owned(),
        data: "cifar10".to_owned(),
        model: "small".to_owned(),
        parameters: 1,
        anchors: 500,
        seed: 1,
        data_fingerprint: String::new(),
        classes: vec!["a".to_owned(), "b".to_owned()],
        rounds_planned: 40,
        rounds: 40,
        final_accuracy: 84.0,
        final_validation_accuracy: None,
        best_accuracy: 84.0,
        best_round: 40,
        pretrained_accuracy: 40.0,
        server_only_accuracy,
        server_only: Vec::new(),
        bytes_down: 0,
        bytes_up: 0,
        seconds: 123.0,
        peak_memory: None,
        peak_gpu_memory: None,
        compute_threads: 1,
        incidents: Incidents::default(),
        backdoor_success: None,
    }
}
