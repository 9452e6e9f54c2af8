//! One client's failure costs that client's update and names the client; the run continues with the others.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::tensors::Params;
use fedanchor::federation::{Arrival, ClientKey, Delivery, Fleet, Member, RoundTask};
use fedanchor::messages::{Broadcast, ClientOutcome, Update};
use fedanchor::methods::{self, ClientReport, Cohort, MeanLosses, Properties, Registration};
use fedanchor::server::Server;
use fedanchor::simulation::SimulatedFleet;
use fedanchor::{
    Error, Experiment, Method, Result, Resume, RunClients, RunOptions, Simulation, register,
    resolve,
};
use fedanchor_record::Outcome;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tch::{Device, Kind, Tensor};
use toml::Table;

/// Supervised training in which three clients fail, each in its own way.
struct Flaky(Box<dyn Method>);

impl Method for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<MeanLosses> {
        self.0.pretrain(server, epoch)
    }

    fn broadcast(&self, server: &Server, round: u32, ids: &[u32]) -> Result<Option<Broadcast>> {
        let broadcast = self.0.broadcast(server, round, ids)?;
        Ok(broadcast.map(|broadcast| Broadcast { method: "flaky".to_owned(), ..broadcast }))
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let options = (Kind::Float, Device::Cpu);
        for client in &cohort.clients {
            match client.id {
                1 => return Err(Error::method("flaky", "no battery")),
                // What libtorch reports by an error, and what its bindings report by a panic.
                3 => drop(Tensor::f_zeros([1 << 60], options)?),
                5 => drop(Tensor::zeros([2], options).f_lerp_(&Tensor::zeros([3], options), 0.5)?),
                _ => {}
            }
        }
        self.0.client_update(cohort, broadcast)
    }

    fn server_update(
        &self,
        server: &mut Server,
        aggregate: Option<Params>,
        round: u32,
    ) -> Result<MeanLosses> {
        self.0.server_update(server, aggregate, round)
    }

    fn observe_update(&self, _: &mut Server, _: u32, _: &Update) -> Result<()> {
        panic!("only for methods that ask for it")
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }
}

fn build(_: &Table) -> Result<Box<dyn Method>> {
    Ok(Box::new(Flaky(methods::supervised())))
}

fn experiment(settings: &[&str]) -> Experiment {
    static REGISTERED: Once = Once::new();
    let registration = Registration::new("flaky", "", build);
    REGISTERED.call_once(|| register(registration).unwrap());
    let keys = [
        "model.name=small",
        "data.name=sample",
        "server.batch=10",
        "data.anchors=50",
        "data.clients=8",
    ];
    let more = ["client.per_round=8", "client.epochs=1", "pretrain.epochs=1", "client.batch=32"];
    let all = keys.iter().chain(&more).chain(&["method.name=flaky"]).chain(settings);
    resolve("preset = \"paper\"", &all.map(|&key| key.to_owned()).collect::<Vec<_>>()).unwrap()
}

fn simulation(settings: &[&str]) -> Simulation {
    let experiment = experiment(settings);
    let data = fedanchor::simulation::load(&experiment).unwrap();
    Simulation::new(experiment, data, Some(1)).unwrap()
}

#[test]
fn a_failing_client_is_named_and_the_others_count() {
    let simulation = simulation(&[]);
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&mut |_, _| true).unwrap();
    for round in 1..=2 {
        let record = coordinator.round(&mut fleet, round).unwrap().record;
        assert_eq!((record.clients.len(), record.trained), (8, 5));
        assert_eq!(record.outcome, Outcome::Applied);
        let failed: Vec<u32> = record.failed.iter().map(|note| note.client).collect();
        assert_eq!(failed, [1, 3, 5]);
        assert_eq!(record.failed[0].reason, "method flaky: no battery");
        assert!(record.failed[1].reason.starts_with("out of memory"), "{:?}", record.failed[1]);
        assert!(record.failed[2].reason.contains("size of tensor"), "{:?}", record.failed[2]);
        // A failure does not count against a client: it is drawn again.
        assert!(record.rejected.is_empty() && record.excluded.is_empty());
    }
}

#[test]
fn a_failure_is_no_answer() {
    let simulation = simulation(&["checks.quorum=6"]);
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    let start = coordinator.pretrain(&mut |_, _| true).unwrap().record;
    let record = coordinator.round(&mut fleet, 1).unwrap().record;
    assert_eq!((record.outcome, record.test_loss), (Outcome::NoQuorum, start.test_loss));
}

/// A client that is slower than the deadline is named, and not counted against.
#[test]
fn answers_after_the_deadline_do_not_count() {
    let simulation = simulation(&["checks.offences=1"]);
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    let start = coordinator.pretrain(&mut |_, _| true).unwrap().record;
    coordinator.deadline = Some(Duration::ZERO);
    for round in 1..=2 {
        let record = coordinator.round(&mut fleet, round).unwrap().record;
        assert_eq!((record.clients.len(), record.rejected.len()), (8, 8));
        assert!(record.rejected.iter().all(|n| n.reason == "answered after the round was over"));
        assert!(record.excluded.is_empty());
        assert_eq!((record.outcome, record.test_loss), (Outcome::NoQuorum, start.test_loss));
    }
}

