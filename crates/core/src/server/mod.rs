//! The server's side of a run: the global model, its training on the anchors, and the state between rounds.

mod contrastive;
mod epochs;

pub use contrastive::{
    ContrastiveConfig, Denominator, DivideBy, MomentumOf, Order, Sampler, Trains, label_contrastive,
};
pub use epochs::{ServerEpochs, supervised_epoch};

use crate::config::{Experiment, StatisticsSource};
use crate::error::{Error, Result};
use crate::labels::{Calibration, LabelledImages, all_logits, evaluation_statistics, predicted};
use fedanchor_data::ImageSet;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::Statistics;
use fedanchor_engine::tensors::{Bundle, Entry, Params};
use fedanchor_engine::training::losses::cross_entropy_each;
use fedanchor_engine::training::{Context, Learner, Momentum};
use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};

/// The server between two phases of a round.
#[derive(Debug)]
#[allow(missing_docs)] // the types have comments
pub struct Server<'a> {
    pub experiment: &'a Experiment,
    pub context: &'a Context,
    pub anchors: &'a LabelledImages,
    /// The global model, K = 1.
    pub params: Params,
    /// Momentum by kind of epoch, where it is kept.
    pub momentum: BTreeMap<String, Momentum>,
    /// Velocity of the global model, where `server.momentum` is above 0.
    pub velocity: Option<Params>,
    /// The method's own state.
    pub state: MethodState,
}

/// The global model on the test images.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Accuracy in percent.
    pub accuracy: f64,
    /// Mean cross entropy.
    pub loss: f64,
    /// The expected calibration error, in points.
    pub calibration_error: f64,
    /// `confusion[truth][prediction]`: number of test images.
    pub confusion: Vec<Vec<u64>>,
}

impl<'a> Server<'a> {
    /// A server with a freshly drawn model.
    pub fn new(
        experiment: &'a Experiment,
        context: &'a Context,
        anchors: &'a LabelledImages,
    ) -> Result<Self> {
        Ok(Self {
            experiment,
            context,
            anchors,
            params: context.initial()?,
            momentum: BTreeMap::new(),
            velocity: None,
            state: MethodState::default(),
        })
    }

    /// Ends a round's training: drops the momentum unless `server.keep_momentum` is set.
    pub fn end_round(&mut self) {
        if !self.experiment.server.keep_momentum {
            self.momentum.clear();
        }
    }

    /// A learner of the global model for an epoch, with the momentum of this kind of epoch.
    pub(crate) fn learner(
        &mut self,
        (epoch, round): (&'static str, u32),
        momentum: &str,
        trains: impl Fn(&Entry) -> bool,
    ) -> Result<Learner<'a>> {
        let momentum = self.momentum.remove(momentum).unwrap_or_default();
        let fixed =
            self.experiment.batch_norm.fixed_on_server && self.experiment.fixes_statistics(round);
        let learner = Learner::new(self.context, epoch, self.params.first(1)?, momentum, trains)?;
        Ok(learner.with_fixed_statistics(fixed))
    }

    /// Takes the trained model and its momentum from a learner.
    pub(crate) fn take_back(&mut self, learner: Learner, momentum: &str) -> Result<()> {
        let mut kept = learner.momentum;
        if self.context.trains_a_copy() {
            self.params.assign(&learner.params)?; // on a CPU it was trained in place
            kept = kept.client(0)?;
        }
        self.momentum.insert(momentum.to_owned(), kept);
        Ok(())
    }

    pub(crate) fn save(&self) -> Result<Bundle> {
        let mut bundle = Bundle::default();
        self.params.put_into(&mut bundle, "model")?;
        for (epoch, momentum) in &self.momentum {
            momentum.put_into(&mut bundle, epoch, &self.params)?;
        }
        if let Some(velocity) = &self.velocity {
            velocity.put_into(&mut bundle, "velocity")?;
        }
        self.state.save(&mut bundle)?;
        Ok(bundle)
    }

