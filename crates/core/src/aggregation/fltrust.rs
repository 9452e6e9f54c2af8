//! FLTrust: Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust Federated Learning via Trust
//! Bootstrapping", NDSS 2021.
//!
//! A rule that only a server with labels can have: its own update on the anchors is the root of trust.
//! Every client's update is weighted by its cosine with the root, clipped at 0, and scaled to the root's
//! length; the sum is divided by the sum of the weights. It needs no honest majority. The number of a
//! client's samples plays no part: a client could claim any.

use super::{Rule, WeightedMean, map_update};
use crate::error::Result;
use fedanchor_engine::tensors::{Params, norm};
use tch::{Kind, Tensor};

/// The mean of updates by their agreement with the root, as a fold.
pub struct FlTrust {
    root: Option<Params>,
    /// The mean so far: changes of weights, and statistics as they are.
    mean: WeightedMean,
}

impl FlTrust {
    /// With the server's own model as the root; without one every update has weight 0.
    pub fn new(root: Option<Params>) -> Self {
        Self { root, mean: WeightedMean::default() }
    }
}

impl Rule for FlTrust {
    fn add(&mut self, params: &Params, _: f64, sent: &Params) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let (root, change) = (change(root, sent)?, change(params, sent)?);
        let weights = |tensors: &'_ [Tensor]| {
            let entries = sent.layout.iter().zip(tensors).filter(|(entry, _)| !entry.statistic);
            entries.map(|(_, tensor)| tensor.shallow_clone()).collect::<Vec<_>>()
        };
        let (root, own) = (weights(&root), weights(&change));
        let (root_length, length) = (norm(root.iter())?, norm(own.iter())?);
        let mut product = 0.0;
        for (a, b) in root.iter().zip(&own) {
            product += a.f_mul(b)?.f_sum(Kind::Double)?.f_double_value(&[])?;
        }
        let trust = (product / (root_length * length)).max(0.0);
        if !(trust.is_finite() && trust > 0.0) {
            return Ok(()); // opposed to the root, at a right angle to it, or one of the two did not move
        }
        let scaled = sent.layout.iter().zip(&change).zip(&params.tensors);
        let scaled = scaled.map(|((entry, change), value)| match entry.statistic {
            true => value.f_detach_copy(),
            false => change.f_mul_scalar(root_length / length),
        });
        let tensors = scaled.collect::<Result<_, _>>()?;
        self.mean.add(&Params { layout: sent.layout.clone(), tensors }, trust)
    }

    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let Some(mean) = self.mean.finish() else { return Ok(None) };
        let model = map_update(&mean, sent, |entry, sent, mean| match entry.statistic {
            true => Ok(mean.shallow_clone()),
            false => sent.f_add(mean),
        });
        Ok(Some(model?))
    }
}

fn change(params: &Params, sent: &Params) -> Result<Vec<Tensor>> {
    let pairs = params.tensors.iter().zip(&sent.tensors);
    Ok(pairs.map(|(to, from)| to.f_sub(from)).collect::<Result<_, _>>()?)
}
