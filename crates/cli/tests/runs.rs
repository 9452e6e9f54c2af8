//! Runs of the built program from start to finish, on settings so small that each takes about a
//! second: what lands in the run folder, whether it is the same again for the same seed, whether
//! every setting has the effect it must have, and how a run ends early.
//!
//! The program is started as a user starts it; calling the library instead would leave the exit
//! status, signals and the settings' way in untested. No number that training computes is written
//! down here, since other machines round otherwise: runs are compared with one another and with
//! what follows from their own settings. The program gets one thread of libtorch, because these
//! tests run beside one another and threads that wait for one another would take most of the time.

#![allow(clippy::unwrap_used)] // the setting for tests does not reach the functions they share

use fedanchor::Experiment;
use fedanchor::model::Network;
use fedanchor::params::{Params, Part};
use fedanchor_data::{Shape, sample};
use fedanchor_record::{Assignment, RoundRecord, Summary, Timing, files};
use image::{Rgb, RgbImage};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Two rounds on the embedded sample: 200 clients with about 30 images each, two of them a round.
const SMALL: &[&str] = &[
    "rounds=2",
    "data.name=sample",
    "data.anchors=50",
    "data.clients=200",
    "model.name=small",
    "pretrain.epochs=1",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=16",
];

/// Two rounds on the pictures of [`draw`]: 36 anchors, 60 images on four clients of unequal size,
/// three of them a round. Some images are kept and some are not.
const DRAWN: &[&str] = &[
    "rounds=2",
    "data.name=drawn",
    "data.path=drawn",
    "data.anchors=36",
    "data.clients=4",
    "partition.kind=dirichlet",
    "partition.alpha=1",
    "model.name=small",
    "pretrain.epochs=1",
    "client.per_round=3",
    "client.epochs=2",
    "client.batch=8",
    "method.threshold=0.8",
    "method.contrastive.batch=18",
];

/// A folder to run in.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With the pictures of [`draw`] in `drawn`.
    fn with_pictures(side: u32) -> Self {
        let place = Self::new();
        draw(&place.at("drawn"), side);
        place
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    /// `fedanchor run FILE --out OUT`, ready to start.
    fn command_of(&self, file: &str, out: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command.current_dir(&self.0).env("OMP_NUM_THREADS", "1");
        command.args(["run", file, "--out", out]);
        command
    }

    /// The preset `paper` with these settings, ready to start.
    fn command(&self, out: &str, settings: &[&[&str]]) -> Command {
        std::fs::write(self.at("paper.toml"), "").unwrap();
        let mut command = self.command_of("paper.toml", out);
        for setting in settings.iter().copied().flatten() {
            command.args(["--set", setting]);
        }
        command
    }

    /// A run that must succeed; the answer is what it recorded.
    fn run(&self, out: &str, settings: &[&[&str]]) -> Vec<RoundRecord> {
        self.succeed(&mut self.command(out, settings));
        self.records(out)
    }

    fn succeed(&self, command: &mut Command) -> Output {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}\n{}", text(&output.stderr));
        output
    }

    fn read(&self, out: &str, file: &str) -> String {
        std::fs::read_to_string(self.at(out).join(file)).unwrap()
    }

    fn records(&self, out: &str) -> Vec<RoundRecord> {
        lines(&self.read(out, files::ROUNDS))
    }

    fn summary(&self, out: &str) -> Summary {
        serde_json::from_str(&self.read(out, files::SUMMARY)).unwrap()
    }

    /// Every file of a run folder with its bytes.
    fn content(&self, out: &str) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.at(out)).unwrap().map(|entry| entry.unwrap());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        entries.map(|e| (name(&e.path()), std::fs::read(e.path()).unwrap())).collect()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// One record a line.
