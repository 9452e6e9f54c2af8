//! Outputs of a model for many images.

use fedanchor_engine::Result;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::{Features, Pass, Statistics};
use fedanchor_engine::tensors::Params;
use fedanchor_engine::training::Context;
use fedanchor_engine::words;
use tch::{Device, Kind, Tensor};

words! {
    /// Where latents are read.
    LatentSource { /** From the anchor head. */ Anchor, /** From the pooled features. */ Pooled }
}

/// The results of `of` from the features of all images, `[images, ...]` each. They stay on the device: a GPU does not
/// wait for the host between batches.
pub(crate) fn outputs<const N: usize>(
    context: &Context,
    params: &Params,
    statistics: Statistics,
    views: &[View],
    of: impl Fn(&Features, &Pass) -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let mut parts = [(); N].map(|()| Vec::new());
    let take = |_, pass: &Pass, features| {
        let found = of(&features, pass)?;
        parts.iter_mut().zip(found).for_each(|(parts, found)| parts.push(found));
        Ok(())
    };
    context.for_each_batch(params, |_| statistics, views, take)?;
    let none = Tensor::f_zeros([0, context.classes as i64], (Kind::Float, context.device))?;
    let all = parts.iter().map(|parts| match parts.is_empty() {
        true => Ok(none.shallow_clone()),
        false => Tensor::f_cat(parts, 0),
    });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    Ok(std::array::from_fn(|index| all[index].shallow_clone()))
}

/// The statistics of evaluation mode: running ones if they come with the model, otherwise the batch's.
pub(crate) fn evaluation_statistics(context: &Context) -> Statistics {
    if context.averages_statistics() { Statistics::Running } else { Statistics::Batch }
}

/// The logits of a batch, `[batch, C]`.
pub(crate) fn logits(context: &Context, features: &Features, pass: &Pass) -> Result<Tensor> {
    Ok(context.network.logits(features, pass)?.f_squeeze_dim(0)?)
}

/// The class probabilities of a batch, `[batch, C]`.
pub(crate) fn probabilities(context: &Context, features: &Features, pass: &Pass) -> Result<Tensor> {
    Ok(logits(context, features, pass)?.f_softmax(-1, Kind::Float)?)
}

/// The latents of a batch, `[batch, D]`.
pub(crate) fn latents(
    context: &Context,
    source: LatentSource,
    features: &Features,
    pass: &Pass,
) -> Result<Tensor> {
    let latents = match source {
        LatentSource::Anchor => context.network.latents(features, pass)?,
        LatentSource::Pooled => features.pooled.f_detach_copy()?, // the features are gone soon
    };
    Ok(latents.f_squeeze_dim(0)?)
}

/// The logits of all images, `[images, C]`.
pub(crate) fn all_logits(
    context: &Context,
    params: &Params,
    statistics: Statistics,
    views: &[View],
) -> Result<Tensor> {
    let of = |features: &_, pass: &Pass| Ok([logits(context, features, pass)?]);
    let [logits] = outputs(context, params, statistics, views, of)?;
    Ok(logits)
}

/// The class with the largest logit of each image.
pub(crate) fn predicted(logits: &Tensor) -> Result<Vec<i64>> {
    Ok(Vec::try_from(logits.f_argmax(1, false)?.f_to_device(Device::Cpu)?)?)
}
