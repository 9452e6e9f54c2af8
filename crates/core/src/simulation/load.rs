//! From a config's `[data]` to images, anchors and clients.

use crate::config::{DataConfig, Experiment, Unreadable};
use crate::error::{Error, Result};
use fedanchor_data::formats::Options;
use fedanchor_data::skipped::by_reason;
use fedanchor_data::split::{Split, split};
use fedanchor_data::{DataSet, Partition, catalog, formats, partition, sample};
use std::path::PathBuf;

/// Reads the data set an experiment names: the embedded sample, or the files in `data.path` [default:
/// `data/NAME`].
pub fn load(experiment: &Experiment) -> Result<DataSet> {
    let config = &experiment.data;
    if config.name == sample::NAME && config.path.is_none() {
        if config.size.is_some_and(|size| size != 28) {
            let problem = "the embedded sample has 28 pixels per side: remove the key";
            return Err(Error::config("data.size", problem));
        }
        if config.test_share.is_some() {
            let problem = "the embedded sample has a test part: remove the key";
            return Err(Error::config("data.test_share", problem));
        }
        return normalised(sample::load()?, config);
    }
    let path = config.path.clone().unwrap_or_else(|| PathBuf::from("data").join(&config.name));
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
    let options = Options {
        size: config.size,
        fit: config.fit,
        test_share: config.test_share,
        skip_unreadable: config.unreadable == Unreadable::Skip,
        cache: formats::default_cache(),
    };
    let mut data = formats::open(&path, &options)?;
    data.name.clone_from(&config.name);
    for (reason, count) in by_reason(&data.skipped) {
        tracing::warn!("{}: {count} files left out: {reason}", path.display());
    }
    normalised(data, config)
}

/// The data set with the normalisation of the config, if there is one.
fn normalised(mut data: DataSet, config: &DataConfig) -> Result<DataSet> {
    if let Some(normalisation) = &config.normalisation {
        let (expected, found) = (data.train.shape.channels, normalisation.mean.len());
        if expected != found {
            let problem = format!(
                "expected as many values as the images have channels, {expected}, found {found}"
            );
            return Err(Error::config("data.normalisation", problem));
        }
        data.normalisation.clone_from(normalisation);
    }
    Ok(data)
}

/// Draws the anchors and the validation images and deals the others to the clients.
pub fn assign(experiment: &Experiment, data: &DataSet) -> Result<(Split, Partition)> {
    let config = &experiment.data;
    let labels =
        data.train.require_labels("drawing anchors and dealing images to simulated clients")?;
    let &DataConfig { anchors, validation, choice, .. } = config;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;

    fn loaded(settings: &[&str]) -> Result<DataSet> {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        load(&resolve("data.name = \"sample\"", &settings)?)
    }

    #[test]
    fn the_normalisation_of_a_config_is_used() {
        let given = loaded(&["data.normalisation={mean=[0.5], std=[0.25]}"]).unwrap().normalisation;
        assert_eq!((given.mean, given.std), (vec![0.5], vec![0.25]));
        let colour = "data.normalisation={mean=[0.5, 0.5, 0.5], std=[0.2, 0.2, 0.2]}";
        let error = loaded(&[colour]).unwrap_err().to_string();
        assert!(error.contains("as the images have channels, 1, found 3"), "{error}");
        let error = loaded(&["data.test_share=0.2"]).unwrap_err().to_string();
        assert!(error.contains("the embedded sample has a test part"), "{error}");
    }

    #[test]
    fn defaults_are_not_written_down_so_that_older_configs_are_the_same() {
        let plain = resolve("", &[]).unwrap();
        let text = toml::to_string(&plain.data).unwrap();
        assert!(!text.contains("fit") && !text.contains("unreadable"), "{text}");
        let set = resolve("[data]\nfit = \"pad\"\nunreadable = \"skip\"", &[]).unwrap().data;
        let text = toml::to_string(&set).unwrap();
        assert!(text.contains("fit = \"pad\"") && text.contains("unreadable = \"skip\""), "{text}");
        assert_eq!(toml::from_str::<DataConfig>(&text).unwrap(), set);
    }
}