fn lines<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A table with a row of names above and a column of names before it.
fn table(csv: &str) -> (Vec<&str>, Vec<Vec<f64>>) {
    let mut lines = csv.lines().map(|line| line.split(',').skip(1));
    let head = lines.next().unwrap().collect();
    (head, lines.map(|row| row.map(|cell| cell.parse().unwrap()).collect()).collect())
}

/// Image folders of three classes, 32 training and 5 test pictures each: stripes that lie, stand
/// or lean, brighter to one side, from hardly seen under noise to clear.
fn draw(folder: &Path, side: u32) {
    for (part, count) in [("train", 32), ("test", 5)] {
        for (class, name) in ["leaning", "lying", "standing"].into_iter().enumerate() {
            let folder = folder.join(part).join(name);
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..count {
                let picture = RgbImage::from_fn(side, side, |x, y| {
                    let stripe = [x + y, y, x][class] / 3 % 2;
                    let place = (number * side + y) * side + x + part.len() as u32;
                    let noise = place.wrapping_mul(0x9e37_79b9) >> 25; // 0 to 127
                    let clear = number % 8;
                    let value = (stripe * 16 * clear + noise * (8 - clear) / 8 + x) as u8;
                    Rgb([value, value / 2, 255 - value])
                });
                picture.save(folder.join(format!("{number:02}.png"))).unwrap();
            }
        }
    }
}

#[test]
fn a_run_folder_tells_everything() {
    let place = Place::new();
    let records = place.run("run", &[SMALL]);
    let names: Vec<String> = place.content("run").into_keys().collect();
    let mut expected = [
        files::CONFIG,
        files::ROUNDS,
        files::TIMINGS,
        files::SUMMARY,
        files::PARTITION,
        files::ASSIGNMENT,
        files::CONFUSION,
        files::SIMILARITY,
        files::MODEL,
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);

    // The config is the experiment, and running it again is the same run.
    let config = place.read("run", files::CONFIG);
    let experiment = fedanchor::config::resolve(&config, &[]).unwrap();
    assert_eq!((experiment.rounds, experiment.data.clients), (2, 200));
    place.succeed(&mut place.command_of("run/config.toml", "again"));
    let (run, again) = (place.content("run"), place.content("again"));
    for file in [files::CONFIG, files::ROUNDS, files::MODEL] {
        assert!(again[file] == run[file], "{file} is not the same");
    }

    let assignment = check_assignment(&place);
    check_records(&records, &assignment);
    check_model_and_bytes(&place, &experiment, &records);
    let summary = check_summary(&place, &records);
    check_matrices(&place, &summary);
}

/// Anchors and clients share all images between them, and the histogram counts the same.
fn check_assignment(place: &Place) -> Assignment {
    let assignment: Assignment =
        serde_json::from_str(&place.read("run", files::ASSIGNMENT)).unwrap();
    assert_eq!((assignment.anchors.len(), assignment.clients.len()), (50, 200));
    let mut all = assignment.anchors.clone();
    all.extend(assignment.clients.iter().flatten());
    all.sort_unstable();
    assert_eq!(all, (0..6000).collect::<Vec<u32>>());

    let labels = sample::load().unwrap().train.labels.unwrap();
    let (_, histogram) = table(&place.read("run", files::PARTITION));
    assert_eq!(histogram.len(), 200);
    for (client, row) in histogram.iter().enumerate() {
        let mut counts = [0.0; 10];
        for &image in &assignment.clients[client] {
            counts[usize::from(labels[image as usize])] += 1.0;
        }
        assert!(row.ends_with(&counts), "client {client}: {row:?} is not {counts:?}");
    }
    assignment
}

