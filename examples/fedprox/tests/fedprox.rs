//! A method from outside the crate, used as any other: by its name in an experiment file, in a sweep, after a
//! kill, and through a fleet that encodes every message.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../../../crates/core/tests/loopback/fleet.rs"]
mod fleet;

use fedanchor::engine::tensors::Params;
use fedanchor::messages::ClientOutcome;
use fedanchor::{RunClients, RunOptions, Simulation, resolve};
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
    assert!(last.losses.get("client_proximal").is_some_and(|term| term > 0.0), "{last:?}");

    // A setting that it does not have, and one out of range.
    for (setting, problem) in [
        ("method.nu=1", "method.nu: unknown key; expected one of augment, mu, ramp_up"),
        ("method.mu=-1", "method.mu: must be between 0 and 1000, got -1"),
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

fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        fedanchor::register(fedprox::REGISTRATION).unwrap();
        fedanchor::register(by_field::REGISTRATION).unwrap();
    });
}

fn simulation(settings: &[&str]) -> Simulation {
    register();
    let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
    let experiment = resolve(EXPERIMENT, &settings).unwrap();
    let data = fedanchor::simulation::load(&experiment).unwrap();
    Simulation::new(experiment, data, Some(1)).unwrap()
}

#[test]
fn it_crosses_a_wire() {
    let experiment = simulation(&[]).federation.experiment;
    let folder = tempfile::tempdir().unwrap();
    let (plain, encoded) = (folder.path().join("plain"), folder.path().join("encoded"));
    let stop = AtomicBool::new(false);
    fedanchor::run(
        &experiment,
        RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(&plain) },
        &mut (),
    )
    .unwrap();
    let wrap: &fedanchor::WrapFleet = &|clients| Ok(Box::new(Loopback::new(clients, 1)));
    fedanchor::run(
        &experiment,
        RunOptions {
            workers: Some(1),
            stop: &stop,
            clients: RunClients::Simulated(wrap),
            ..RunOptions::new(&encoded)
        },
        &mut (),
    )
    .unwrap();
    for name in [files::ROUNDS, files::MODEL] {
        assert!(read(&plain, name) == read(&encoded, name), "{name} differs");
    }
}

/// How far a client's update is from what it was sent.
fn moved(mu: &str) -> f64 {
    let simulation = simulation(&[mu]);
    let mut coordinator = simulation.coordinator().unwrap();
    coordinator.pretrain(&mut |_, _| true).unwrap();
    let broadcast =
        simulation.federation.method.broadcast(&coordinator.server, 1, &[0]).unwrap().unwrap();
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

/// The same loss in PyTorch (`examples/python/fedprox.py`), under supervised training on the clients.
#[test]
fn the_loss_in_pytorch_trains_the_same_model() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/fedprox.loss");
    let torch =
        EXPERIMENT.replace("name = \"fedprox\", mu = 0.5", "name = \"supervised\"").replace(
            "client = { per_round",
            &format!("client = {{ loss = {{ file = \"{file}\", arguments.mu = 0.5 }}, per_round"),
        );
    register();
    // Further rounds make differences of rounding larger.
    let (rust, torch) =
        (play(EXPERIMENT, &["rounds=1"], false), play(&torch, &["rounds=1"], false));
    for ((entry, rust), torch) in
        rust.params.layout.iter().zip(&rust.params.tensors).zip(&torch.params.tensors)
    {
        let differ = (rust - torch).abs().max().double_value(&[]);
        assert!(differ < 1e-4, "{}: {differ}", entry.name);
    }
    for (rust, torch) in rust.records.iter().zip(&torch.records) {
        let distance = torch.losses.get("client_proximal").unwrap() / 0.25;
        assert!((rust.losses.get("client_proximal").unwrap() / distance - 1.0).abs() < 1e-3);
    }
}

#[test]
fn a_name_can_be_taken_once() {
    simulation(&[]);
    let again = fedanchor::register(fedprox::REGISTRATION).unwrap_err().to_string();
    assert_eq!(again, "method.name: a method called `fedprox` already exists");
}

