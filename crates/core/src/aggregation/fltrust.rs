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
use tch::Kind;

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
        let change = |to: &Params| map_update(to, sent, |_, from, to| to.f_sub(from));
        let (root, change) = (change(root)?, change(params)?);
        let (root_length, length) = (norm(root.weights())?, norm(change.weights())?);
        let mut product = 0.0;
        for (a, b) in root.weights().zip(change.weights()) {
            product += a.f_mul(b)?.f_sum(Kind::Double)?.f_double_value(&[])?;
        }
        let trust = (product / (root_length * length)).max(0.0);
        if !(trust.is_finite() && trust > 0.0) {
            return Ok(()); // opposed to the root, at a right angle to it, or one of the two did not move
        }
        let scaled = map_update(params, &change, |entry, change, value| match entry.statistic {
            true => value.f_detach_copy(),
            false => change.f_mul_scalar(root_length / length),
        });
        self.mean.add(&scaled?, trust)
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
