//! Clients whose images nobody has labelled: the same run as with labels, less what only these could tell.

#![allow(clippy::unwrap_used)]

use fedanchor::{Simulation, resolve};
use fedanchor_data::{DataSet, Unlabelled, sample};

const BRIEF: &[&str] = &[
    "data.anchors=0",
    "data.clients=5",
    "partition.kind=iid",
    "model.name=small",
    "pretrain.epochs=2",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=32",
    "method.threshold=-1",
    "rounds=1",
];

/// 50 labelled images of the sample, and 200 others whose labels are thrown away.
fn data(clients: Vec<Vec<u32>>) -> DataSet {
    let mut data = sample::load().unwrap();
    let by_class = |class: u16| {
        let labels = data.train.labels.as_ref().unwrap();
        (0..).zip(labels).filter(move |(_, label)| **label == class).map(|(at, _): (u32, _)| at)
    };
    let labelled: Vec<u32> = (0..10).flat_map(|class| by_class(class).take(5)).collect();
    let others: Vec<u32> = (0..10).flat_map(|class| by_class(class).skip(5).take(20)).collect();
    let mut images = data.train.select(&others);
    images.labels = None;
    let client_names = (0..clients.len()).map(|client| format!("site {client}")).collect();
    data.unlabelled = Some(Unlabelled { images, clients, client_names });
    data.train = data.train.select(&labelled);
    data.test = data.test.select(&(0..100).collect::<Vec<_>>());
    data
}

fn simulation(settings: &[&str], clients: Vec<Vec<u32>>) -> fedanchor::Result<Simulation> {
    let settings: Vec<String> =
        BRIEF.iter().chain(settings).map(|setting| (*setting).to_owned()).collect();
    Simulation::new(resolve("preset = \"best\"", &settings)?, data(clients), Some(1))
}

#[test]
fn unlabelled_images_are_trained_on_and_what_labels_would_tell_is_null() {
    let simulation = simulation(&[], vec![]).unwrap();
    assert_eq!(
        (simulation.federation.split.anchors.len(), simulation.federation.split.pool.len()),
        (50, 200)
    );
    assert_eq!(simulation.federation.experiment.data.anchors, 50);
    let mut all = simulation.partition.clients.concat();
    all.sort_unstable();
    assert_eq!(all, (50..250).collect::<Vec<u32>>());
    assert!(simulation.histogram().is_none());
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&mut |_, _| true).unwrap();
    let record = coordinator.round(&mut fleet, 1).unwrap().record;
    assert_eq!((record.seen, record.kept, record.trained), (80, 80, 2));
    assert_eq!((record.anchor_head.all, record.classifier_head.kept), (None, None));
}

/// Nobody knows which labels are wrong: what was kept with the lowest scores, and what was nearly kept.
#[test]
fn samples_are_those_next_to_the_threshold() {
    use fedanchor_record::SampleKind::{KeptDoubtful, LeftOut};
    let settings = ["record.samples=3", "method.threshold=client-mean"];
    let simulation = simulation(&settings, vec![]).unwrap();
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&mut |_, _| true).unwrap();
    coordinator.round(&mut fleet, 1).unwrap();
    let picked = simulation.take_picked().unwrap();
    let kinds: Vec<_> = picked.samples.iter().map(|sample| sample.kind).collect();
    assert_eq!((picked.round, &kinds[..]), (1, &[[KeptDoubtful; 3], [LeftOut; 3]].concat()[..]));
    for sample in &picked.samples {
        let kept = f64::from(sample.score) >= sample.threshold.unwrap();
        assert_eq!(kept, sample.kind == KeptDoubtful, "{sample:?}");
        assert!((50..250).contains(&sample.image), "{sample:?}");
    }
    assert!(picked.samples[..3].is_sorted_by(|a, b| a.score <= b.score), "{picked:?}");
    assert!(picked.samples[3..].is_sorted_by(|a, b| a.score >= b.score), "{picked:?}");
}

#[test]
fn clients_with_folders_of_their_own_keep_their_images() {
    let clients = vec![(0..20).collect(), (20..200).collect()];
    let simulation = simulation(&["partition.kind=lda"], clients).unwrap();
    let expected: [Vec<u32>; 2] = [(50..70).collect(), (70..250).collect()];
    assert_eq!(simulation.partition.clients, expected);
    assert_eq!(simulation.client_names, ["site 0", "site 1"]);
    assert_eq!(simulation.federation.experiment.data.clients, 2);
}

#[test]
fn what_needs_labels_or_images_that_are_not_there_is_refused() {
    let refused = |settings: &[&str], clients: Vec<Vec<u32>>| match simulation(settings, clients) {
        Ok(_) => panic!("{settings:?} is accepted"),
        Err(error) => error.to_string(),
    };
    let error = refused(&["partition.kind=lda"], vec![]);
    assert!(error.contains("partition.kind: needs the labels of the clients' images"), "{error}");
    let error = refused(&["data.anchors=51"], vec![]);
    assert!(error.contains("there are 50 labelled images, not 51: set 0"), "{error}");
    let error = refused(&[], vec![(0..200).collect()]);
    assert!(error.contains("2 clients per round, but the data has 1"), "{error}");
    let error = refused(&["data.validation=49"], vec![]);
    assert!(error.contains("49 validation images leave no anchor"), "{error}");
    let settings: Vec<String> = BRIEF.iter().skip(1).map(|setting| (*setting).to_owned()).collect();
    let supervised: Vec<String> = settings
        .iter()
        .filter(|setting| !setting.starts_with("method"))
        .cloned()
        .chain(["method.name=supervised".to_owned(), "data.anchors=0".to_owned()])
        .collect();
    let experiment = resolve("preset = \"best\"", &supervised).unwrap();
    let error = Simulation::new(experiment, data(vec![]), Some(1)).err().unwrap().to_string();
    assert!(error.contains("`supervised` trains on the clients' labels"), "{error}");
    let experiment = resolve("preset = \"paper\"", &["data.anchors=0".to_owned()]).unwrap();
    let error = Simulation::new(experiment, sample::load().unwrap(), Some(1)).err().unwrap();
    assert!(error.to_string().contains("leaves none for the clients"), "{error}");
}