/// The proximal term as it is usually written first, with its weight of this round as a field of the loss. A replayed
/// step would have the weight of the captured one; since a loss is a value, a changed field is another loss.
mod by_field {
    use fedanchor::config::Augmentation;
    use fedanchor::engine::Result as EngineResult;
    use fedanchor::engine::model::Pass;
    use fedanchor::engine::training::{FixMix, FixMixLoss, Inputs, Objective, StepLoss, Terms};
    use fedanchor::labels::PseudoLabels;
    use fedanchor::messages::Broadcast;
    use fedanchor::methods::{
        Client, ClientReport, ClientTrainer, Cohort, Contribution, Properties, Registration, losses,
    };
    use fedanchor::server::ServerEpochs;
    use fedanchor::{Method, Result};
    use fedanchor_record::ClientLabels;

    pub const REGISTRATION: Registration =
        Registration::new("by-field", "", |_| Ok(Box::new(ByField)));

    struct ByField;

    impl Method for ByField {
        fn name(&self) -> &'static str {
            "by-field"
        }

        fn client_update(
            &self,
            cohort: Cohort,
            broadcast: &Broadcast,
        ) -> Result<Vec<ClientReport>> {
            let Cohort { experiment, context, round, ref clients } = cohort;
            let known = |client: &Client| PseudoLabels::known(client.labels.clone().unwrap());
            let labels = clients.iter().map(known).collect();
            let fix = FixMix::plain(context, round, experiment.client.batch, Augmentation::Weak);
            let loss = FieldLoss { fix: fix.loss(), weight: 0.25 * f64::from(round) };
            let contributes = |_: &Client| {
                Ok(Contribution { entries: None, others: vec![broadcast.params.copy()?] })
            };
            let objective = Objective::new(&fix, loss);
            let trainer = ClientTrainer {
                contributes: Some(&contributes),
                ..ClientTrainer::new(self, &broadcast.params, objective)
            };
            trainer.train(cohort, labels)
        }

        fn server_epochs(&self) -> ServerEpochs<'_> {
            ServerEpochs { augment: Some(Augmentation::Weak), ..ServerEpochs::PLAIN }
        }

        fn properties(&self) -> Properties {
            Properties {
                labels: ClientLabels::True,
                selects: false,
                client_losses: losses(&["fix", "proximal"]),
                ..Properties::default()
            }
        }
    }

    #[derive(Debug, Clone, PartialEq)]
    struct FieldLoss {
        fix: FixMixLoss,
        weight: f64,
    }

    impl StepLoss for FieldLoss {
        fn terms(&self) -> usize {
            2
        }

        fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
            let fix = self.fix.loss(inputs, pass)?;
            Ok(fix.with(self.weight, fedprox::squared_distance(pass)?))
        }
    }
}

struct Played {
    params: Params,
    records: Vec<RoundRecord>,
    notice: Option<String>,
}

fn play(experiment: &str, settings: &[&str], replayed: bool) -> Played {
    let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
    let experiment = resolve(experiment, &settings).unwrap();
    let rounds = experiment.rounds;
    let data = fedanchor::simulation::load(&experiment).unwrap();
    let mut simulation = Simulation::new(experiment, data, Some(1)).unwrap();
    if replayed {
        simulation.federation.context.record_steps();
    }
    let (mut coordinator, mut fleet) = (simulation.coordinator().unwrap(), simulation.fleet());
    coordinator.pretrain(&mut |_, _| true).unwrap();
    let round = |round| coordinator.round(&mut fleet, round).unwrap().record;
    let records = (1..=rounds).map(round).collect();
    assert_eq!(simulation.federation.context.replayed_steps() > 0, replayed);
    let params = coordinator.server.params.copy().unwrap();
    Played { params, records, notice: simulation.federation.context.take_notice() }
}

