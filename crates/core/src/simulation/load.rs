//! From a config's `[data]` to images, anchors and clients.

use crate::config::{DataConfig, Experiment};
use crate::error::{Error, Result};
use fedanchor_data::split::{Split, split};
use fedanchor_data::{DataSet, Partition, catalog, formats, partition, sample};
use std::path::PathBuf;

/// Where the files of a data set are; none for the embedded sample.
pub fn place(config: &DataConfig) -> Option<PathBuf> {
    let embedded = config.name == sample::NAME;
    let default = || (!embedded).then(|| PathBuf::from("data").join(&config.name));
    config.path.clone().or_else(default)
}

/// Reads the data set an experiment names: the embedded sample, or the files in `data.path` [default:
/// `data/NAME`].
pub fn load(experiment: &Experiment) -> Result<DataSet> {
    let config = &experiment.data;
    let Some(path) = place(config) else {
        if config.size.is_some_and(|size| size != 28) {
            let problem = "the embedded sample has 28 pixels per side: remove the key";
            return Err(Error::config("data.size", problem));
        }
        return Ok(sample::load()?);
    };
    if !path.exists() {
        let (key, advice) = match catalog::find(&config.name) {
            Ok(_) if config.path.is_none() => {
                ("data.name", format!("run `fedanchor data get {}` first", config.name))
            }
            _ if config.path.is_none() => {
                ("data.name", "set data.path to the folder of the data set".to_owned())
            }
            _ => ("data.path", "set it to the folder of the data set".to_owned()),
        };
        let problem = format!("no data set `{}` at {}: {advice}", config.name, path.display());
        return Err(Error::config(key, problem));
    }
    let mut data = formats::open(&path, &formats::Options { size: config.size })?;
    data.name.clone_from(&config.name);
    Ok(data)
}

/// Draws the anchors and the validation images and deals the others to the clients.
pub fn assign(experiment: &Experiment, data: &DataSet) -> Result<(Split, Partition)> {
    let config = &experiment.data;
    let labels =
        data.train.require_labels("drawing anchors and dealing images to simulated clients")?;
    let DataConfig { anchors, validation, choice, .. } = *config;
    let split = split(&data.train, anchors, validation, choice, experiment.seed)?;
    let classes = data.train.classes.len();
    let partition = partition::partition(
        experiment.partition,
        labels,
        &split.pool,
        classes,
        config.clients,
        experiment.seed,
    )?;
    Ok((split, partition))
}
