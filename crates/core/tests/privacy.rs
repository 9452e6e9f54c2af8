//! Private runs: what they cost, what their records leave out, and what an attacker learns from what they publish.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use fedanchor::aggregation::{Rule, WeightedMean};
use fedanchor::engine::tensors::Params;
use fedanchor::messages::ClientOutcome;
use fedanchor::methods::uploaded;
use fedanchor::privacy::{PrivateMean, Secrecy};
use fedanchor::{Resume, RunOptions, Simulation, resolve};
use fedanchor_data::{Purpose, Stream};
use fedanchor_record::{RoundRecord, files};
use std::path::Path;
use tch::{Kind, Tensor};

const BRIEF: &[&str] = &[
    "data.name=sample",
    "model.name=small",
    "data.anchors=60",
    "data.clients=100",
    "client.per_round=20",
    "client.epochs=1",
    "client.batch=16",
    "pretrain.epochs=3",
    "method.threshold=0.2",
    "compare=false",
];

fn simulation(settings: &[&str]) -> (fedanchor::Experiment, Simulation) {
    let keys: Vec<String> = BRIEF.iter().chain(settings).map(|&key| key.to_owned()).collect();
    let experiment = resolve("", &keys).unwrap();
    let data = fedanchor::simulation::load(&experiment).unwrap();
    let simulation = Simulation::new(experiment.clone(), data, Some(1)).unwrap();
    (experiment, simulation)
}

fn records(folder: &Path) -> Vec<RoundRecord> {
    let text = std::fs::read_to_string(folder.join(files::ROUNDS)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_costs_what_it_may_and_tells_nothing_of_its_clients() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let (experiment, _) =
        simulation(&["rounds=3", "privacy={epsilon=4.0, delta=1e-3, clip=0.5, quantile=0.5}"]);
    fedanchor::run(&experiment, RunOptions::new(&out), &mut ()).unwrap();
    let found = records(&out);
    assert_eq!(found.len(), 4);
    assert!(found[0].privacy.is_none());
    let spent: Vec<_> = found[1..].iter().map(|record| record.privacy.unwrap()).collect();
    assert!(spent.windows(2).all(|pair| pair[0].epsilon < pair[1].epsilon));
    assert!((3.99..=4.0).contains(&spent[2].epsilon), "{spent:?}");
    assert_eq!(spent[2].left, Some(4.0 - spent[2].epsilon));
    assert_ne!(spent[0].clip, spent[2].clip, "it follows the quantile");
    for record in &found[1..] {
        let RoundRecord { clients, trained, seen, kept, kept_deviation, bytes_up, .. } = record;
        assert_eq!((clients.len(), *trained, *seen, *kept, *bytes_up), (0, 0, 0, 0, 0));
        assert!(kept_deviation.is_none() && record.client_names.is_empty());
        let known = |who: &str| {
            let mut names = record.losses.names().filter(|name| name.starts_with(who));
            names.any(|name| record.losses.get(name).is_some())
        };
        assert!(!known("client_") && known("server_"));
    }
    // The noise is that of the whole run, also if it is then run for longer: there is nothing left.
    let text = std::fs::read_to_string(out.join(files::CONFIG)).unwrap();
    let longer = resolve(&text, &["rounds=5".to_owned()]).unwrap();
    let options = RunOptions { resume: Resume::Yes, ..RunOptions::new(&out) };
    let summary = fedanchor::run(&longer, options, &mut ()).unwrap();
    assert_eq!((summary.rounds, summary.rounds_planned), (3, 5));
}

/// The budget ends a run of given noise; an interrupted run has the bytes of one that was not.
#[test]
fn a_run_stops_before_it_would_exceed_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let privacy = "privacy={noise=1.2, epsilon=3.0, delta=1e-3, clip=0.5}";
    let (experiment, _) = simulation(&["rounds=30", "optimiser.schedule=constant", privacy]);
    let summary = fedanchor::run(&experiment, RunOptions::new(&whole), &mut ()).unwrap();
    assert!((2..20).contains(&summary.rounds), "{}", summary.rounds);
    let last = *records(&whole).last().unwrap().privacy.as_ref().unwrap();
    assert!(last.epsilon <= 3.0 && last.releases == summary.rounds);
    let (short, _) = simulation(&["rounds=1", "optimiser.schedule=constant", privacy]);
    fedanchor::run(&short, RunOptions::new(&parts), &mut ()).unwrap();
    let options = RunOptions { resume: Resume::Yes, ..RunOptions::new(&parts) };
    fedanchor::run(&experiment, options, &mut ()).unwrap();
    let read = |folder: &Path| std::fs::read(folder.join(files::ROUNDS)).unwrap();
    assert!(read(&whole) == read(&parts));
}

#[test]
fn a_budget_that_no_noise_keeps_is_refused_before_the_run() {
    for (setting, expected) in [
        ("privacy={epsilon=0.01, delta=1e-3, clip=1.0, noise=0.5}", "privacy.epsilon: the first"),
        ("privacy={epsilon=1.0, delta=0.05, clip=1.0}", "privacy.delta: must be below one over"),
    ] {
        let keys: Vec<String> = BRIEF.iter().chain([&setting]).map(|&key| key.to_owned()).collect();
        let experiment = resolve("", &keys).unwrap();
        let data = fedanchor::simulation::load(&experiment).unwrap();
        let refused = Simulation::new(experiment, data, Some(1)).err().unwrap().to_string();
        assert!(refused.starts_with(expected), "{refused}");
    }
    let fedmatch = ["method.name=fedmatch", "privacy={noise=1.0, delta=1e-3, clip=1.0}"];
    let keys = BRIEF.iter().chain(&fedmatch);
    let experiment = resolve("", &keys.map(|&key| key.to_owned()).collect::<Vec<_>>()).unwrap();
    let data = fedanchor::simulation::load(&experiment).unwrap();
    let refused = Simulation::new(experiment, data, Some(1)).err().unwrap().to_string();
    assert!(refused.starts_with("method.name: `fedmatch` shows clients"), "{refused}");
}

