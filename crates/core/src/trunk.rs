//! The trunk of an experiment, as what reads pictures needs it.

use crate::config::{AugmentConfig, Experiment};
use crate::error::Result;
use fedanchor_data::features::{Extractor, FeatureFormat};
use fedanchor_engine::trunk::Trunk;
use std::sync::Arc;

/// What makes features of an experiment's pictures, if it has a trunk.
pub fn extractor(experiment: &Experiment) -> Result<Option<Extractor>> {
    let Some(named) = &experiment.model.trunk else { return Ok(None) };
    let (data, device) = (&experiment.data, experiment.device()?);
    let trunk = Trunk::load(named, data.size, data.normalisation.as_ref(), device)?;
    Ok(Some(extractor_of(trunk, &experiment.augment)))
}

/// The same for a trunk that is loaded.
pub fn extractor_of(trunk: Trunk, augment: &AugmentConfig) -> Extractor {
    let (picture, width) = (trunk.info.shape(), trunk.width);
    Extractor {
        format: FeatureFormat { picture, width, views: augment.views },
        trunk: trunk.info.clone(),
        strong: augment.strong,
        flip: augment.flip,
        encode: Arc::new(move |pixels| trunk.encode(pixels).map_err(|error| error.to_string())),
    }
}