fn check_records(records: &[RoundRecord], assignment: &Assignment) {
    assert_eq!(records.iter().map(|r| r.round).collect::<Vec<_>>(), [0, 1, 2]);
    let first = &records[0];
    assert_eq!((first.clients.len(), first.seen, first.bytes_down), (0, 0, 0));
    for record in records {
        assert!((0.0..=100.0).contains(&record.test_accuracy), "{record:?}");
        assert!(record.test_loss > 0.0 && record.test_loss.is_finite(), "{record:?}");
        assert!(record.losses.server_fix.is_some_and(f64::is_finite), "{record:?}");
        assert!(record.losses.server_contrastive.is_some_and(f64::is_finite), "{record:?}");
    }
    for record in &records[1..] {
        assert!(record.clients.is_sorted_by(|a, b| a < b) && record.clients.len() == 2);
        let sizes = record.clients.iter().map(|&client| assignment.clients[client as usize].len());
        assert_eq!(record.seen, sizes.sum::<usize>(), "{record:?}");
        assert!(record.kept > 0 && record.kept <= record.seen, "{record:?}");
        assert!(record.trained > 0 && record.trained <= 2, "{record:?}");
        assert!(record.losses.client_fix.is_some_and(f64::is_finite), "{record:?}");
        assert!(record.losses.client_mix.is_some_and(f64::is_finite), "{record:?}");
        assert!(record.anchor_head.all.is_some_and(|right| (0.0..=100.0).contains(&right)));
    }
}

/// The model file holds exactly the network's entries; a client sends all but the anchor head, and
/// gets all of it and ten means of 128 numbers.
fn check_model_and_bytes(place: &Place, experiment: &Experiment, records: &[RoundRecord]) {
    let shape = Shape { side: 28, channels: 1 };
    let network = Network::new(&experiment.model, shape, 10).unwrap();
    let device = experiment.device().unwrap();
    // Refuses an entry too many, too few or of another shape.
    let params =
        Params::load(&network.layout, &place.at("run").join(files::MODEL), device).unwrap();
    let up = params.subset(|entry| entry.part != Part::Anchor).encode(None).unwrap().len() as u64;
    let all = params.encode(None).unwrap().len() as u64;
    for record in &records[1..] {
        assert_eq!(record.bytes_up, up * record.trained as u64);
        // 128 numbers of four bytes for each class; a name and a place in the header.
        let anchors = record.bytes_down / 2 - all;
        assert!((10 * 128 * 4..10 * 128 * 4 + 100).contains(&anchors), "{anchors}");
        assert_eq!(record.bytes_down % 2, 0);
    }
}

fn check_summary(place: &Place, records: &[RoundRecord]) -> Summary {
    let summary = place.summary("run");
    let last = records.last().unwrap();
    let best = records.iter().map(|record| record.test_accuracy).fold(0.0, f64::max);
    assert_eq!((summary.rounds, summary.rounds_planned), (2, 2));
    assert_eq!(summary.final_accuracy, last.test_accuracy);
    assert_eq!(summary.pretrained_accuracy, records[0].test_accuracy);
    assert_eq!(summary.best_accuracy, best);
    assert_eq!(records[summary.best_round as usize].test_accuracy, best);
    assert_eq!(summary.server_only_accuracy, None);
    assert_eq!(summary.bytes_down, records.iter().map(|record| record.bytes_down).sum::<u64>());
    assert_eq!(summary.bytes_up, records.iter().map(|record| record.bytes_up).sum::<u64>());
    assert_eq!((summary.method.as_str(), summary.data.as_str()), ("fedanchor", "sample"));
    assert_eq!((summary.anchors, summary.parameters), (50, 77_562)); // see `fedanchor model small`
    assert_eq!(summary.data_fingerprint.len(), 64);
    assert_eq!(summary.version, env!("CARGO_PKG_VERSION"));

    let timings: Vec<Timing> = lines(&place.read("run", files::TIMINGS));
    assert_eq!(timings.iter().map(|t| t.round).collect::<Vec<_>>(), [0, 1, 2]);
    for t in &timings {
        let parts = t.broadcast + t.clients + t.aggregate + t.server + t.test;
        assert!(parts > 0.0 && parts <= t.total, "{t:?}");
    }
    let total: f64 = timings.iter().map(|timing| timing.total).sum();
    assert!(total <= summary.seconds, "{total} in {}", summary.seconds);
    summary
}

