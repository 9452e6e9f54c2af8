//! The server's side of a run: the global model, the anchors, and what it keeps between rounds.

use crate::anchors::AnchorSet;
use crate::checkpoint::Bundle;
use crate::config::StatisticsSource;
use crate::error::Result;
use crate::method::fedmatch::Memory;
use crate::model::Statistics;
use crate::optimiser::Momentum;
use crate::params::Params;
use crate::setting::{Setting, View};
use crate::training::Learner;
use fedanchor_data::ImageSet;
use tch::{Device, Kind, Tensor};

/// The server between two phases of a round.
#[derive(Debug)]
pub struct Server<'a> {
    /// What does not change.
    pub setting: &'a Setting,
    /// The labelled images.
    pub anchors: AnchorSet<'a>,
    /// The global model, K = 1.
    pub params: Params,
    /// Momentum of the supervised epochs, where it is kept.
    pub supervised_momentum: Momentum,
    /// Momentum of the contrastive epochs, where it is kept.
    pub contrastive_momentum: Momentum,
    /// Velocity of the global model, where `server.momentum` is above 0.
    pub(crate) velocity: Option<Params>,
    /// What FedMatch keeps beside the global model.
    pub(crate) memory: Option<Memory>,
}

/// How well the global model does on the test images.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Percent of the test images classified rightly.
    pub accuracy: f64,
    /// Mean cross entropy.
    pub loss: f64,
    /// `confusion[truth][prediction]`: number of test images.
    pub confusion: Vec<Vec<u64>>,
}

impl<'a> Server<'a> {
    /// A server with a freshly drawn model.
    pub fn new(setting: &'a Setting, anchors: AnchorSet<'a>) -> Result<Self> {
        Ok(Self {
            setting,
            anchors,
            params: setting.network.init(setting.experiment.seed, setting.device)?,
            supervised_momentum: Momentum::default(),
            contrastive_momentum: Momentum::default(),
            velocity: None,
            memory: None,
        })
    }

    /// Ends a round's training: momentum is kept only where the experiment says so.
    pub(crate) fn end_round(&mut self) {
        if !self.setting.experiment.server.keep_momentum {
            self.forget_momentum();
        }
    }

    /// Starts the next epochs without momentum.
    pub(crate) fn forget_momentum(&mut self) {
        self.supervised_momentum = Momentum::default();
        self.contrastive_momentum = Momentum::default();
    }

    /// Takes the trained model from where it was trained, and hands out the momentum.
    pub(crate) fn take_back(&mut self, learner: Learner) -> Result<Momentum> {
        if self.setting.engine.is_some() {
            self.params.assign(&learner.params)?; // on a CPU it was trained in place
            return learner.momentum.client(0);
        }
        Ok(learner.momentum)
    }

    /// Everything it carries from round to round.
    pub(crate) fn save(&self) -> Result<Bundle> {
        let mut bundle = Bundle::default();
        self.params.put_into(&mut bundle, "model")?;
        self.supervised_momentum.put_into(&mut bundle, "supervised", &self.params)?;
        self.contrastive_momentum.put_into(&mut bundle, "contrastive", &self.params)?;
        if let Some(velocity) = &self.velocity {
            velocity.put_into(&mut bundle, "velocity")?;
        }
        if let Some(memory) = &self.memory {
            memory.save(&mut bundle)?;
        }
        Ok(bundle)
    }

    /// Takes all of it back.
    pub(crate) fn restore(&mut self, bundle: &Bundle) -> Result<()> {
        self.params = self.params.take_from(bundle, "model")?;
        self.supervised_momentum = Momentum::take_from(bundle, "supervised", &self.params)?;
        self.contrastive_momentum = Momentum::take_from(bundle, "contrastive", &self.params)?;
        let there = |group| !bundle.group(group).is_empty();
        self.velocity = match there("velocity") {
            true => Some(self.params.take_from(bundle, "velocity")?),
            false => None,
        };
        self.memory = Memory::restore(bundle, &self.params)?;
        Ok(())
    }

    /// The name of a parameter that is not finite, if any.
    pub(crate) fn not_finite(&self) -> Result<Option<String>> {
        Ok(self.params.first_not_finite()?.into_iter().next().flatten())
    }

    /// Takes over the clients' mean, if there is one: as it is, or as a step with momentum from the
    /// old model.
    pub fn take_mean(&mut self, mean: Option<&Params>) -> Result<()> {
        let Some(mean) = mean else { return Ok(()) };
        let momentum = self.setting.experiment.server.momentum;
        step_towards(&mut self.params, &mut self.velocity, mean, momentum)
    }

