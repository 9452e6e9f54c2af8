//! A method from outside the crate, used as any other: by its name in an experiment file, in a sweep, after a
//! kill, and through a fleet that encodes every message.

#![allow(clippy::unwrap_used)]

#[path = "../../../crates/core/tests/loopback/fleet.rs"]
mod fleet;

use fedanchor::engine::tensors::Params;
use fedanchor::messages::ClientOutcome;
use fedanchor::{Simulation, resolve};
use fedanchor_record::{RoundRecord, files};
use fleet::Loopback;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use tch::Kind;

const EXPERIMENT: &str = r#"
rounds = 3
data = { name = "sample", anchors = 50, clients = 100 }
model.name = "small"
pretrain.epochs = 1
client = { per_round = 3, epochs = 1, batch = 16 }
method = { name = "fedprox", mu = 0.5 }
"#;

fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedprox"));
    command.current_dir(folder).env("OMP_NUM_THREADS", "1").args(arguments);
    command
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

#[test]
fn it_is_run_swept_and_resumed_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("prox.toml"), EXPERIMENT).unwrap();
    succeed(&mut program(folder, &["run", "prox.toml", "--out", "whole"]));
    let records = String::from_utf8(read(&folder.join("whole"), files::ROUNDS)).unwrap();
    let last: RoundRecord = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert!(last.round == 3 && last.trained == 3 && last.rejected.is_empty(), "{last:?}");
    // The proximal term is the second term of the loss.
    assert!(last.losses.client_mix.is_some_and(|term| term > 0.0), "{last:?}");

    // A setting that it does not have, and one out of range.
    for (setting, problem) in [
        ("method.nu=1", "method.nu: unknown field `nu`"),
        ("method.mu=-1", "method.mu: must be 0 to 1000, found -1"),
    ] {
        let refused = program(folder, &["run", "prox.toml", "--set", setting]).output().unwrap();
        assert!(String::from_utf8_lossy(&refused.stderr).contains(problem), "{refused:?}");
    }

    // Killed after its first round, then resumed: the same bytes.
    let mut run = program(folder, &["run", "prox.toml", "--out", "parts"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let checkpoint = folder.join("parts/checkpoints/round-000001.checkpoint");
    while !checkpoint.exists() && run.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let _ = run.kill(); // it may be done already
    run.wait().unwrap();
    succeed(&mut program(folder, &["run", "--resume", "parts"]));
    for name in [files::ROUNDS, files::MODEL] {
        assert!(read(&folder.join("whole"), name) == read(&folder.join("parts"), name), "{name}");
    }

    let sweep = format!("[base]\n{EXPERIMENT}\n[grid]\nmethod.mu = [0.0, 1.0]\n");
    std::fs::write(folder.join("sweep.toml"), sweep).unwrap();
    let output = succeed(&mut program(folder, &["sweep", "sweep.toml"]));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("method.mu=0.0") && table.contains("method.mu=1.0"), "{table}");
}

fn simulation(settings: &[&str]) -> Simulation {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| fedanchor::register(fedprox::REGISTRATION).unwrap());
    let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
    let experiment = resolve(EXPERIMENT, &settings).unwrap();
    let data = fedanchor::simulation::load(&experiment).unwrap();
    Simulation::new(experiment, data, Some(1)).unwrap()
}

#[test]
fn it_crosses_a_wire() {
    let experiment = simulation(&[]).experiment;
    let folder = tempfile::tempdir().unwrap();
    let (plain, encoded) = (folder.path().join("plain"), folder.path().join("encoded"));
    let stop = AtomicBool::new(false);
    fedanchor::run(&experiment, &plain, Some(1), &stop, &mut ()).unwrap();
    let wrap: &fedanchor::WrapFleet = &|clients| Ok(Box::new(Loopback::new(clients, 1)));
    fedanchor::run_with(&experiment, &encoded, Some(1), &stop, &mut (), wrap).unwrap();
    for name in [files::ROUNDS, files::MODEL] {
        assert!(read(&plain, name) == read(&encoded, name), "{name} differs");
    }
}

/// How far a client's update is from what it was sent.
fn moved(mu: &str) -> f64 {
    let simulation = simulation(&[mu]);
    let mut coordinator = simulation.coordinator().unwrap();
    coordinator.pretrain(&AtomicBool::new(false)).unwrap();
    let broadcast = simulation.method.broadcast(&coordinator.server, 1, &[0]).unwrap().unwrap();
    let answer = simulation.fleet().train_client(0, &broadcast).unwrap();
    let ClientOutcome::Update(update) = answer.outcome else { panic!() };
    let weights = |params: &Params| params.subset(|entry| !entry.statistic);
    let (now, sent) = (weights(&update.params), weights(&broadcast.params));
    let pairs = now.layout.iter().zip(&now.tensors).map(|(entry, now)| {
        let at = sent.layout.iter().position(|other| other.name == entry.name).unwrap();
        (now - &sent.tensors[at]).square().sum(Kind::Double).double_value(&[])
    });
    pairs.sum::<f64>().sqrt()
}

#[test]
fn the_term_holds_a_client_near_what_it_was_sent() {
    let (free, held) = (moved("method.mu=0"), moved("method.mu=20"));
    assert!(held < 0.8 * free, "{free} without the term, {held} with it");
}

#[test]
fn a_name_can_be_taken_once() {
    simulation(&[]);
    let again = fedanchor::register(fedprox::REGISTRATION).unwrap_err().to_string();
    assert_eq!(again, "method fedprox: there is a method of this name already");
}