/// One row of numbers.
fn row(change: impl Iterator<Item = Tensor>) -> Tensor {
    Tensor::cat(&change.map(|tensor| tensor.flatten(0, -1)).collect::<Vec<_>>(), 0)
        .to_kind(Kind::Double)
}

fn change(params: &Params, sent: &Params) -> Tensor {
    let entries = params.entries().zip(&sent.tensors).filter(|((entry, _), _)| !entry.statistic);
    row(entries.map(|((_, to), from)| to - from))
}

/// The probability that a member scores higher than somebody else: 50 % if the scores tell nothing.
fn area(members: &[f64], others: &[f64]) -> f64 {
    let wins = members.iter().flat_map(|member| {
        others.iter().map(move |other| {
            if member > other { 1.0 } else { 0.5 * f64::from(u8::from(member == other)) }
        })
    });
    100.0 * wins.sum::<f64>() / (members.len() * others.len()) as f64
}

/// Who took part in a round? The attacker has the model before and after, and computes the update that each client's
/// pictures give: as strong as an attack without secrets of the coordinator can be. Updates of half of 100 clients.
#[test]
fn an_attacker_hardly_learns_who_took_part() {
    let (_, simulation) = simulation(&["batch_norm.statistics=static-server"]);
    let mut coordinator = simulation.coordinator().unwrap();
    coordinator.pretrain(&mut |_, _| true).unwrap();
    let federation = &simulation.federation;
    let everyone: Vec<u32> = (0..100).collect();
    let broadcast =
        federation.method.broadcast(&coordinator.server, 1, &everyone).unwrap().unwrap();
    let sent = uploaded(&federation.context, &*federation.method, &broadcast.params);
    let mut fleet = simulation.fleet();
    let updates: Vec<Params> = everyone
        .iter()
        .map(|&client| match fleet.train_client(client, &broadcast).unwrap().outcome {
            ClientOutcome::Update(update) => update.params.copy().unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    let changes: Vec<Tensor> = updates.iter().map(|update| change(update, &sent)).collect();
    let mut norms: Vec<f64> =
        changes.iter().map(|change| change.norm().double_value(&[])).collect();
    norms.sort_by(f64::total_cmp);
    let clip = norms[50];
    // What all have in common tells nothing of one of them.
    let common = Tensor::stack(&changes, 0).mean_dim(&[0i64][..], false, Kind::Double);
    let attack = |published: &Params| {
        let published = change(published, &sent) - &common;
        let score = |change: &Tensor| {
            let own = change - &common;
            (own.dot(&published) / own.norm()).double_value(&[])
        };
        let scores: Vec<f64> = changes.iter().map(score).collect();
        area(&scores[..50], &scores[50..])
    };
    let mut mean = WeightedMean::default();
    updates[..50].iter().for_each(|update| mean.add(update, 1.0).unwrap());
    let plain = attack(&mean.finish().unwrap().unwrap());
    let private = |noise: f64| {
        let areas = (0..20).map(|draw| {
            let key = Stream::new(draw, Purpose::Privacy, 1, 0);
            let draws = Secrecy::Seed.draws(key).unwrap();
            let mut rule = Box::new(PrivateMean::new(clip, noise, 50.0, draws));
            updates[..50].iter().for_each(|update| rule.add(update, 1.0, &sent).unwrap());
            attack(&rule.finish(&sent).unwrap().unwrap())
        });
        areas.sum::<f64>() / 20.0
    };
    let found = [0.1, 1.0, 4.0].map(private);
    eprintln!(
        "who took part, right of 100 pairs: {plain:.1} without noise, {found:.1?} with noise 0.1, 1, 4"
    );
    assert!(plain > 90.0 && found[1] < 75.0 && found[2] < 60.0, "{plain} {found:?}");
}

/// The same for somebody who knows all other updates, the case that epsilon bounds: the right answer is as frequent as
/// the noise allows, which shows that there is as much noise as is said.
#[test]
fn who_knows_all_others_learns_what_the_noise_allows() {
    let layout = std::sync::Arc::new(vec![fedanchor::engine::tensors::Entry {
        name: "weight".to_owned(),
        shape: vec![50],
        part: fedanchor::engine::tensors::Part::Backbone,
        statistic: false,
    }]);
    let model = |value: f64| Params {
        layout: layout.clone(),
        tensors: vec![Tensor::full([1, 50], value, (Kind::Float, tch::Device::Cpu))],
    };
    let (sent, own) = (model(0.0), model(1.0));
    for (noise, expected) in [(0.5, 92.1), (1.0, 76.0), (4.0, 57.0)] {
        let score = |draw: u64, takes_part: bool| {
            let draws =
                Secrecy::Seed.draws(Stream::new(draw, Purpose::Privacy, u32::from(takes_part), 0));
            let mut rule = Box::new(PrivateMean::new(1.0, noise, 1.0, draws.unwrap()));
            if takes_part {
                rule.add(&own, 1.0, &sent).unwrap();
            }
            rule.finish(&sent).unwrap().unwrap().tensors[0].sum(Kind::Double).double_value(&[])
        };
        let members: Vec<f64> = (0..1000).map(|draw| score(draw, true)).collect();
        let others: Vec<f64> = (0..1000).map(|draw| score(draw, false)).collect();
        let found = area(&members, &others);
        assert!((found - expected).abs() < 3.0, "noise {noise}: {found}, expected {expected}");
    }
}
