//! What a run saves for figures where `[record]` asks for it: latents of test images and labelled samples.

#![allow(clippy::unwrap_used)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fedanchor::{Experiment, Federation, Model, Observer, Resume, RunOptions, Simulation, resolve};
use fedanchor_data::{DataSet, Partition, sample, thumbnail};
use fedanchor_record::{
    Assignment, Latents, RoundRecord, SampleKind, Samples, Timing, files, rounds_with_latents,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tch::Device;

const BRIEF: &[&str] = &[
    "rounds=3",
    "data.name=sample",
    "model.name=small",
    "server.batch=10",
    "data.anchors=60",
    "data.clients=60",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=16",
    "pretrain.epochs=2",
];

fn experiment(settings: &[&str]) -> Experiment {
    let settings: Vec<String> = BRIEF.iter().chain(settings).map(|&key| key.to_owned()).collect();
    resolve("preset = \"paper\"", &settings).unwrap()
}

fn simulation(settings: &[&str], data: DataSet) -> Simulation {
    Simulation::new(experiment(settings), data, Some(1)).unwrap()
}

/// Sets a flag after a round.
struct StopAfter<'a>(u32, &'a AtomicBool);

impl Observer for StopAfter<'_> {
    fn started(&mut self, _: &Federation, _: Option<&Partition>) {}
    fn round(&mut self, record: &RoundRecord, _: &Timing) {
        self.1.store(record.round >= self.0, Ordering::Relaxed);
    }
    fn notice(&mut self, _: &str) {}
}

fn run(experiment: &Experiment, out: &Path) {
    let stop = AtomicBool::new(false);
    fedanchor::run(
        experiment,
        RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(out) },
        &mut (),
    )
    .unwrap();
}

fn resume(experiment: &Experiment, out: &Path, observer: &mut dyn Observer) {
    let stop = AtomicBool::new(false);
    fedanchor::run(
        experiment,
        RunOptions { resume: Resume::Yes, workers: Some(1), stop: &stop, ..RunOptions::new(out) },
        observer,
    )
    .unwrap();
}

fn samples(out: &Path) -> Samples {
    serde_json::from_slice(&std::fs::read(out.join(files::SAMPLES)).unwrap()).unwrap()
}

/// Of a large test set the same images in every round, for every method, and others for another seed.
#[test]
fn latents_are_of_the_same_images_everywhere() {
    let mut data = sample::load().unwrap();
    data.test = data.train.select(&(0..2500).collect::<Vec<_>>());
    let truth = data.test.labels.clone().unwrap();
    let found = |settings: &[&str]| {
        let simulation = simulation(settings, data.clone());
        let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
        coordinator.pretrain(&mut |_, _| true).unwrap();
        let before = coordinator.test_latents().unwrap();
        coordinator.round(&mut fleet, 1).unwrap();
        let after = coordinator.test_latents().unwrap();
        for latents in [&before, &after] {
            assert_eq!((latents.rows().count(), latents.images.len()), (2000, 2000));
            assert!(latents.images.is_sorted_by(|a, b| a < b));
            assert!(latents.images.iter().any(|&image| image >= 2000));
            let labels = latents.images.iter().map(|&image| truth[image as usize]);
            assert_eq!(latents.labels, labels.collect::<Vec<_>>());
        }
        assert_eq!(before.images, after.images);
        assert_ne!(before.latents, after.latents);
        after
    };
    let fedanchor = found(&[]);
    let semifl = found(&["method.name=semifl"]);
    assert_eq!(fedanchor.images, semifl.images);
    // The anchor head's width, and that of the features that the classifier reads.
    assert_eq!((fedanchor.width, semifl.width), (128, 64));
    assert_ne!(fedanchor.images, found(&["seed=1"]).images);
}

