//! The label contrastive loss L_c (eq. 1-2) and its epoch over the anchors.

use super::Server;
use crate::config::{Augmentation, MAX_BATCH, at_most, ensure, within};
use crate::error::Result;
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::batches::{Packing, View, write};
use fedanchor_engine::model::Pass;
use fedanchor_engine::tensors::Part;
use fedanchor_engine::training::losses::unit;
use fedanchor_engine::training::{Context, Inputs, StepLoss, Terms};
use fedanchor_engine::{InPhase, Result as EngineResult, words};
use rand::seq::SliceRandom;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

words! {
    /// How contrastive batches are drawn.
    Sampler { /** From the shuffled anchors. */ Shuffled, /** The same number of each class. */ Balanced }
    /// The parameters that a contrastive epoch updates.
    Trains { /** Backbone and anchor head. */ All, /** The anchor head alone. */ Head }
    /// Which pairs of different labels are in eq. 1's denominator.
    Denominator { /** All in the batch. */ Batch, /** Those with an image of class c. */ Class }
    /// The divisor of eq. 2.
    DivideBy { /** The classes with a pair in the batch. */ Present, /** All classes. */ All }
    /// When the contrastive epoch runs.
    Order { /** After the supervised epochs. */ Last, /** Before them. */ First }
    /// Whose momentum contrastive epochs use.
    MomentumOf { /** Their own. */ Separate, /** That of the supervised epochs. */ Shared }
}

/// The label contrastive loss and its epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContrastiveConfig {
    /// Contrastive epochs on the anchors per round; 0 for none.
    pub epochs: u32,
    /// Temperature of the loss: tau of eq. 1.
    pub temperature: f64,
    /// Batch size [default: 50, more for many classes, and at most the number of anchors].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// How contrastive batches are drawn.
    pub sampler: Sampler,
    /// Augmentation of the anchors in contrastive epochs.
    pub augment: Augmentation,
    /// The parameters that a contrastive epoch updates.
    pub trains: Trains,
    /// Count the pair of an image with itself in eq. 1's numerator.
    pub self_pairs: bool,
    /// Which pairs of different labels are in eq. 1's denominator.
    pub denominator: Denominator,
    /// The divisor of the sum over classes in eq. 2.
    pub divide_by: DivideBy,
    /// When the contrastive epochs of a round run.
    pub order: Order,
    /// Whose momentum contrastive epochs use.
    pub momentum: MomentumOf,
}

/// The momentum of supervised epochs.
pub(super) const SUPERVISED: &str = "supervised";

/// Positive pairs that a batch holds unless its size is given.
const PAIRS: usize = 50;
/// Positive pairs that a batch must hold: with four the loss collapsed to chance in trials on CIFAR-10.
const FEWEST_PAIRS: usize = 10;

impl ContrastiveConfig {
    /// Checks the values that can be judged without the data.
    pub fn check(&self) -> Result<()> {
        at_most("method.contrastive.epochs", self.epochs as usize, 100_000)?;
        at_most("method.contrastive.batch", self.batch.unwrap_or_default(), MAX_BATCH)?;
        within("method.contrastive.temperature", self.temperature, 0.001, 1000.0)
    }

    /// Writes down the batch for this many classes and anchors.
    pub fn settle(&mut self, classes: usize, anchors: usize) -> Result<()> {
        self.batch = Some(self.batch_for(classes, anchors)?);
        Ok(())
    }

    /// The contrastive batch for this many classes and anchors: as given if it holds enough
    /// positive pairs, B(B-1)/2C on average; chosen to hold them if left out.
    pub fn batch_for(&self, classes: usize, anchors: usize) -> Result<usize> {
        let problem = format!(
            "{anchors} anchors of {classes} classes leave the contrastive loss without pairs: use more \
             anchors, or method.contrastive.epochs=0"
        );
        ensure(self.epochs == 0 || self.self_pairs || anchors > classes, "data.anchors", problem)?;
        let smallest = |pairs| {
            (2..).find(|batch| batch * (batch - 1) >= pairs * 2 * classes).unwrap_or(MAX_BATCH)
        };
        let Some(batch) = self.batch else { return Ok(smallest(PAIRS).max(50).min(anchors)) };
        let pairs = batch * batch.saturating_sub(1) / (2 * classes);
        let problem = format!(
            "a batch of {batch} holds about {pairs} pairs of one label among {classes} classes, and with \
             fewer than {FEWEST_PAIRS} pairs the loss collapses: use a batch of {} or more, or remove the key",
            smallest(FEWEST_PAIRS)
        );
        let enough = self.epochs == 0 || batch >= anchors || pairs >= FEWEST_PAIRS;
        ensure(enough, "method.contrastive.batch", problem)?;
        Ok(batch.min(anchors))
    }
}