/// Someone asks to stop while the second round waits for its clients.
struct Stopped<'a>(SimulatedFleet<'a>, u32);

impl Fleet for Stopped<'_> {
    fn members(&mut self) -> Result<Vec<Member>> {
        self.1 += 1;
        if self.1 == 2 { Err(Error::Stopped) } else { self.0.members() }
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        self.0.train(task, take)
    }
}

/// The round has not happened, and the run can be resumed as after any other interruption.
#[test]
fn a_round_that_was_stopped_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, stopped) = (folder.path().join("whole"), folder.path().join("stopped"));
    let (experiment, stop) = (experiment(&["rounds=2", "compare=false"]), AtomicBool::new(false));
    fedanchor::run(
        &experiment,
        RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(&whole) },
        &mut (),
    )
    .unwrap();
    let wrap: &fedanchor::WrapFleet = &|clients| Ok(Box::new(Stopped(clients, 0)));
    let summary = fedanchor::run(
        &experiment,
        RunOptions {
            workers: Some(1),
            stop: &stop,
            clients: RunClients::Simulated(wrap),
            ..RunOptions::new(&stopped)
        },
        &mut (),
    )
    .unwrap();
    assert_eq!(summary.rounds, 1);
    fedanchor::run(
        &experiment,
        RunOptions {
            resume: Resume::Yes,
            workers: Some(1),
            stop: &stop,
            ..RunOptions::new(&stopped)
        },
        &mut (),
    )
    .unwrap();
    for name in ["rounds.jsonl", "model.safetensors"] {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert!(read(&whole) == read(&stopped), "{name}");
    }
}

/// A round without a quorum before the first: the first aggregated model is compared with the pre-trained one all the
/// same.
#[test]
fn the_anchors_are_watched_from_the_first_round_with_updates() {
    let checks = ["checks.anchor_margin=5", "checks.clip=0", "checks.distance=0"];
    let simulation = simulation(&[&checks[..], &["pretrain.epochs=20"]].concat());
    let mut coordinator = simulation.coordinator().unwrap();
    coordinator.pretrain(&mut |_, _| true).unwrap();
    let none = coordinator.round(&mut Flood(simulation.fleet()), 1).unwrap().record;
    assert_eq!((none.outcome, none.anchor_accuracy), (Outcome::NoQuorum, None));
    let ruin = coordinator.round(&mut Ruin(simulation.fleet()), 2).unwrap().record;
    assert_eq!(ruin.outcome, Outcome::RolledBack, "{ruin:?}");
}

/// All clients send the negative of what they trained.
struct Ruin<'a>(SimulatedFleet<'a>);

impl Fleet for Ruin<'_> {
    fn members(&mut self) -> Result<Vec<Member>> {
        self.0.members()
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        self.0.train(task, &mut |mut delivery| {
            if let Arrival::Answer(answer) = &mut delivery.arrival
                && let ClientOutcome::Update(update) = &mut answer.outcome
            {
                let layout = update.params.layout.clone();
                let entries = layout.iter().zip(&mut update.params.tensors);
                for (_, tensor) in entries.filter(|(entry, _)| !entry.statistic) {
                    *tensor = -&*tensor;
                }
            }
            take(delivery)
        })
    }
}

/// Every client sends the same garbage many times, in reverse order.
struct Flood<'a>(SimulatedFleet<'a>);

impl Fleet for Flood<'_> {
    fn members(&mut self) -> Result<Vec<Member>> {
        self.0.members()
    }

    fn train(
        &mut self,
        task: &RoundTask,
        take: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        let stranger = ClientKey::Name("nobody".to_owned());
        take(Delivery::now(stranger, Arrival::Encoded(vec![0; 100])))?;
        for (_, from) in task.clients.iter().rev() {
            for _ in 0..20 {
                let arrival = Arrival::Encoded(b"\x08\0\0\0\0\0\0\0{\"\x1b[2J".repeat(40));
                take(Delivery::now(from.clone(), arrival))?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_flood_of_garbage_is_one_rejection_per_client() {
    let simulation = simulation(&["checks.offences=2"]);
    let (mut coordinator, mut fleet) =
        (simulation.coordinator().unwrap(), Flood(simulation.fleet()));
    let start = coordinator.pretrain(&mut |_, _| true).unwrap().record;
    let records: Vec<_> =
        (1..=3).map(|round| coordinator.round(&mut fleet, round).unwrap().record).collect();
    for record in &records[..2] {
        assert_eq!((record.rejected.len(), record.trained, record.seen), (8, 0, 0), "{record:?}");
        assert!(record.rejected.iter().all(|note| !note.reason.contains('\u{1b}')));
        assert_eq!((record.outcome, record.test_loss), (Outcome::NoQuorum, start.test_loss));
    }
    assert_eq!((records[0].excluded.len(), records[1].excluded.len()), (0, 8));
    assert!(records[2].clients.is_empty());
}