fn check_matrices(place: &Place, summary: &Summary) {
    let confusion = place.read("run", files::CONFUSION);
    let (names, confusion) = table(&confusion);
    assert_eq!(names, summary.classes);
    // The sample has 100 test images of every class.
    assert!(confusion.iter().all(|row| row.iter().sum::<f64>() == 100.0) && confusion.len() == 10);
    let right: f64 = (0..10).map(|class| confusion[class][class]).sum();
    assert_eq!(right / 10.0, summary.final_accuracy);

    let similarity = place.read("run", files::SIMILARITY);
    let (names, similarity) = table(&similarity);
    assert_eq!(names, summary.classes);
    for (a, row) in similarity.iter().enumerate() {
        assert!((row[a] - 1.0).abs() < 1e-5, "class {a} with itself: {}", row[a]); // f32
        for (b, cosine) in row.iter().enumerate() {
            assert!(cosine.abs() < 1.0 + 1e-5 && (cosine - similarity[b][a]).abs() < 1e-6);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let place = Place::new();
    let run = |out: &str, workers: &str, seed: &str| {
        let mut command = place.command(out, &[SMALL, &["rounds=1", seed]]);
        // Several threads in libtorch too: the order of its sums must not depend on who comes first.
        command.env("OMP_NUM_THREADS", "2").env("OMP_WAIT_POLICY", "PASSIVE");
        place.succeed(command.args(["--workers", workers]));
        place.content(out)
    };
    let (one, three, other) =
        (run("1", "1", "seed=0"), run("3", "3", "seed=0"), run("o", "1", "seed=1"));
    for file in one.keys().filter(|name| ![files::TIMINGS, files::SUMMARY].contains(&&***name)) {
        assert!(one[file] == three[file], "{file} is not the same for three workers");
    }
    for file in [files::ROUNDS, files::MODEL, files::ASSIGNMENT] {
        assert!(one[file] != other[file], "{file} does not depend on the seed");
    }

    // A folder that holds a run is left as it is.
    let refused = place.command("1", &[SMALL]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("holds a run already"), "{}", text(&refused.stderr));
    assert!(place.content("1") == one);
}

/// Runs every case and demands that it differs from the run without its last setting, which is
/// the one in question; those before it prepare the ground.
fn each_has_an_effect(cases: &[&[&str]]) {
    let place = Place::with_pictures(16);
    let mut known: BTreeMap<Vec<&str>, String> = BTreeMap::new();
    for (number, case) in cases.iter().enumerate() {
        let (_, ground) = case.split_last().unwrap();
        let plain = known.entry(ground.to_vec()).or_insert_with(|| {
            let out = format!("plain-{number}");
            place.run(&out, &[DRAWN, ground]);
            place.read(&out, files::ROUNDS)
        });
        let out = number.to_string();
        let records = place.run(&out, &[DRAWN, case]);
        assert_eq!(records.iter().map(|r| r.round).collect::<Vec<_>>(), [0, 1, 2], "{case:?}");
        assert!(place.read(&out, files::ROUNDS) != *plain, "{case:?} changes nothing");
    }
}

// Every value in brackets in the preset `paper`, and whatever else is a choice rather than a number,
// in the preset's order; `send`, `compare` and `server-only` have tests of their own below.

#[test]
fn every_choice_of_data_and_model_has_an_effect() {
    each_has_an_effect(&[
        &["precision=bf16"],
        &["data.choice=uniform"],
        &["model.norm=group"],
        &["model.latent_stage=2"],
        &["batch_norm.statistics=static-all"],
        &["batch_norm.statistics=static-server"],
        &["augment.strong=semifl"],
        &["augment.strong=torchvision"],
        &["augment.flip=false"],
        &["preset=semifl"],
    ]);
}

/// The large models, with as little to do as can be, each on another kind of partition.
#[test]
fn every_model_and_partition_runs() {
    let place = Place::with_pictures(16);
    let own = |setting: &&&str| !setting.starts_with("partition.");
    let settings: Vec<&str> = DRAWN.iter().filter(own).copied().collect();
    let brief = [
        "rounds=1",
        "data.clients=10",
        "pretrain.epochs=0",
        "client.per_round=1",
        "client.epochs=1",
        "method.threshold=-1", // keeps everything
    ];
    for (model, others) in [
        ("resnet18", ["partition.kind=iid", "model.preactivation=false"]),
        ("resnet18", ["partition.kind=classes", "model.preactivation=true"]),
        ("wrn28x2", ["partition.kind=lda", "partition.alpha=1"]),
    ] {
        let (out, name) = (others.join(","), format!("model.name={model}"));
        let records = place.run(&out, &[&settings, &brief, &[&name], &others]);
        assert_eq!((records.len(), records[1].trained), (2, 1));
        assert_eq!(place.summary(&out).model, model);
    }
}

#[test]
fn every_choice_of_training_has_an_effect() {
    each_has_an_effect(&[
        &["optimiser.nesterov=true"],
        &["optimiser.clip=0"],
        &["optimiser.schedule=cosine"],
        &["pretrain.contrastive=false"],
        &["client.keep_momentum=true"],
        &["server.augment=weak"],
        &["server.augment=none"],
        &["server.keep_momentum=true"],
        &["server.momentum=0.5"],
        &["aggregation.weights=kept"],
        &["aggregation.weights=uniform"],
        // A threshold that some clients' images all fail.
        &["method.threshold=0.85", "aggregation.without_samples=unchanged"],
    ]);
}

#[test]
fn every_choice_of_the_method_has_an_effect() {
    each_has_an_effect(&[
        &["method.threshold=0.4", "method.score=softmax"],
        &["method.threshold=0.4", "method.score=softmax", "method.score_temperature=0.5"],
        &["method.latents=pooled"],
        &["method.label_views=2"],
        &["method.views=joint"],
        &["method.mixup.client=false"],
        &["method.mixup.server=true"],
        &["method.mixup.draw=sample"],
        &["method.mixup.augment=after"],
        &["method.mixup.mix_set=round"],
    ]);
}

#[test]
fn every_choice_of_the_contrastive_loss_has_an_effect() {
    each_has_an_effect(&[
        &["method.contrastive.epochs=0"],
        &["method.contrastive.sampler=balanced"],
        &["method.contrastive.augment=strong"],
        &["method.contrastive.augment=none"],
        &["method.contrastive.trains=head"],
        &["method.contrastive.self_pairs=true"],
        &["method.contrastive.denominator=class"],
        // Of four anchors in three classes, two classes have no pair.
        &["data.anchors=4", "method.contrastive.divide_by=all"],
        &["method.contrastive.order=first"],
        &["method.contrastive.momentum=shared"],
    ]);
}

#[test]
fn class_means_do_what_all_latents_do_for_fewer_bytes() {
    let place = Place::new();
    let means = place.run("means", &[SMALL]);
    let latents = place.run("latents", &[SMALL, &["method.send=latents"]]);
    for (means, latents) in means.iter().zip(&latents) {
        // Equal labels make equal training: nothing else may differ.
        assert_eq!(RoundRecord { bytes_down: means.bytes_down, ..latents.clone() }, *means);
        // 50 latents of 128 numbers with labels of two bytes, instead of ten means.
        let more = (latents.bytes_down - means.bytes_down) / 2;
        let data = 50 * (128 * 4 + 2) - 10 * 128 * 4;
        let header = 100; // one more name and place
        let expected = if means.round == 0 { 0..=0 } else { data..=data + header };
        assert!(expected.contains(&more), "{more}");
    }
}

#[test]
fn seeds_run_as_if_alone() {
    let place = Place::new();
    let mut both = place.command("both", &[SMALL]);
    let output = place.succeed(both.args(["--seeds", "3,5"]));
    for seed in [3, 5] {
        let alone = format!("alone{seed}");
        place.run(&alone, &[SMALL, &[&format!("seed={seed}")]]);
        let (alone, beside) = (place.content(&alone), place.content(&format!("both/seed{seed}")));
        for file in [files::CONFIG, files::ROUNDS, files::MODEL] {
            assert!(alone[file] == beside[file], "{file} of seed {seed}");
        }
    }
    let accuracy = |seed: u32| place.summary(&format!("both/seed{seed}")).final_accuracy;
    let mean = (accuracy(3) + accuracy(5)) / 2.0;
    let deviation = (accuracy(3) - accuracy(5)).abs() / 2f64.sqrt();
    let last = text(&output.stdout).lines().last().unwrap().to_owned();
    assert_eq!(last, format!("mean of 2 seeds: {mean:.2} %, standard deviation {deviation:.2}"));

    let mut twice = place.command("twice", &[SMALL]);
    let refused = twice.args(["--seeds", "3,3"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("3 is there twice"), "{}", text(&refused.stderr));
}

#[test]
fn the_comparison_is_a_run_without_clients() {
    let place = Place::new();
    let output = place.succeed(&mut place.command("both", &[SMALL, &["compare=true"]]));
    let summary = place.summary("both");
    let alone = summary.server_only_accuracy.unwrap();
    // Standard output holds the result and nothing else.
    let expected = format!(
        "test accuracy: anchors alone {alone:.2} %, fedanchor {:.2} %\n",
        summary.final_accuracy
    );
    assert_eq!(text(&output.stdout), expected);

    let records = place.run("alone", &[SMALL, &["method.name=server-only"]]);
    for record in &records {
        assert!(record.clients.is_empty(), "{record:?}");
        assert_eq!((record.seen, record.kept, record.trained), (0, 0, 0));
        assert_eq!((record.bytes_down, record.bytes_up), (0, 0));
        assert_eq!((record.losses.client_fix, record.anchor_head.all), (None, None));
    }
    assert_eq!(records.last().unwrap().test_accuracy, alone);
}

#[test]
fn a_folder_of_pictures_is_a_data_set() {
    let place = Place::with_pictures(24);
    let records = place.run("run", &[DRAWN, &["method.threshold=0.85"]]);
    let summary = place.summary("run");
    assert_eq!(summary.data, "drawn");
    assert_eq!(summary.classes, ["leaning", "lying", "standing"]);
    let (_, confusion) = table(&place.read("run", files::CONFUSION));
    assert_eq!(confusion.iter().flatten().sum::<f64>(), 15.0);
    let assignment: Assignment =
        serde_json::from_str(&place.read("run", files::ASSIGNMENT)).unwrap();
    assert_eq!(assignment.clients.iter().map(Vec::len).sum::<usize>() + 36, 96);
    assert!(records[1].kept > 0 && records[1].kept < records[1].seen, "{:?}", records[1]);
}

#[test]
fn training_that_runs_away_is_an_error() {
    let place = Place::with_pictures(16);
    let fail = |out: &str, settings: &[&str]| {
        let output = place.command(out, &[DRAWN, settings]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let stderr = text(&output.stderr).to_owned();
        stderr.lines().last().unwrap().to_owned()
    };
    let error = fail("0", &["pretrain.epochs=20", "pretrain.lr=100", "optimiser.clip=0"]);
    assert!(error.starts_with("error: round 0, server, "), "{error}");
    assert!(error.contains("supervised epoch: ") && error.contains("not finite"), "{error}");
    let error = fail("1", &["client.epochs=30", "optimiser.lr=100", "optimiser.clip=0"]);
    assert!(error.starts_with("error: round 1, client "), "{error}");
    assert!(error.contains("client training: ") && error.contains("not finite"), "{error}");
    // What was done before is on record.
    assert_eq!(place.records("1").len(), 1);
}

#[cfg(unix)]
mod interrupts {
    use super::*;

    /// A run in progress, which does not outlive its test.
    struct Running(Child);

    impl Running {
        /// Starts a run whose talk goes to the file `OUT.txt`.
        fn start(place: &Place, out: &str, settings: &[&str]) -> Self {
            let talk = std::fs::File::create(place.at(format!("{out}.txt"))).unwrap();
            let mut command = place.command(out, &[DRAWN, settings]);
            Self(command.stdout(Stdio::null()).stderr(talk).spawn().unwrap())
        }

        fn interrupt(&self) {
            let id = self.0.id().to_string();
            assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill(); // it has ended already unless the test failed
        }
    }

    /// Waits until a file holds a text.
    fn wait_for(path: &Path, text: &str) {
        let start = Instant::now();
        while !std::fs::read_to_string(path).is_ok_and(|content| content.contains(text)) {
            assert!(start.elapsed() < Duration::from_secs(120), "{}: no `{text}`", path.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn the_first_ends_the_run_after_its_round() {
        let place = Place::with_pictures(16);
        let mut run = Running::start(&place, "long", &["rounds=100000"]);
        wait_for(&place.at("long.txt"), "round 1/100000");
        run.interrupt();
        assert_eq!(run.0.wait().unwrap().code(), Some(0));
        let (summary, records) = (place.summary("long"), place.records("long"));
        assert!(summary.rounds >= 1 && summary.rounds < summary.rounds_planned, "{summary:?}");
        assert_eq!(records.last().unwrap().round, summary.rounds);
        assert_eq!(records.last().unwrap().test_accuracy, summary.final_accuracy);
        assert!(place.at("long").join(files::MODEL).exists());
    }

    #[test]
    fn no_seed_begins_after_it_and_nothing_is_averaged() {
        let place = Place::with_pictures(16);
        let talk = std::fs::File::create(place.at("seeds.txt")).unwrap();
        let mut command = place.command("seeds", &[DRAWN, &["rounds=100000"]]);
        command.args(["--seeds", "0,1"]).stdout(Stdio::null()).stderr(talk);
        let mut run = Running(command.spawn().unwrap());
        wait_for(&place.at("seeds.txt"), "seed 0: round 1/100000");
        run.interrupt();
        assert_eq!(run.0.wait().unwrap().code(), Some(1));
        let said = std::fs::read_to_string(place.at("seeds.txt")).unwrap();
        assert!(said.contains("interrupted: 0 of 2 seeds"), "{said}");
        assert!(place.at("seeds/seed0").exists() && !place.at("seeds/seed1").exists());
    }

    /// And a process that is killed does not leave its claim behind.
    #[test]
    fn a_folder_belongs_to_one_process() {
        let place = Place::with_pictures(16);
        let mut run = Running::start(&place, "one", &["pretrain.epochs=100000000"]);
        wait_for(&place.at("one.txt"), "anchors");
        let refused = place.command("one", &[DRAWN]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let said = text(&refused.stderr);
        assert!(said.contains("another run is writing here"), "{said}");
        run.0.kill().unwrap();
        run.0.wait().unwrap();
        assert_eq!(place.run("one", &[DRAWN]).len(), 3);
    }

    #[test]
    fn the_second_ends_it_at_once() {
        let place = Place::with_pictures(16);
        // A round that would not end today.
        let mut run = Running::start(&place, "endless", &["client.epochs=100000000"]);
        wait_for(&place.at("endless.txt"), "pre-trained");
        run.interrupt();
        wait_for(&place.at("endless.txt"), "ending after this round");
        assert!(run.0.try_wait().unwrap().is_none());
        run.interrupt();
        let status = run.0.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{status}");
        assert!(!place.at("endless").join(files::SUMMARY).exists());
    }
}
