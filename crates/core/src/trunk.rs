//! The trunk of an experiment, as what reads pictures needs it.

use crate::config::{AugmentConfig, Experiment, Unfreeze};
use crate::error::{Error, Result};
use fedanchor_data::features::{Extractor, FeatureFormat, TrunkInfo};
use fedanchor_engine::trunk::{Place, Trunk, TrunkFile};
use std::sync::Arc;

/// What a trunk does to pictures.
#[derive(Clone)]
pub enum Start {
    /// There is none.
    Scratch,
    /// It turns them into features.
    Features(Extractor),
    /// All of it is trained: it reads them as it was pretrained.
    Weights(TrunkInfo),
}

impl Start {
    /// That of an experiment.
    pub fn of(experiment: &Experiment) -> Result<Self> {
        let unfreeze = experiment.model.unfreeze;
        let Some(named) = &experiment.model.trunk else {
            return match unfreeze {
                Unfreeze::None => Ok(Self::Scratch),
                _ => Err(Error::config("model.unfreeze", "there is no trunk: set model.trunk")),
            };
        };
        let (data, device) = (&experiment.data, experiment.device()?);
        let file = TrunkFile::read(&Place::find(named)?, data.size, data.normalisation.as_ref())?;
        if unfreeze == Unfreeze::All {
            return Ok(Self::Weights(file.info));
        }
        let trunk = Trunk::load(&file, unfreeze, device)?;
        Ok(Self::Features(extractor(trunk, &experiment.augment)))
    }

    /// What makes features of pictures, if anything does.
    pub fn extractor(self) -> Option<Extractor> {
        match self {
            Self::Features(extractor) => Some(extractor),
            _ => None,
        }
    }
}

/// What makes features of pictures with this trunk.
pub fn extractor(trunk: Trunk, augment: &AugmentConfig) -> Extractor {
    let (picture, output) = (trunk.info.shape(), trunk.output);
    let (width, side, views) = (output.channels, output.side, augment.views);
    Extractor {
        format: FeatureFormat { picture, width, side, views },
        trunk: trunk.info.clone(),
        strong: augment.strong,
        flip: augment.flip,
        encode: Arc::new(move |pixels| trunk.encode(pixels).map_err(|error| error.to_string())),
    }
}
