//! The losses of a cohort's training step.

use crate::checks::{Argument, Expected, number, on_one_gpu};
use crate::shim::*;
use std::ptr::null_mut;
use tch::{Kind, Tensor};

/// What the kernel counts in 32 bits, in steps of up to 32.
const COUNT: i64 = i32::MAX as i64 - 32;

/// The labels of a batch: contiguous tensors `[K, batch]`, the labels as 64-bit integers and the weights in single precision.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// Classes.
    pub labels: &'a Tensor,
    /// How much each sample counts; 1 if left out.
    pub weights: Option<&'a Tensor>,
}

/// The labels of a second view, in which two samples are mixed.
#[derive(Debug, Clone, Copy)]
pub struct MixLabels<'a> {
    /// Those of the second sample.
    pub labels: Labels<'a>,
    /// The share of the first sample: `[K, batch]` in single precision, contiguous.
    pub lambda: &'a Tensor,
    /// How much the loss of this view counts in the total.
    pub weight: f64,
}

/// The losses of a batch.
#[derive(Debug)]
pub struct Losses {
    /// That of the first view, plus that of the second by its weight: `[K]`. It alone has a gradient.
    pub total: Tensor,
    /// Their means over the batch: `[K, views]`.
    pub terms: Tensor,
}

/// The losses of a batch: cross entropy with its labels and, if there is a second view, a mixture of it with these labels
/// and with those of other samples.
#[derive(Debug, Clone, Copy)]
pub struct FixMixLoss<'a> {
    /// The labels of both views.
    pub fix: Labels<'a>,
    /// The second view, if there is one.
    pub mix: Option<MixLabels<'a>>,
    /// Added to every client's logits: `[K, 1, classes]`, contiguous.
    pub adjustment: Option<&'a Tensor>,
}

impl FixMixLoss<'_> {
    /// The losses for logits `[K, views * batch, classes]` in single precision. A label that is no class counts for nothing.
    pub fn forward(&self, logits: &Tensor) -> Result<Losses> {
        self.check(logits)?;
        let (mut total, mut terms) = (null_mut(), null_mut());
        let mix = self.mix.map(|mix| mix.labels);
        // SAFETY: all tensors are alive and were checked; we own the results.
        unsafe {
            check(fa_fix_mix_loss(
                raw(logits),
                raw_option(self.adjustment),
                raw(self.fix.labels),
                raw_option(self.fix.weights),
                raw_option(mix.map(|mix| mix.labels)),
                raw_option(mix.and_then(|mix| mix.weights)),
                raw_option(self.mix.map(|mix| mix.lambda)),
                self.mix.map_or(0.0, |mix| mix.weight),
                &mut total,
                &mut terms,
            ))?;
            Ok(Losses { total: Tensor::from_ptr(total), terms: Tensor::from_ptr(terms) })
        }
    }

    fn check(&self, logits: &Tensor) -> Result<()> {
        let logits = Argument::new("logits", logits)?.with_kind(&[Kind::Float])?;
        let labels = Argument::new("labels", self.fix.labels)?;
        let [clients, rows, classes] = logits.dimensions("dimensions of logits")?;
        let [_, batch] = labels.dimensions("dimensions of labels")?;
        let views = 1 + i64::from(self.mix.is_some());
        number("rows of logits", Expected::Between(views * batch, views * batch), rows)?;
        number("rows of logits", Expected::Between(1, COUNT), rows)?;
        number("clients of logits", Expected::Between(1, COUNT), clients)?;
        number("classes of logits", Expected::Between(1, COUNT), classes)?;
        let by_sample = |name, tensor, kind| Argument::dense(name, tensor, kind, &[clients, batch]);
        let mut others = vec![by_sample("labels", self.fix.labels, Kind::Int64)?];
        if let Some(weights) = self.fix.weights {
            others.push(by_sample("weights", weights, Kind::Float)?);
        }
        if let Some(MixLabels { labels: mix, lambda, .. }) = self.mix {
            others.push(by_sample("mix labels", mix.labels, Kind::Int64)?);
            others.push(by_sample("lambda", lambda, Kind::Float)?);
            if let Some(weights) = mix.weights {
                others.push(by_sample("mix weights", weights, Kind::Float)?);
            }
        }
        if let Some(adjustment) = self.adjustment {
            let size = [clients, 1, classes];
            others.push(Argument::dense("adjustment", adjustment, Kind::Float, &size)?);
        }
        on_one_gpu(logits, &others)
    }
}