/// Stands for log 0 inside log-sum-exp: small enough to vanish next to any cosine over a
/// temperature, and finite, so that a class without pairs has a zero gradient instead of NaN.
const LOG_ZERO: f64 = -1e9;

/// The label contrastive loss L_c (eq. 1-2) of one batch of anchors: latents `[1, batch, D]`,
/// labels `[1, batch]`, result `[1]`.
///
/// l(c) = -log( sum over pairs with both labels c of exp(s/tau) / sum over pairs of different
/// labels of exp(s/tau) ), averaged over the classes. Read literally the numerator holds the pairs
/// (i, i), whose constant exp(1/tau) drowns the others and first pushes a class apart; they are
/// left out unless `self_pairs`. Classes without a pair in the batch have no l(c); the mean is over
/// the others unless `divide_by = "all"`.
pub fn label_contrastive(
    latents: &Tensor,
    labels: &Tensor,
    classes: usize,
    config: &ContrastiveConfig,
) -> EngineResult<Tensor> {
    let z = unit(&latents.f_squeeze_dim(0)?)?; // [batch, D]
    let labels = labels.f_squeeze_dim(0)?; // [batch]
    let batch = labels.size1()?;
    let s = z.f_matmul(&z.f_tr()?)?.f_div_scalar(config.temperature)?; // [batch, batch]
    let same = labels.f_unsqueeze(1)?.f_eq_tensor(&labels.f_unsqueeze(0)?)?;
    let different = same.f_logical_not()?;
    let positive = if config.self_pairs {
        same
    } else {
        let diagonal = Tensor::f_eye(batch, (Kind::Bool, s.device()))?;
        same.f_logical_and(&diagonal.f_logical_not()?)?
    };
    let member = Tensor::f_arange(classes as i64, (Kind::Int64, s.device()))?
        .f_unsqueeze(1)?
        .f_eq_tensor(&labels)?; // [C, batch]

    // log of the sum of exp(s) over the pairs (i, j) of one kind: first over j, then over i.
    let over_j = |pairs: &Tensor| -> EngineResult<Tensor> {
        Ok(s.f_masked_fill(&pairs.f_logical_not()?, LOG_ZERO)?.f_logsumexp([1], false)?) // [batch]
    };
    let by_class = |rows: &Tensor| -> EngineResult<Tensor> {
        let rows = rows.f_unsqueeze(0)?.f_expand([classes as i64, batch], false)?;
        Ok(rows.f_masked_fill(&member.f_logical_not()?, LOG_ZERO)?.f_logsumexp([1], false)?) // [C]
    };
    let numerator = by_class(&over_j(&positive)?)?; // [C]
    let denominator = match config.denominator {
        Denominator::Batch => over_j(&different)?.f_logsumexp([0], true)?, // [1], shared by all classes
        Denominator::Class => by_class(&over_j(&different)?)?,             // [C]
    };
    let needed = if config.self_pairs { 1 } else { 2 };
    let present = member.f_sum_dim_intlist(&[1i64][..], false, Kind::Int64)?.f_ge(needed)?;
    let present = present.f_to_kind(Kind::Float)?; // [C]
    let each = denominator.f_sub(&numerator)?.f_mul(&present)?; // l(c), 0 where class c has no pair
    let sum = each.f_sum_dim_intlist(&[0i64][..], true, Kind::Float)?; // [1]
    Ok(match config.divide_by {
        DivideBy::All => sum.f_div_scalar(classes as f64)?,
        DivideBy::Present => {
            sum.f_div(&present.f_sum_dim_intlist(&[0i64][..], true, Kind::Float)?.f_clamp_min(1)?)?
        }
    })
}

/// Whether a batch with these labels has a contrastive loss: a pair of one label and a pair of different ones.
fn has_pairs(mut labels: Vec<u16>, self_pairs: bool) -> bool {
    labels.sort_unstable();
    let positive = self_pairs || labels.windows(2).any(|pair| pair[0] == pair[1]);
    positive && labels.first() != labels.last()
}

