//! What a run folder contains, and whether it is the same again.

use crate::workspace::{SMALL, Workspace, lines, table, text};
use fedanchor::engine::model::Network;
use fedanchor::engine::tensors::Part;
use fedanchor::labels::Anchors;
use fedanchor::messages::{Answer, Broadcast, ClientOutcome, Update};
use fedanchor::{Experiment, Model, methods};
use fedanchor_data::{Shape, sample};
use fedanchor_record::{Assignment, RoundRecord, Summary, Timing, files};
use tch::{Kind, Tensor};

#[test]
fn a_run_folder_tells_everything() {
    let workspace = Workspace::new();
    let records = workspace.run("run", &[SMALL]);
    let names: Vec<String> = workspace.content("run").into_keys().collect();
    let mut expected = [
        files::CONFIG,
        files::ROUNDS,
        files::TIMINGS,
        files::SUMMARY,
        files::CHECKSUMS,
        files::PARTITION,
        files::ASSIGNMENT,
        files::CONFUSION,
        files::SIMILARITY,
        files::MODEL,
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);

    // The config is the experiment, and running it again is the same run.
    let config = workspace.read("run", files::CONFIG);
    let experiment = fedanchor::resolve(&config, &[]).unwrap();
    assert_eq!((experiment.rounds, experiment.data.clients), (2, 200));
    workspace.succeed(&mut workspace.command_of("run/config.toml", "again"));
    let (run, again) = (workspace.content("run"), workspace.content("again"));
    for file in [files::CONFIG, files::ROUNDS, files::MODEL] {
        assert!(again[file] == run[file], "{file} is not the same");
    }

    let assignment = check_assignment(&workspace);
    check_records(&records, &assignment);
    check_model_and_bytes(&workspace, &experiment, &records);
    let summary = check_summary(&workspace, &records);
    check_matrices(&workspace, &summary);
}