    /// Static batch norm: measures the statistics of the global model anew, where the experiment
    /// asks for it, as the cumulative average over un-augmented batches.
    pub fn measure_statistics(&mut self, all: &ImageSet) -> Result<()> {
        if self.params.layout.iter().all(|entry| !entry.statistic) {
            return Ok(()); // group norm has none
        }
        let views: Vec<View> = match self.setting.experiment.batch_norm.statistics {
            StatisticsSource::Average => return Ok(()),
            StatisticsSource::StaticAll => {
                (0..all.len()).map(|i| View::Raw(all.image(i))).collect()
            }
            StatisticsSource::StaticServer => self
                .anchors
                .local
                .iter()
                .map(|&i| View::Raw(self.anchors.images.image(i as usize)))
                .collect(),
        };
        let share = |batch: usize| Statistics::Update(1.0 / (batch + 1) as f64);
        self.setting.for_each_batch(&self.params, share, &views, |_, _, _| Ok(()))
    }

    /// How well the global model would do on the anchors if it took this mean over; `None` where the mean
    /// is not a model by itself.
    pub(crate) fn accuracy_with(&self, mean: &Params) -> Result<Option<f64>> {
        let setting = self.setting;
        if setting.experiment.checks.anchor_margin == 0.0 || self.memory.is_some() {
            return Ok(None);
        }
        let mut params = self.params.copy()?;
        params.assign(mean)?;
        // Running statistics where they come with the mean; else the batch's own.
        let statistics = match setting.experiment.batch_norm.statistics {
            StatisticsSource::Average => Statistics::Running,
            _ => Statistics::Batch,
        };
        let images = self.anchors.local.iter().map(|&i| self.anchors.images.image(i as usize));
        let views: Vec<View> = images.map(View::Raw).collect();
        let mut predicted = Vec::new();
        setting.for_each_batch(
            &params,
            |_| statistics,
            &views,
            |_, pass, features| {
                let logits = setting.network.logits(&features, pass)?;
                predicted.push(logits.f_squeeze_dim(0)?.f_argmax(1, false)?);
                Ok(())
            },
        )?;
        let predicted =
            Vec::<i64>::try_from(Tensor::f_cat(&predicted, 0)?.f_to_device(Device::Cpu)?)?;
        let pairs = predicted.iter().zip(self.anchors.labels);
        let right = pairs.filter(|(found, label)| **found == i64::from(**label)).count();
        Ok(Some(100.0 * right as f64 / self.anchors.labels.len() as f64))
    }

    /// Tests the global model.
    pub fn evaluate(&self, test: &ImageSet, labels: &[u16]) -> Result<Evaluation> {
        let classes = self.setting.classes;
        let views: Vec<View> = (0..test.len()).map(|i| View::Raw(test.image(i))).collect();
        let mut logits = Vec::new();
        self.setting.for_each_batch(
            &self.params,
            |_| Statistics::Running,
            &views,
            |_, pass, features| {
                logits.push(self.setting.network.logits(&features, pass)?); // [1, batch, C]
                Ok(())
            },
        )?;
        // Read once, at the end: a GPU does not wait for the host between batches.
        let logits = Tensor::f_cat(&logits, 1)?;
        let truth: Vec<i64> = labels.iter().map(|&label| i64::from(label)).collect();
        let target =
            Tensor::f_from_slice(&truth)?.f_unsqueeze(0)?.f_to_device(self.setting.device)?;
        let each = crate::loss::cross_entropy_each(&logits, &target)?;
        let loss = each.f_sum(Kind::Double)?.f_double_value(&[])?;
        let predicted = logits.f_squeeze_dim(0)?.f_argmax(1, false)?.f_to_device(Device::Cpu)?;
        let mut confusion = vec![vec![0u64; classes]; classes];
        for (truth, predicted) in truth.iter().zip(Vec::<i64>::try_from(predicted)?) {
            confusion[*truth as usize][predicted as usize] += 1;
        }
        let right: u64 = (0..classes).map(|class| confusion[class][class]).sum();
        let count = test.len().max(1) as f64;
        Ok(Evaluation { accuracy: 100.0 * right as f64 / count, loss: loss / count, confusion })
    }
}

/// Takes a mean over: as it is, or as a step with momentum. Statistics are taken as they are.
pub(crate) fn step_towards(
    params: &mut Params,
    velocity: &mut Option<Params>,
    mean: &Params,
    momentum: f64,
) -> Result<()> {
    if momentum == 0.0 {
        return params.assign(mean);
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
