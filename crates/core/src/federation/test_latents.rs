//! The latents of test images, for a figure of how far the classes are apart.

use super::Coordinator;
use crate::error::Result;
use crate::labels::latents;
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::InPhase;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::Statistics;
use fedanchor_engine::training::Context;
use fedanchor_record::Latents;
use rand::seq::index::sample;
use tch::{Device, Kind, Tensor};

/// More points than this cover each other in a figure.
const MOST: usize = 2000;

impl Coordinator<'_> {
    /// Computes them with the model that is tested, where the method reads latents: those that pseudo-labels
    /// come from, or the input of the classification head for a method without an anchor head.
    pub fn test_latents(&self) -> Result<Latents> {
        let context = self.server.context;
        let (test, test_labels) = self.federation.test();
        let images = drawn(context, test.len());
        let views: Vec<View> =
            images.iter().map(|&at| View::Raw(test.image(at as usize))).collect();
        let (mut found, mut predicted) = (Vec::new(), Vec::new());
        context
            .for_each_batch(
                &self.server.params,
                |_| Statistics::Running,
                &views,
                |_, pass, features| {
                    found.push(latents(context, self.properties.latents, &features, pass)?);
                    let logits = context.network.logits(&features, pass)?.f_squeeze_dim(0)?;
                    predicted.push(logits.f_argmax(1, false)?);
                    Ok(())
                },
            )
            .in_phase("computing the latents of test images")?;
        let found = Tensor::f_cat(&found, 0)?.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?;
        let predicted =
            Vec::<i64>::try_from(Tensor::f_cat(&predicted, 0)?.f_to_device(Device::Cpu)?)?;
        Ok(Latents {
            width: found.size()[1] as usize,
            latents: Vec::try_from(found.f_flatten(0, -1)?)?,
            labels: images.iter().map(|&at| test_labels[at as usize]).collect(),
            predicted: predicted.into_iter().map(|class| class as u16).collect(),
            images,
        })
    }
}

/// Which test images these are: the same in every round and for every method.
fn drawn(context: &Context, all: usize) -> Vec<u32> {
    let mut rng = context.streams(0).of(Purpose::TestLatents, SERVER).rng();
    let drawn = sample(&mut rng, all, all.min(MOST)).into_iter();
    let mut drawn: Vec<u32> = drawn.map(|at| at as u32).collect();
    drawn.sort_unstable();
    drawn
}