/// Anchors and clients share all images between them, and the histogram counts the same.
fn check_assignment(workspace: &Workspace) -> Assignment {
    let assignment: Assignment =
        serde_json::from_str(&workspace.read("run", files::ASSIGNMENT)).unwrap();
    assert_eq!((assignment.anchors.len(), assignment.clients.len()), (50, 200));
    let mut all = assignment.anchors.clone();
    all.extend(assignment.clients.iter().flatten());
    all.sort_unstable();
    assert_eq!(all, (0..6000).collect::<Vec<u32>>());

    let labels = sample::load().unwrap().train.labels.unwrap();
    let (_, histogram) = table(&workspace.read("run", files::PARTITION));
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

/// Validation images are nobody's, and only their accuracy comes of them.
#[test]
fn validation_images_are_held_out() {
    let workspace = Workspace::new();
    let records = workspace.run("run", &[SMALL, &["data.validation=1000"]]);
    let assignment: Assignment =
        serde_json::from_str(&workspace.read("run", files::ASSIGNMENT)).unwrap();
    assert_eq!(assignment.validation.len(), 1000);
    let clients = assignment.clients.concat();
    let mut all = [assignment.anchors, assignment.validation, clients].concat();
    all.sort_unstable();
    assert_eq!(all, (0..6000).collect::<Vec<u32>>());
    let accuracy: Vec<f64> = records.iter().map(|r| r.validation_accuracy.unwrap()).collect();
    assert!(records.iter().zip(&accuracy).all(|(record, a)| record.test_accuracy != *a));
    assert_eq!(workspace.summary("run").final_validation_accuracy, accuracy.last().copied());
}

fn check_records(records: &[RoundRecord], assignment: &Assignment) {
    assert_eq!(records.iter().map(|r| r.round).collect::<Vec<_>>(), [0, 1, 2]);
    let first = &records[0];
    assert_eq!((first.clients.len(), first.seen, first.bytes_down), (0, 0, 0));
    for record in records {
        assert!((0.0..=100.0).contains(&record.test_accuracy), "{record:?}");
        assert!(record.test_loss > 0.0 && record.test_loss.is_finite(), "{record:?}");
        assert!(record.losses.get("server_fix").is_some_and(f64::is_finite), "{record:?}");
        assert!(record.losses.get("server_contrastive").is_some_and(f64::is_finite), "{record:?}");
    }
    for record in &records[1..] {
        assert!(record.clients.is_sorted_by(|a, b| a < b) && record.clients.len() == 2);
        let sizes = record.clients.iter().map(|&client| assignment.clients[client as usize].len());
        assert_eq!(record.seen, sizes.sum::<usize>(), "{record:?}");
        assert!(record.kept > 0 && record.kept <= record.seen, "{record:?}");
        assert!(record.trained > 0 && record.trained <= 2, "{record:?}");
        assert!(record.losses.get("client_fix").is_some_and(f64::is_finite), "{record:?}");
        assert!(record.losses.get("client_mix").is_some_and(f64::is_finite), "{record:?}");
        assert!(record.anchor_head.all.is_some_and(|right| (0.0..=100.0).contains(&right)));
    }
}

/// The model file holds exactly the network's entries; a client sends all but the anchor head, and
/// gets all of it and ten means of 128 numbers.
fn check_model_and_bytes(workspace: &Workspace, experiment: &Experiment, records: &[RoundRecord]) {
    let shape = Shape { side: 28, channels: 1 };
    let heads = methods::build(&experiment.method).unwrap().properties().heads;
    let network = Network::new(&experiment.model, heads, shape, 10).unwrap();
    let device = experiment.device().unwrap();
    // The file alone is enough to read it back; an entry too many, too few or of another shape is refused.
    let model = Model::load(&workspace.at("run").join(files::MODEL), device).unwrap();
    assert_eq!((model.description.shape, model.classes().len()), (shape, 10));
    assert_eq!(model.network().layout, network.layout);
    assert_eq!(model.class_means.size(), [10, 128]);
    let params = model.params;
    let update = || Update {
        params: params.subset(|entry| entry.part != Part::Anchor),
        rounding: None,
        samples: 30,
        kept: 10,
        losses: Vec::new(),
        labels: Vec::new(),
    };
    for record in &records[1..] {
        let round = record.round;
        let mut broadcast = Broadcast::new("fedanchor", round, params.shallow_copy());
        let means = Tensor::zeros([10, 128], (Kind::Float, device));
        Anchors::ClassMeans(means).put_into(&mut broadcast.arrays);
        let down = record.clients.iter().map(|&client| broadcast.encode(client).unwrap().len());
        assert_eq!(record.bytes_down, down.sum::<usize>() as u64);
        // The losses' digits are not known here.
        let (method, outcome) = ("fedanchor".to_owned(), ClientOutcome::Update(update()));
        let answer =
            Answer { method, round, client: record.clients[0], tested: Vec::new(), outcome };
        let up = (answer.encode().unwrap().len() * record.trained) as u64;
        assert!((up..up + 100 * record.trained as u64).contains(&record.bytes_up), "{record:?}");
    }
}

fn check_summary(workspace: &Workspace, records: &[RoundRecord]) -> Summary {
    let summary = workspace.summary("run");
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
    assert_eq!(summary.build, fedanchor_cli::build());

    let timings: Vec<Timing> = lines(&workspace.read("run", files::TIMINGS));
    assert_eq!(timings.iter().map(|t| t.round).collect::<Vec<_>>(), [0, 1, 2]);
    for t in &timings {
        let parts = t.broadcast + t.clients + t.aggregate + t.server + t.test;
        assert!(parts > 0.0 && parts <= t.total, "{t:?}");
    }
    let total: f64 = timings.iter().map(|timing| timing.total).sum();
    assert!(total <= summary.seconds, "{total} in {}", summary.seconds);
    summary
}

fn check_matrices(workspace: &Workspace, summary: &Summary) {
    let confusion = workspace.read("run", files::CONFUSION);
    let (names, confusion) = table(&confusion);
    assert_eq!(names, summary.classes);
    // The sample has 100 test images of every class.
    assert!(confusion.iter().all(|row| row.iter().sum::<f64>() == 100.0) && confusion.len() == 10);
    let right: f64 = (0..10).map(|class| confusion[class][class]).sum();
    assert_eq!(right / 10.0, summary.final_accuracy);

    let similarity = workspace.read("run", files::SIMILARITY);
    let (names, similarity) = table(&similarity);
    assert_eq!(names, summary.classes);
    for (a, row) in similarity.iter().enumerate() {
        assert!((row[a] - 1.0).abs() < 1e-5, "class {a} with itself: {}", row[a]); // f32
        for (b, cosine) in row.iter().enumerate() {
            assert!(cosine.abs() < 1.0 + 1e-5 && (cosine - similarity[b][a]).abs() < 1e-5);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let workspace = Workspace::new();
    let run = |out: &str, workers: &str, seed: &str| {
        let mut command = workspace.command(out, &[SMALL, &["rounds=1", seed]]);
        // Several threads in libtorch too: the order of its sums must not depend on who comes first.
        command.env("OMP_NUM_THREADS", "2").env("OMP_WAIT_POLICY", "PASSIVE");
        workspace.succeed(command.args(["--workers", workers]));
        workspace.content(out)
    };
    let (one, three, other) =
        (run("1", "1", "seed=0"), run("3", "3", "seed=0"), run("o", "1", "seed=1"));
    for file in one
        .keys()
        .filter(|name| ![files::TIMINGS, files::SUMMARY, files::CHECKSUMS].contains(&&***name))
    {
        assert!(one[file] == three[file], "{file} is not the same for three workers");
    }
    for file in [files::ROUNDS, files::MODEL, files::ASSIGNMENT] {
        assert!(one[file] != other[file], "{file} does not depend on the seed");
    }

    // A folder that holds a run is left as it is.
    let refused = workspace.command("1", &[SMALL]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("holds a run already"), "{}", text(&refused.stderr));
    assert!(workspace.content("1") == one);
}