    pub(crate) fn restore(&mut self, bundle: &Bundle) -> Result<()> {
        self.params = self.params.take_from(bundle, "model")?;
        self.momentum.clear();
        // The method's own state has a dot in its name.
        let other = |group: &&str| !["model", "velocity"].contains(group) && !group.contains('.');
        for epoch in bundle.groups("").into_iter().filter(other) {
            let momentum = Momentum::take_from(bundle, epoch, &self.params)?;
            self.momentum.insert(epoch.to_owned(), momentum);
        }
        let moved = !bundle.group("velocity").is_empty();
        self.velocity = moved.then(|| self.params.take_from(bundle, "velocity")).transpose()?;
        self.state = MethodState::restore(bundle, &self.params)?;
        Ok(())
    }

    /// An error if one of these losses or a parameter is not finite.
    pub(crate) fn check_finite(
        &self,
        round: u32,
        (phase, advice): (&'static str, &'static str),
        losses: &[f64],
    ) -> Result<()> {
        let parameter = self.params.first_not_finite()?.into_iter().next().flatten();
        let what = match parameter {
            _ if losses.iter().any(|loss| !loss.is_finite()) => "the server's loss".to_owned(),
            Some(name) => format!("the global model's `{name}`"),
            None => return Ok(()),
        };
        Err(Error::NotFinite { round, phase, what, advice })
    }

    /// Replaces the global model by the clients' mean, or makes a step towards it with `server.momentum`.
    pub fn take_mean(&mut self, mean: Option<&Params>) -> Result<()> {
        let Some(mean) = mean else { return Ok(()) };
        let momentum = self.experiment.server.momentum;
        step_towards(&mut self.params, &mut self.velocity, mean, momentum)
    }

    /// Static batch norm: measures the statistics of the global model if `batch_norm.statistics` asks for it, as the
    /// cumulative average over batches without augmentation. `images` are those of `static-all`.
    pub fn measure_statistics(&mut self, images: Option<(&ImageSet, &[u32])>) -> Result<()> {
        if self.params.layout.iter().all(|entry| !entry.statistic) {
            return Ok(()); // group norm has none
        }
        let views: Vec<View> = match self.experiment.batch_norm.statistics {
            StatisticsSource::Average => return Ok(()),
            StatisticsSource::StaticAll => {
                let (images, drawn) = images.ok_or_else(|| {
                    let problem = "`static-all` needs the clients' images, which do not leave them";
                    Error::config("batch_norm.statistics", problem)
                })?;
                drawn.iter().map(|&at| View::Raw(images.input(at as usize))).collect()
            }
            StatisticsSource::StaticServer => self.anchors.views(),
        };
        Ok(self.context.measure_statistics(&self.params, &views)?)
    }

    /// The accuracy of the global model on the anchors, in percent; of the model with these entries, if there are any.
    pub(crate) fn anchor_accuracy(&self, with: Option<&Params>) -> Result<f64> {
        let mut params = self.params.shallow_copy();
        if let Some(with) = with {
            params = self.params.copy()?;
            params.assign(with)?;
        }
        let statistics = evaluation_statistics(self.context);
        Ok(self.test(&params, statistics, self.anchors)?.accuracy)
    }

    /// Tests the global model.
    pub fn evaluate(&self, test: &LabelledImages) -> Result<Evaluation> {
        self.test(&self.params, Statistics::Running, test)
    }

