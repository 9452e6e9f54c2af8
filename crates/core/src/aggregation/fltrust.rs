//! FLTrust: Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust Federated Learning via Trust
//! Bootstrapping", NDSS 2021.
//!
//! A rule that only a server with labels can have: its own update on the anchors is the root of trust.
//! Every client's update is weighted by its cosine with the root, clipped at 0, and scaled to the root's
//! length; the sum is divided by the sum of the weights. It needs no honest majority. The number of a
//! client's samples plays no part: a client could claim any.

use super::mean::RowMean;
use super::{Row, Rule};
use crate::error::Result;
use fedanchor_engine::tensors::Params;
use tch::{Kind, Tensor};

/// The mean of updates by their agreement with the root, as a fold.
pub struct FlTrust {
    root: Option<Params>,
    /// The root's change of the model that was sent, and that model, from the first update on.
    from: Option<(Row, Row)>,
    /// The mean so far: changes of weights, and statistics as they are.
    mean: RowMean,
}

impl FlTrust {
    /// With the server's own model as the root; without one every update has weight 0.
    pub fn new(root: Option<Params>) -> Self {
        Self { root, from: None, mean: RowMean::default() }
    }
}

impl Rule for FlTrust {
    fn add(&mut self, params: &Params, _: f64, sent: &Params) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        if self.from.is_none() {
            let sent = Row::of(sent)?;
            self.from = Some((Row::of(root)?.change(&sent)?, sent));
        }
        let Some((root, sent)) = &self.from else { return Ok(()) };
        let update = Row::of(params)?;
        let change = update.change(sent)?;
        let (root_length, length) = (root.norms()?[0], change.norms()?[0]);
        let product = root.weights()?.f_mul(&change.weights()?)?.f_sum(Kind::Double)?;
        let trust = (product.f_double_value(&[])? / (root_length * length)).max(0.0);
        if !(trust.is_finite() && trust > 0.0) {
            return Ok(()); // opposed to the root, at a right angle to it, or one of the two did not move
        }
        let weights = change.weights()?.f_mul_scalar(root_length / length)?;
        let scaled = update.with(Tensor::f_cat(&[weights, update.statistics()?], 0)?);
        self.mean.add(&scaled, trust)
    }

    fn finish(self: Box<Self>, sent: &Params) -> Result<Option<Params>> {
        let Some(mean) = self.mean.finish() else { return Ok(None) };
        let weights = Row::of(sent)?.weights()?.f_add(&mean.weights()?)?;
        let model = mean.with(Tensor::f_cat(&[weights, mean.statistics()?], 0)?);
        Ok(Some(model.params(sent)?))
    }
}