/// The files of a run are those of the model that is tested, and of the test itself.
#[test]
fn latents_are_those_of_the_tested_model() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    run(&experiment(&["record.latents=[0, 3, 0]"]), &out);
    assert_eq!(rounds_with_latents(&out).unwrap(), [0, 3]);
    assert!(!out.join(files::SAMPLES).exists());
    let latents = std::fs::read(out.join(files::latents(3))).unwrap();
    let latents = Latents::decode(&latents).unwrap();

    let test = sample::load().unwrap().test;
    assert_eq!(latents.images, (0..1000).collect::<Vec<u32>>());
    let mut confusion = vec![vec![0; 10]; 10];
    for (&truth, &predicted) in latents.labels.iter().zip(&latents.predicted) {
        confusion[usize::from(truth)][usize::from(predicted)] += 1;
    }
    let written = std::fs::read_to_string(out.join(files::CONFUSION)).unwrap();
    let rows = written.lines().skip(1).map(|line| {
        line.split(',').skip(1).map(|count| count.parse::<i32>().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(confusion, rows.collect::<Vec<_>>());

    let model = Model::load(&out, Device::Cpu).unwrap();
    let images: Vec<&[u8]> = (0..1000).map(|at| test.image(at)).collect();
    let expected = model.latents(&images).unwrap();
    let expected = Vec::<f32>::try_from(expected.flatten(0, -1)).unwrap();
    let unit = latents.rows().flat_map(|row| {
        let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
        row.iter().map(move |value| value / length)
    });
    let distance = unit.zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(distance < 1e-5, "{distance}");
}

/// Every sample is what its kind says, and none of those that are asked for is missing.
#[test]
fn samples_are_what_their_kind_says() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    run(&experiment(&["record.samples=200", "method.threshold=0.9", "pretrain.epochs=10"]), &out);
    assert!(!out.join(files::LATENTS).exists());
    let (samples, data) = (samples(&out), sample::load().unwrap().train);
    let assignment = std::fs::read_to_string(out.join(files::ASSIGNMENT)).unwrap();
    let assignment: Assignment = serde_json::from_str(&assignment).unwrap();
    let (mut wrong, mut left_out) = (Vec::new(), Vec::new());
    for sample in &samples.samples {
        let at = sample.image as usize;
        let truth = usize::from(data.labels.as_ref().unwrap()[at]);
        assert_eq!(sample.truth.as_ref(), Some(&data.classes[truth]));
        assert!(assignment.clients[sample.client as usize].contains(&sample.image));
        assert_eq!(sample.threshold, Some(0.9));
        let png = thumbnail::png(data.shape, data.image(at)).unwrap();
        assert_eq!(sample.png, STANDARD.encode(png));
        let right = sample.truth.as_ref() == Some(&sample.label);
        match sample.kind {
            SampleKind::Wrong => {
                assert!(sample.score > 0.9 && !right, "{sample:?}");
                wrong.push(sample.score);
            }
            SampleKind::LeftOut => {
                assert!(sample.score <= 0.9 && right, "{sample:?}");
                left_out.push(sample.score);
            }
            SampleKind::KeptDoubtful => panic!("the truth is known: {sample:?}"),
        }
    }
    for scores in [&wrong, &left_out] {
        assert!(!scores.is_empty() && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    }
    // Fewer than asked for: all there are, as the record counts them.
    let records = std::fs::read_to_string(out.join(files::ROUNDS)).unwrap();
    let last: RoundRecord = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert_eq!(samples.round, last.round);
    assert!(last.clients.iter().all(|client| samples.samples.iter().any(|s| s.client == *client)));
    let (seen, kept) = (last.seen as f64, last.kept as f64);
    let right = |count: f64, percent: Option<f64>| count * percent.unwrap() / 100.0;
    let right_kept = right(kept, last.anchor_head.kept);
    assert_eq!(wrong.len() as f64, (kept - right_kept).round());
    assert_eq!(left_out.len() as f64, (right(seen, last.anchor_head.all) - right_kept).round());
}

#[test]
fn a_method_that_selects_nothing_has_no_samples() {
    for name in ["fedcon", "supervised", "server-only", "semifl"] {
        let method = format!("method.name={name}");
        let mut settings = vec!["record.samples=3", "pretrain.epochs=1", &method];
        settings.extend((name == "fedcon").then_some("method.predictor=16"));
        let simulation = simulation(&settings, sample::load().unwrap());
        let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
        coordinator.pretrain(&mut |_, _| true).unwrap();
        coordinator.round(&mut fleet, 1).unwrap();
        let picked = simulation.take_picked();
        assert_eq!(picked.is_some(), name == "semifl", "{name}");
    }
}

/// Stopped after a round, or killed before the files of its last round were written: resumed, it has the bytes of
/// a run that was left alone.
#[test]
fn a_resumed_run_has_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let experiment = experiment(&["record.latents=[0, 1, 3]", "record.samples=4"]);
    run(&experiment, &whole);
    let stop = AtomicBool::new(false);
    fedanchor::run(
        &experiment,
        RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(&parts) },
        &mut StopAfter(1, &stop),
    )
    .unwrap();
    assert_eq!(rounds_with_latents(&parts).unwrap(), [0, 1]);
    let first = std::fs::read(parts.join(files::SAMPLES)).unwrap();
    assert_eq!(samples(&parts).round, 1);

    let (of_one, of_three) = (parts.join(files::latents(1)), parts.join(files::latents(3)));
    std::fs::rename(&of_one, &of_three).unwrap(); // a round that is not on record
    std::fs::write(parts.join(files::SAMPLES), "of a round that is not on record").unwrap();
    // Stopped before its first round, it has what the checkpoint tells.
    let stop = AtomicBool::new(true);
    fedanchor::run(
        &experiment,
        RunOptions {
            resume: Resume::Yes,
            workers: Some(1),
            stop: &stop,
            ..RunOptions::new(&parts)
        },
        &mut (),
    )
    .unwrap();
    assert_eq!(rounds_with_latents(&parts).unwrap(), [0, 1]);
    assert_eq!(std::fs::read(parts.join(files::SAMPLES)).unwrap(), first);

    resume(&experiment, &parts, &mut ());
    assert_eq!(rounds_with_latents(&parts).unwrap(), [0, 1, 3]);
    for name in [0, 1, 3].map(files::latents).iter().map(String::as_str).chain([
        files::SAMPLES,
        files::ROUNDS,
        files::MODEL,
    ]) {
        let read = |run: &Path| std::fs::read(run.join(name)).unwrap();
        assert!(read(&whole) == read(&parts), "{name} is not the same");
    }
    assert_eq!(samples(&parts).round, 3);
}

