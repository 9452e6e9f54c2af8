//! The objective of clients: the loss of the method, or one from a file (`client.loss`) on the method's batches.

use super::context::Context;
use super::fix_mix::{Batch, FixMix, FixMixLoss, Outputs};
use super::loss::{Inputs, Objective, StepLoss, Terms};
use super::losses::unit;
use super::own_loss::{Input, OwnLoss};
use crate::error::{Error, Result};
use crate::model::{Pass, Statistics};
use crate::tensors::{Entry, Part};
use std::sync::Arc;
use tch::{Kind, Tensor};

/// Batches of a method with the loss that its clients minimise.
pub fn client_objective<'a>(batches: &'a FixMix) -> Objective<'a> {
    let Some(own) = &batches.context.loss else { return batches.objective() };
    let loss = OnBatches { own: own.clone(), batches: batches.loss() };
    let objective = Objective::new(batches, loss).with_scalars(own.scalars(batches.streams.round));
    Objective { reads_sent: own.reads_sent(), ..objective }
}

/// A loss on the batches of a method.
#[derive(Debug, Clone)]
struct OnBatches {
    own: Arc<OwnLoss>,
    batches: FixMixLoss,
}

impl PartialEq for OnBatches {
    fn eq(&self, other: &Self) -> bool {
        self.own.hash == other.own.hash && self.batches == other.batches
    }
}

impl OnBatches {
    fn tensor(&self, input: &Input, read: &Read) -> Result<Option<Tensor>> {
        let Read { context, pass, batch, outputs, sent } = read;
        let network = &context.network;
        let weights_or_ones = |weights: &Option<Tensor>| match weights {
            Some(weights) => Ok(weights.shallow_clone()),
            None => outputs.logits.f_new_ones(batch.labels.size(), (Kind::Float, context.device)),
        };
        let mix = || batch.mix.as_ref().ok_or_else(|| Error::tensors("there is no mixture"));
        let sent_model = || pass.others.first().ok_or_else(|| Error::tensors("no model was sent"));
        let sent_outputs = || sent.as_ref().ok_or_else(|| Error::tensors("no model was sent"));
        Ok(Some(match input {
            Input::Scalar(_) => return Ok(None),
            Input::Logits => outputs.logits.shallow_clone(),
            Input::Features => outputs.features.pooled.shallow_clone(),
            Input::Latents => unit(&network.latents(&outputs.features, pass)?)?,
            Input::Labels => batch.labels.shallow_clone(),
            Input::SampleWeights => weights_or_ones(&batch.weights)?,
            Input::MixLogits => match &outputs.mix_logits {
                Some(logits) => logits.shallow_clone(),
                None => return Err(Error::tensors("there is no mixture")),
            },
            Input::MixLabels => mix()?.labels.shallow_clone(),
            Input::MixSampleWeights => weights_or_ones(&mix()?.weights)?,
            Input::MixLambda => mix()?.lambda.shallow_clone(),
            Input::Weights => trained(context, pass.weights()?)?,
            Input::SentWeights => trained(context, &sent_model()?.tensors)?,
            Input::SentLogits => sent_outputs()?.1.shallow_clone(),
            Input::SentFeatures => sent_outputs()?.0.shallow_clone(),
        }))
    }
}

/// What the inputs of a loss are taken from.
struct Read<'a> {
    context: &'a Context,
    pass: &'a Pass<'a>,
    batch: &'a Batch,
    outputs: &'a Outputs,
    /// Features and logits of the fix view by the model that was sent, if they are read.
    sent: Option<(Tensor, Tensor)>,
}

impl StepLoss for OnBatches {
    fn terms(&self) -> usize {
        self.own.terms.len()
    }

    fn reads_weights(&self) -> bool {
        self.own.reads(&[Input::Weights])
    }

    fn loss(&self, inputs: &Inputs, pass: &Pass) -> Result<Terms> {
        let Inputs { context, bytes, scalars } = *inputs;
        let batch = &self.batches.format.read(&context.images, bytes, pass.clients())?;
        let outputs = &self.batches.outputs(context, batch, pass)?;
        let sent = self
            .own
            .reads(&[Input::SentLogits, Input::SentFeatures])
            .then(|| sent(context, batch, pass));
        let read = Read { context, pass, batch, outputs, sent: sent.transpose()? };
        let tensors = self
            .own
            .inputs
            .iter()
            .map(|input| self.tensor(input, &read))
            .collect::<Result<Vec<_>>>()?;
        let tensors: Vec<Tensor> = tensors.into_iter().flatten().collect();
        let terms = self.own.call(&tensors, scalars, pass.clients())?;
        Ok(terms.into_iter().map(|term| (1.0, term)).collect::<Vec<_>>().into())
    }
}

/// Features and logits by the model that the clients were sent.
fn sent(context: &Context, batch: &Batch, pass: &Pass) -> Result<(Tensor, Tensor)> {
    let Some(model) = pass.others.first() else { return Err(Error::tensors("no model was sent")) };
    let pass = pass.with_tensors(&model.tensors).with_statistics(Statistics::Running);
    tch::no_grad(|| {
        let features = context.network.features(&context.images.input(&batch.fix)?, &pass)?;
        let logits = context.network.logits(&features, &pass)?;
        Ok((features.pooled, logits))
    })
}

/// The weights that clients train, one after the other: `[K, P]`.
fn trained(context: &Context, weights: &[Tensor]) -> Result<Tensor> {
    let is_trained = |(entry, _): &(&Entry, &Tensor)| {
        !entry.statistic && matches!(entry.part, Part::Backbone | Part::Classifier)
    };
    let flat = context.network.layout.iter().zip(weights).filter(is_trained);
    let flat = flat
        .map(|(_, weight)| weight.f_flatten(1, -1))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Tensor::f_cat(&flat, 1)?)
}