/// The model of a GPU is that of a CPU: with a constant weight, with one that grows, and with one that changes as a
/// field of the loss. In bfloat16 the distance is 0 before the first step, as it is in single precision.
#[test]
#[ignore = "needs a GPU"]
fn a_gpu_trains_it_as_a_cpu_does() {
    fedanchor::engine::load_cuda(); // the first run is on the CPU
    register();
    let growing = EXPERIMENT.replace("mu = 0.5", "mu = 3, ramp_up = 6");
    let field = EXPERIMENT.replace("name = \"fedprox\", mu = 0.5", "name = \"by-field\"");
    for experiment in [EXPERIMENT, &growing, &field] {
        let on = |more: &[&str]| {
            let brief = ["rounds=6", "optimiser.lr=0.001", "pretrain.lr=0.001"];
            play(experiment, &[&brief, more].concat(), false)
        };
        let (cpu, full) = (on(&[]), on(&["device=cuda:0", "precision=f32"]));
        let half = on(&["device=cuda:0"]);
        let flat = |played: &Played| {
            let host = |tensor: &tch::Tensor| {
                tensor.to_device(tch::Device::Cpu).to_kind(Kind::Double).flatten(0, -1)
            };
            tch::Tensor::cat(&played.params.tensors.iter().map(host).collect::<Vec<_>>(), 0)
        };
        let far = |played: &Played| {
            ((flat(&cpu) - flat(played)).norm() / flat(&cpu).norm()).double_value(&[])
        };
        let name = experiment.lines().last().unwrap_or_default();
        println!("{name}: {:.1e} in f32, {:.1e} in bf16", far(&full), far(&half));
        assert!(far(&full) < 1e-3 && far(&half) < 2e-2, "{name}");
        for (cpu, half) in cpu.records.iter().zip(&half.records) {
            let of = |record: &RoundRecord| record.losses.get("client_proximal").unwrap();
            assert!((of(cpu) - of(half)).abs() < 0.05 * of(cpu), "{cpu:?} {half:?}");
        }
    }
    // A single step per client: its loss is that of the model it was sent.
    let one = ["rounds=1", "device=cuda:0", "data.clients=990", "client.batch=16"];
    let once = play(EXPERIMENT, &one, false);
    assert_eq!(once.records[0].losses.get("client_proximal"), Some(0.0), "{:?}", once.records);
}

/// Every way to write a weight that changes from round to round gives the model of plain execution where steps are
/// replayed; that it is slow to change a field is reported.
#[test]
fn a_changing_weight_is_right_where_steps_are_replayed() {
    register();
    let scalar = EXPERIMENT.replace("mu = 0.5", "mu = 3, ramp_up = 6");
    let field = EXPERIMENT.replace("name = \"fedprox\", mu = 0.5", "name = \"by-field\"");
    let play = |experiment: &str, replayed: bool| {
        let played = play(experiment, &["rounds=6", "client.per_round=2"], replayed);
        (played.params, played.notice)
    };
    let mut models = Vec::new();
    for (experiment, notice) in [(&scalar, false), (&field, true)] {
        let (plain, replayed) = (play(experiment, false), play(experiment, true));
        assert_eq!(plain.0.tensors, replayed.0.tensors, "{experiment}");
        let text = replayed.1.unwrap_or_default();
        assert_eq!(
            text.contains("pass what changes with `Objective::with_scalars`"),
            notice,
            "{text}"
        );
        models.push(plain.0.tensors);
    }
    // Both are the same method, and the weight matters. Rounding grows quickly, so operations are in the same order.
    let apart = |a: &[tch::Tensor], b: &[tch::Tensor]| -> f64 {
        let far = a.iter().zip(b).map(|(a, b)| (a - b).abs().max().double_value(&[]));
        far.fold(0.0, f64::max)
    };
    assert!(apart(&models[0], &models[1]) < 1e-4, "{}", apart(&models[0], &models[1]));
    let constant = play(EXPERIMENT, false).0.tensors;
    assert!(apart(&models[0], &constant) > 1e-3, "{}", apart(&models[0], &constant));
}
