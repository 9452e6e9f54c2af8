//! One client's failure costs that client's update and names the client; the run continues with the others.

#![allow(clippy::unwrap_used)]

use fedanchor::engine::tensors::Params;
use fedanchor::messages::{Broadcast, Update};
use fedanchor::methods::{self, ClientReport, Cohort, Registration};
use fedanchor::server::Server;
use fedanchor::{Error, Method, Result, Simulation, register, resolve};
use fedanchor_record::{Losses, Outcome};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use tch::{Device, Kind, Tensor};
use toml::Table;

/// Supervised training in which three clients fail, each in its own way.
struct Flaky(Box<dyn Method>);

impl Method for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn pretrain(&self, server: &mut Server, epoch: u32) -> Result<Losses> {
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
    ) -> Result<Losses> {
        self.0.server_update(server, aggregate, round)
    }

    fn observe_update(&self, _: &mut Server, _: u32, _: &Update) -> Result<()> {
        panic!("only for methods that ask for it")
    }

    fn sees_labels(&self) -> bool {
        true
    }
}

fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let supervised = methods::find("supervised")?;
    Ok(Box::new(Flaky((supervised.build)(settings)?)))
}

fn simulation(settings: &[&str]) -> Simulation {
    static REGISTERED: Once = Once::new();
    let registration = Registration::new("flaky", "augment = \"weak\"", build);
    REGISTERED.call_once(|| register(registration).unwrap());
    let keys = ["model.name=small", "data.name=sample", "data.anchors=50", "data.clients=8"];
    let more = ["client.per_round=8", "client.epochs=1", "pretrain.epochs=1", "client.batch=32"];
    let all = keys.iter().chain(&more).chain(&["method.name=flaky"]).chain(settings);
    let experiment = resolve("", &all.map(|&key| key.to_owned()).collect::<Vec<_>>()).unwrap();
    let data = fedanchor::simulation::load(&experiment).unwrap();
    Simulation::new(experiment, data, Some(1)).unwrap()
}

#[test]
fn a_failing_client_is_named_and_the_others_count() {
    let simulation = simulation(&[]);
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&AtomicBool::new(false)).unwrap();
    for round in 1..=2 {
        let record = coordinator.round(&mut fleet, round).unwrap().record;
        assert_eq!((record.clients.len(), record.trained), (8, 5));
        assert_eq!(record.outcome, Outcome::Applied);
        let failed: Vec<u32> = record.failed.iter().map(|note| note.client).collect();
        assert_eq!(failed, [1, 3, 5]);
        assert_eq!(record.failed[0].reason, "method flaky: no battery");
        assert!(record.failed[1].reason.starts_with("out of memory"), "{:?}", record.failed[1]);
        assert!(record.failed[2].reason.contains("size of tensor"), "{:?}", record.failed[2]);
        // Failing is no offence: they are drawn again.
        assert!(record.rejected.is_empty() && record.excluded.is_empty());
    }
}

#[test]
fn a_failure_is_no_answer() {
    let simulation = simulation(&["checks.quorum=6"]);
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    let start = coordinator.pretrain(&AtomicBool::new(false)).unwrap().record;
    let record = coordinator.round(&mut fleet, 1).unwrap().record;
    assert_eq!((record.outcome, record.test_loss), (Outcome::NoQuorum, start.test_loss));
}