/// One label contrastive epoch; returns the mean of L_c, `None` if no batch had a pair.
pub(super) fn contrastive_epoch(
    server: &mut Server,
    config: &ContrastiveConfig,
    round: u32,
    epoch: u32,
) -> Result<Option<f64>> {
    let lr = server.experiment.server_lr(round);
    let (context, anchors) = (server.context, server.anchors);
    let batch = config.batch_for(context.classes, anchors.labels.len())?;
    let batches = contrastive_batches(server, config.sampler, batch, round, epoch);
    let momentum = match config.momentum {
        MomentumOf::Separate => "contrastive",
        MomentumOf::Shared => SUPERVISED,
    };
    let trains = |part: Part| match config.trains {
        Trains::All => matches!(part, Part::Backbone | Part::Anchor),
        Trains::Head => part == Part::Anchor,
    };
    let mut learner = server.learner("contrastive epoch", momentum, |entry| trains(entry.part))?;
    if config.trains == Trains::Head {
        learner = learner.keeping_statistics();
    }
    let stream = context.streams(round).of(Purpose::ContrastiveAugment, SERVER).epoch(epoch);
    let label = |anchor: u32| anchors.labels[anchor as usize];
    // A batch without a pair of one label and one of two has no loss.
    let has_loss = |batch: &[u32]| {
        has_pairs(batch.iter().map(|&anchor| label(anchor)).collect(), config.self_pairs)
    };
    let batches: Vec<_> = batches.iter().enumerate().filter(|(_, b)| has_loss(b)).collect();
    let loss = ContrastiveLoss { batch, config: config.clone() };
    let packing = loss.packing(context);
    let fill = |time: usize, bytes: &mut [u8]| {
        let (number, chosen) = batches[time];
        let mut parts = packing.split(bytes);
        write(parts[0], chosen.iter().map(|&anchor| i64::from(label(anchor)).to_ne_bytes()));
        let views = chosen.iter().enumerate().map(|(row, &anchor)| {
            let image = anchors.images.input(anchor as usize);
            let position = (number * batch + row) as u64;
            View::new(config.augment, image, stream, position)
        });
        context.images.render(&views.collect::<Vec<_>>(), parts[1]);
        (1, packing.total())
    };
    let steps = batches.len();
    learner
        .train(lr, steps, packing.total(), (&loss, &[]), fill)
        .in_phase("running the contrastive epoch")?;
    let losses = learner.mean_losses(0, steps)?;
    server.take_back(learner, momentum)?;
    let advice =
        "lower the learning rate, keep optimiser.clip above 0, or raise method.contrastive.batch";
    server.check_finite(round, ("the contrastive epoch", advice), &losses)?;
    Ok(losses.first().copied().filter(|_| steps > 0))
}

/// L_c on a batch of anchors: their labels, then their images.
#[derive(Debug, Clone, PartialEq)]
struct ContrastiveLoss {
    batch: usize,
    config: ContrastiveConfig,
}

impl ContrastiveLoss {
    fn packing(&self, context: &Context) -> Packing {
        Packing::new(&[self.batch * 8, self.batch * context.images.format.bytes()])
    }
}

