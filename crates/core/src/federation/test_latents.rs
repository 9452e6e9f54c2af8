//! The latents of test images, for a figure of the latent space.

use super::Coordinator;
use crate::error::Result;
use crate::labels::{latents, logits, outputs, predicted};
use fedanchor_data::Purpose;
use fedanchor_data::stream::SERVER;
use fedanchor_engine::InPhase;
use fedanchor_engine::batches::View;
use fedanchor_engine::model::{Pass, Statistics};
use fedanchor_record::Latents;
use rand::seq::index::sample;
use tch::{Device, Kind};

/// More points than this cover each other in a figure.
const MOST: usize = 2000;

impl Coordinator<'_> {
    /// The latents by the current model, where the method reads them: those that pseudo-labels come from, or the
    /// input of the classification head for a method without an anchor head.
    pub fn test_latents(&self) -> Result<Latents> {
        let (context, source) = (self.server.context, self.properties.latents);
        let test = &self.federation.test;
        // The same images in every round and for every method.
        let mut rng = context.streams(0).of(Purpose::TestLatents, SERVER).rng();
        let drawn = sample(&mut rng, test.labels.len(), test.labels.len().min(MOST)).into_iter();
        let mut images: Vec<u32> = drawn.map(|at| at as u32).collect();
        images.sort_unstable();
        let views = images.iter().map(|&at| View::Raw(test.images.input(at as usize)));
        let views: Vec<View> = views.collect();
        let both = |features: &_, pass: &Pass| {
            Ok([latents(context, source, features, pass)?, logits(context, features, pass)?])
        };
        let [latents, logits] =
            outputs(context, &self.server.params, Statistics::Running, &views, both)
                .in_phase("computing the latents of test images")?;
        let latents = latents.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?;
        Ok(Latents {
            width: latents.size()[1] as usize,
            latents: Vec::try_from(latents.f_flatten(0, -1)?)?,
            labels: images.iter().map(|&at| test.labels[at as usize]).collect(),
            predicted: predicted(&logits)?.into_iter().map(|class| class as u16).collect(),
            images,
        })
    }
}