    fn test(
        &self,
        params: &Params,
        statistics: Statistics,
        test: &LabelledImages,
    ) -> Result<Evaluation> {
        let (context, classes) = (self.context, self.context.classes);
        let logits = all_logits(context, params, statistics, &test.views())?;
        let truth: Vec<i64> = test.labels.iter().map(|&label| i64::from(label)).collect();
        let target = Tensor::f_from_slice(&truth)?.f_unsqueeze(0)?.f_to_device(context.device)?;
        let each = cross_entropy_each(&logits.f_unsqueeze(0)?, &target)?;
        let loss = each.f_sum(Kind::Double)?.f_double_value(&[])?;
        let mut confusion = vec![vec![0u64; classes]; classes];
        let predicted = predicted(&logits)?;
        for (truth, &predicted) in truth.iter().zip(&predicted) {
            confusion[*truth as usize][predicted as usize] += 1;
        }
        let right: u64 = (0..classes).map(|class| confusion[class][class]).sum();
        let count = truth.len().max(1) as f64;
        let (confidences, _) = logits.f_softmax(-1, Kind::Double)?.f_max_dim(-1, false)?;
        let confidences: Vec<f64> = Vec::try_from(confidences.f_to_device(Device::Cpu)?)?;
        let is_right = truth.iter().zip(&predicted).map(|(truth, predicted)| truth == predicted);
        let calibration_error = Calibration::of(confidences.into_iter().zip(is_right)).error;
        let accuracy = 100.0 * right as f64 / count;
        Ok(Evaluation { accuracy, loss: loss / count, calibration_error, confusion })
    }
}

/// Replaces a model by a mean, or makes a step towards it with momentum. Statistics are copied.
pub fn step_towards(
    params: &mut Params,
    velocity: &mut Option<Params>,
    mean: &Params,
    momentum: f64,
) -> Result<()> {
    if momentum == 0.0 {
        return Ok(params.assign(mean)?);
    }
    let mean_of = |name: &str| mean.layout.iter().position(|entry| entry.name == name);
    let velocity = match velocity {
        Some(velocity) => velocity,
        None => velocity.insert(params.zeros_like()?),
    };
    for (index, entry) in params.layout.iter().enumerate() {
        let Some(new) = mean_of(&entry.name).map(|at| &mean.tensors[at]) else { continue };
        let global = &mut params.tensors[index];
        if entry.statistic {
            global.f_copy_(new)?;
            continue;
        }
        let way = global.f_sub(new)?;
        let velocity = velocity.tensors[index].f_mul_scalar_(momentum)?.f_add_(&way)?;
        let _ = global.f_sub_(&velocity)?;
    }
    Ok(())
}

pub(crate) const STEADIER: &str = "lower the learning rate or keep optimiser.clip above 0";

/// A method's own state: named models and named lists of numbers. A checkpoint saves and restores them for the method.
#[derive(Debug, Default)]
pub struct MethodState {
    /// Models, of all entries of the network or of some.
    pub models: BTreeMap<String, Params>,
    /// Lists of numbers.
    pub numbers: BTreeMap<String, Vec<f32>>,
}

const MODEL: &str = "state.";
const NUMBERS: &str = "numbers.";

pub(crate) fn save_models(models: &BTreeMap<String, Params>, bundle: &mut Bundle) -> Result<()> {
    for (name, params) in models {
        params.put_into(bundle, &format!("{MODEL}{name}"))?;
    }
    Ok(())
}

/// Reads a method's models from a checkpoint; `like` is a model of the network.
pub(crate) fn restore_models(bundle: &Bundle, like: &Params) -> Result<BTreeMap<String, Params>> {
    let names = bundle.groups(MODEL).into_iter();
    names
        .map(|name| Ok((name.to_owned(), like.take_some(bundle, &format!("{MODEL}{name}"))?)))
        .collect()
}

impl MethodState {
    fn save(&self, bundle: &mut Bundle) -> Result<()> {
        save_models(&self.models, bundle)?;
        for (name, values) in &self.numbers {
            bundle.put(format!("{NUMBERS}{name}/values"), &Tensor::f_from_slice(values)?)?;
        }
        Ok(())
    }

    fn restore(bundle: &Bundle, like: &Params) -> Result<Self> {
        let mut numbers = BTreeMap::new();
        for name in bundle.groups(NUMBERS) {
            if let Some(values) = bundle.group(&format!("{NUMBERS}{name}")).get("values") {
                numbers.insert(name.to_owned(), Vec::<f32>::try_from(*values)?);
            }
        }
        Ok(Self { models: restore_models(bundle, like)?, numbers })
    }
}