/// `[record]` may change when a run is resumed: what is over cannot be saved, but for the last round.
#[test]
fn latents_of_the_last_round_can_be_asked_for_later() {
    struct Notices(Vec<String>);
    impl Observer for Notices {
        fn started(&mut self, _: &Federation, _: Option<&Partition>) {}
        fn round(&mut self, record: &RoundRecord, _: &Timing) {
            panic!("round {} is done again", record.round);
        }
        fn notice(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (asked, later) = (folder.path().join("asked"), folder.path().join("later"));
    let with = |latents| experiment(&["rounds=2", "pretrain.epochs=1", latents]);
    run(&with("record.latents=[2]"), &asked);
    run(&with("record.latents=[]"), &later);
    assert!(!later.join(files::LATENTS).exists() && !later.join(files::SAMPLES).exists());
    let mut notices = Notices(Vec::new());
    resume(&with("record.latents=[0, 1, 2]"), &later, &mut notices);
    assert_eq!(rounds_with_latents(&later).unwrap(), [2]);
    let read = |run: &Path| std::fs::read(run.join(files::latents(2))).unwrap();
    assert!(read(&asked) == read(&later));
    let last = notices.0.last().unwrap();
    assert!(
        last.starts_with("record.latents: none are saved") && last.ends_with(": 0, 1"),
        "{last}"
    );
}
