//! FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous
//! Networks", 2020. Supervised training on the clients, each held near the model it was sent by the term
//! mu/2 |w - w_sent|^2.
//!
//! An example of a method outside the crate: this file is all there is to it. `fedanchor::register` makes it
//! known by its name, and experiments, sweeps, checkpoints, tables and fleets work with it from then on.

use fedanchor::config::{Augmentation, within};
use fedanchor::engine::Result as EngineResult;
use fedanchor::engine::model::Pass;
use fedanchor::engine::tensors::Part;
use fedanchor::engine::training::{FixMix, FixMixLoss, Inputs, Objective, StepLoss, Terms};
use fedanchor::labels::PseudoLabels;
use fedanchor::messages::Broadcast;
use fedanchor::methods::{
    Client, ClientReport, ClientTrainer, Cohort, Contribution, Properties, Registration, losses,
    read_settings,
};
use fedanchor::server::ServerEpochs;
use fedanchor::{Error, Method, Result};
use fedanchor_record::ClientLabels;
use schemars::JsonSchema;
use serde::Deserialize;
use tch::{Kind, Tensor};
use toml::Table;

const NAME: &str = "fedprox";

/// What `fedanchor::register` takes: the name, the defaults of the settings, and how to make the method.
pub const REGISTRATION: Registration =
    Registration::new(NAME, "mu = 0.01\nramp_up = 0\naugment = \"weak\"\n", build)
        .describe::<FedProxConfig>();

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FedProxConfig {
    /// Weight of the proximal term.
    mu: f64,
    /// Rounds until the proximal term has its full weight; 0 for the full weight from the start.
    ramp_up: u32,
    /// How images are augmented, on the clients and on the server.
    augment: Augmentation,
}

struct FedProx {
    config: FedProxConfig,
}

impl Method for FedProx {
    fn name(&self) -> &'static str {
        NAME
    }

    fn client_update(&self, cohort: Cohort, broadcast: &Broadcast) -> Result<Vec<ClientReport>> {
        let Cohort { experiment, context, round, ref clients } = cohort;
        let known = |client: &Client| {
            let labels = client.labels.clone();
            let labels = labels.ok_or_else(|| Error::method(NAME, "the clients have no labels"))?;
            Ok(PseudoLabels::known(labels))
        };
        let labels = clients.iter().map(known).collect::<Result<_>>()?;
        let fix = FixMix::plain(context, round, experiment.client.batch, self.config.augment);
        // The weight changes from round to round, so it is a scalar of the objective and no field of the loss.
        let objective = Objective::new(&fix, ProximalLoss { fix: fix.loss() })
            .with_scalars([self.weight(round) as f32]);
        // Every client contributes the broadcast model as a second network, for the loss to read.
        let contributes =
            |_: &Client| Ok(Contribution { entries: None, others: vec![broadcast.params.copy()?] });
        let trainer = ClientTrainer {
            contributes: Some(&contributes),
            ..ClientTrainer::new(self, &broadcast.params, objective)
        };
        trainer.train(cohort, labels)
    }

    fn server_epochs(&self) -> ServerEpochs<'_> {
        ServerEpochs { augment: Some(self.config.augment), ..ServerEpochs::PLAIN }
    }

    fn properties(&self) -> Properties {
        Properties {
            labels: ClientLabels::True,
            selects: false,
            client_losses: losses(&["fix", "proximal"]),
            server_losses: losses(&["fix"]),
            ..Properties::default()
        }
    }
}

impl FedProx {
    /// Of the squared distance: mu/2, and less while it ramps up.
    fn weight(&self, round: u32) -> f64 {
        let FedProxConfig { mu, ramp_up, .. } = self.config;
        mu / 2.0 * (f64::from(round) / f64::from(ramp_up.max(1))).min(1.0)
    }
}

fn build(settings: &Table) -> Result<Box<dyn Method>> {
    let config: FedProxConfig = read_settings(settings)?;
    within("method.mu", config.mu, 0.0, 1000.0)?;
    Ok(Box::new(FedProx { config }))
}

/// Cross entropy, and the squared distance to the model that was sent by the objective's scalar.
#[derive(Debug, Clone, PartialEq)]
struct ProximalLoss {
    fix: FixMixLoss,
}

impl StepLoss for ProximalLoss {
    fn terms(&self) -> usize {
        2
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        Ok(self.fix.loss(inputs, pass)?.with(inputs.scalar(0)?, squared_distance(pass)?))
    }
}

/// |w - w_sent|^2 of every client's trained weights, `[K]`; the model that was sent is the pass's other
/// network.
pub fn squared_distance(pass: &Pass) -> EngineResult<Tensor> {
    let (weights, sent) = (pass.weights()?, &pass.others[0]);
    let options = (Kind::Float, weights[0].device());
    let mut sum = Tensor::f_zeros([pass.clients() as i64], options)?;
    for ((entry, now), sent) in sent.layout.iter().zip(weights).zip(&sent.tensors) {
        if entry.statistic || !matches!(entry.part, Part::Backbone | Part::Classifier) {
            continue;
        }
        let squares = now.f_sub(sent)?.f_square()?.f_flatten(1, -1)?;
        sum = sum.f_add(&squares.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?)?;
    }
    Ok(sum)
}