impl StepLoss for ContrastiveLoss {
    fn reads_weights(&self) -> bool {
        false
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> EngineResult<Terms> {
        let Inputs { context, bytes, .. } = *inputs;
        let (packing, network) = (self.packing(context), &context.network);
        let labels = packing.view(bytes, 0, Kind::Int64, &[1, self.batch as i64])?;
        let images = context.images.view(bytes, &packing, 1, self.batch, 1)?;
        let features = network.features(&context.images.input(&images)?, pass)?;
        let latents = network.latents(&features, pass)?;
        let loss = label_contrastive(&latents, &labels, context.classes, &self.config)?;
        Ok(vec![(1.0, loss)].into())
    }
}

/// The anchors of every batch of an epoch. All batches are full: the last one wraps around.
fn contrastive_batches(
    server: &Server,
    sampler: Sampler,
    batch: usize,
    round: u32,
    epoch: u32,
) -> Vec<Vec<u32>> {
    let anchors = server.anchors;
    let streams = server.context.streams(round);
    let stream = streams.of(Purpose::ContrastiveShuffle, SERVER).epoch(epoch);
    let mut rng = stream.rng();
    let mut order: Vec<u32> = (0..anchors.labels.len() as u32).collect();
    order.shuffle(&mut rng);
    if sampler == Sampler::Balanced {
        // Deal the shuffled anchors class by class in turn: every stretch holds each class alike.
        let mut seen = vec![0u32; server.context.classes];
        let turns = order.iter().map(|&anchor| {
            let count = &mut seen[anchors.labels[anchor as usize] as usize];
            *count += 1;
            (*count, anchor)
        });
        let mut turns: Vec<(u32, u32)> = turns.collect();
        turns.sort_by_key(|&(count, _)| count); // stable: the shuffled order within a turn
        order = turns.into_iter().map(|(_, anchor)| anchor).collect();
    }
    let batches = order.len().div_ceil(batch);
    (0..batches)
        .map(|b| (0..batch).map(|row| order[(b * batch + row) % order.len()]).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;

    fn contrastive(settings: &[&str]) -> ContrastiveConfig {
        let settings: Vec<String> =
            settings.iter().map(|s| format!("method.contrastive.{s}")).collect();
        let method = resolve("preset = \"paper\"", &settings).unwrap().method;
        method.settings["contrastive"].clone().try_into().unwrap()
    }

    #[test]
    fn the_batch_holds_enough_pairs() {
        assert_eq!(contrastive(&[]).batch_for(10, 500).unwrap(), 50);
        assert_eq!(contrastive(&[]).batch_for(10, 40).unwrap(), 40);
        assert_eq!(contrastive(&[]).batch_for(100, 2500).unwrap(), 101); // 101 * 100 / 200 = 50
        let small = contrastive(&["batch=10"]);
        let error = small.batch_for(10, 500).unwrap_err().to_string();
        assert!(error.contains("use a batch of 15 or more"), "{error}"); // 15 * 14 / 20 = 10
        assert_eq!(contrastive(&["batch=32"]).batch_for(10, 500).unwrap(), 32);
        assert_eq!(small.batch_for(5, 10).unwrap(), 10);
        let error = contrastive(&[]).batch_for(10, 10).unwrap_err().to_string();
        assert!(error.contains("without pairs: use more"), "{error}");
    }

    /// Five unit vectors in the plane with cosines that can be read off: two of class 0 at a right
    /// angle, two of class 2 that coincide, one of class 1 alone.
    fn example() -> (Tensor, Tensor) {
        let latents: [f32; 10] = [2.0, 0.0, 0.0, 3.0, -1.0, 0.0, 0.0, -1.0, 0.0, -4.0];
        let labels = Tensor::from_slice(&[0i64, 0, 1, 2, 2]).reshape([1, 5]);
        (Tensor::from_slice(&latents).reshape([1, 5, 2]), labels)
    }

    fn value(settings: &[&str]) -> f64 {
        let (latents, labels) = example();
        label_contrastive(&latents, &labels, 4, &contrastive(settings)).unwrap().double_value(&[0])
    }

    #[test]
    fn the_contrastive_loss_by_hand() {
        // Cosines: a=(1,0) b=(0,1) | c=(-1,0) | d=e=(0,-1). tau = 0.5, so exp(s/tau) is e^2, 1, e^-2.
        // Ordered pairs of one label: class 0: ab, ba: 2 * 1; class 2: de, ed: 2 e^2; class 1: none.
        // Different: ac -1, ad 0, ae 0, bc 0, bd -1, be -1, cd 0, ce 0, each twice: 6 e^-2 + 10.
        let e2 = 2f64.exp();
        let different = 6.0 / e2 + 10.0;
        let (l0, l2) = ((different / 2.0).ln(), (different / (2.0 * e2)).ln());
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}")
        };
        close(value(&["temperature=0.5"]), (l0 + l2) / 2.0);
        close(value(&["temperature=0.5", "divide_by=all"]), (l0 + l2) / 4.0);
        // With the pairs (i, i): class 0 has 2 + 2 e^2, class 1 has e^2, class 2 has 4 e^2.
        let with_self = [2.0 + 2.0 * e2, e2, 4.0 * e2].map(|n| (different / n).ln());
        close(value(&["temperature=0.5", "self_pairs=true"]), with_self.iter().sum::<f64>() / 3.0);
        // Class 0's own pairs: ac, ad, ae, bc, bd, be once: 3 e^-2 + 3. Class 2's: ad ae bd be cd ce.
        let (d0, d2) = (3.0 / e2 + 3.0, 2.0 / e2 + 4.0);
        let own = ((d0 / 2.0).ln() + (d2 / (2.0 * e2)).ln()) / 2.0;
        close(value(&["temperature=0.5", "denominator=class"]), own);
    }

    #[test]
    fn batches_without_pairs_are_recognised_and_harmless() {
        assert!(has_pairs(vec![0, 1, 0], false));
        assert!(!has_pairs(vec![0, 0], false)); // no different pair
        assert!(!has_pairs(vec![0, 1], false)); // no pair of one label
        assert!(has_pairs(vec![0, 1], true));
        let latents =
            Tensor::from_slice(&[1f32, 0.0, 0.0, 1.0]).reshape([1, 2, 2]).set_requires_grad(true);
        let labels = Tensor::from_slice(&[0i64, 1]).reshape([1, 2]);
        let loss = label_contrastive(&latents, &labels, 3, &contrastive(&[])).unwrap();
        loss.sum(Kind::Float).backward();
        assert_eq!(loss.double_value(&[0]), 0.0);
        assert_eq!(latents.grad().abs().max().double_value(&[]), 0.0);
    }
}
