//! From a config's `[data]` to images, anchors and clients.

use crate::config::{DataConfig, Experiment, Unreadable, ensure};
use crate::error::{Error, Result};
use crate::federation::server_split;
use crate::methods;
use crate::trunk::Start;
use fedanchor_data::features::TrunkInfo;
use fedanchor_data::formats::Options;
use fedanchor_data::partition::Scheme;
use fedanchor_data::split::{Split, split};
use fedanchor_data::{
    Cache, DataSet, InputFormat, Partition, Progress, Unlabelled, formats, partition, sample,
};
use fedanchor_engine::model::Network;
use std::path::PathBuf;

/// Where the files of a data set are; none for the embedded sample, and for a registered data set unless `data.path` is set.
pub fn place(config: &DataConfig) -> Option<PathBuf> {
    let has_files = config.name != sample::NAME && !formats::is_registered(&config.name);
    let default = || has_files.then(|| PathBuf::from("data").join(&config.name));
    config.path.clone().or_else(default)
}

/// Reads the data set that an experiment names: a registered one, the embedded sample, or files.
pub fn load(experiment: &Experiment) -> Result<DataSet> {
    load_watched(experiment, Progress::default())
}

/// The same, telling how many pictures have been read.
pub fn load_watched(experiment: &Experiment, progress: Progress) -> Result<DataSet> {
    let start = Start::of(experiment)?;
    if let Start::Features(extractor) = &start {
        // Before all pictures have passed the trunk.
        let format =
            InputFormat { shape: extractor.format.picture, features: Some(extractor.format) };
        let heads = methods::build(&experiment.method)?.properties().heads;
        Network::new(&experiment.model, heads, format.network(), 1)?;
    }
    load_with(experiment, start, progress)
}

/// The same with a trunk that is loaded.
pub fn load_with(experiment: &Experiment, start: Start, progress: Progress) -> Result<DataSet> {
    let config = &experiment.data;
    let trained = match &start {
        Start::Weights(trunk) => Some(trunk.clone()),
        _ => None,
    };
    let options = Options {
        size: config.size.or(trained.as_ref().map(|trunk| trunk.size)),
        fit: config.fit,
        test_share: config.test_share,
        skip_unreadable: config.unreadable == Unreadable::Skip,
        cache: Cache::of_user()?,
        features: start.extractor(),
        progress,
        ..Options::default()
    };
    if let Some(data) = formats::load_registered(&config.name, config.path.as_deref(), &options) {
        return normalised(data?, config, trained);
    }
    let Some(path) = place(config) else {
        let problem = "the embedded sample has 28 pixels per side: remove the key";
        let has_trunk = experiment.model.trunk.is_some();
        let fits = has_trunk || config.size.is_none_or(|size| size == 28);
        ensure(fits, "data.size", problem)?;
        let problem = "the embedded sample has a test part: remove the key";
        ensure(config.test_share.is_none(), "data.test_share", problem)?;
        return normalised(options.extract(sample::load()?)?, config, trained);
    };
    if !path.exists() {
        let (key, advice) = match formats::published(&config.name) {
            Ok(_) if config.path.is_none() => {
                ("data.name", format!("run `fedanchor data get {}` first", config.name))
            }
            _ if config.path.is_none() => {
                ("data.name", "set data.path to the folder of the data set".to_owned())
            }
            _ => ("data.path", "correct the path, or put the data set there".to_owned()),
        };
        let problem = format!("no data set `{}` at {}: {advice}", config.name, path.display());
        return Err(Error::config(key, problem));
    }
    let mut data = formats::open(&path, &options)?;
    data.name.clone_from(&config.name);
    normalised(data, config, trained)
}

/// The data set with the normalisation of the config, if there is one; with features it is that of their pictures. A trunk
/// that is trained reads pictures as it was pretrained.
fn normalised(
    mut data: DataSet,
    config: &DataConfig,
    trained: Option<TrunkInfo>,
) -> Result<DataSet> {
    if let Some(trunk) = trained {
        data = data.fitted(trunk.shape());
        data.normalisation.clone_from(&trunk.normalisation);
        data.trunk = Some(trunk);
        return Ok(data);
    }
    if let Some(normalisation) = config.normalisation.as_ref().filter(|_| data.trunk.is_none()) {
        let (expected, found) = (data.train.shape.channels, normalisation.mean.len());
        let problem =
            format!("expected as many values as the images have channels, {expected}, got {found}");
        ensure(expected == found, "data.normalisation", problem)?;
        data.normalisation.clone_from(normalisation);
    }
    Ok(data)
}

/// The split of an experiment's data, and the settings that depend on it.
#[derive(Debug)]
pub struct Assigned {
    /// The anchors and the held out images.
    pub split: Split,
    /// The images of each client.
    pub partition: Partition,
    /// The experiment with the number of anchors and clients there are.
    pub experiment: Experiment,
}

/// Draws the anchors and the validation images and deals the others to the clients. Clients with unlabelled
/// images of their own come after the labelled ones: their images are numbered from there.
pub fn assign(experiment: &Experiment, data: &DataSet) -> Result<Assigned> {
    let (split, partition) = match &data.unlabelled {
        None => deal(experiment, data)?,
        Some(unlabelled) => with_unlabelled(experiment, data, unlabelled)?,
    };
    let mut experiment = experiment.clone();
    experiment.count_anchors(split.anchors.len());
    experiment.data.clients = partition.clients.len();
    let (per_round, clients) = (experiment.client.per_round, experiment.data.clients);
    let problem = format!("{per_round} clients per round, but the data has {clients}");
    ensure(per_round <= clients, "client.per_round", problem)?;
    Ok(Assigned { split, partition, experiment })
}

/// Every image is labelled: anchors are drawn, and the others are the clients'.
fn deal(experiment: &Experiment, data: &DataSet) -> Result<(Split, Partition)> {
    let DataConfig { anchors, validation, choice, clients, .. } = experiment.data;
    let problem = "0 takes every labelled image, which leaves none for the clients: set the number \
                   of anchors, or bring unlabelled images";
    ensure(anchors > 0, "data.anchors", problem)?;
    let labels =
        data.train.require_labels("drawing anchors and dealing images to simulated clients")?;
    let split = split(&data.train, anchors, validation, choice, experiment.seed)?;
    let (scheme, classes) = (experiment.partition, data.train.classes.len());
    let partition =
        partition::partition(scheme, labels, &split.pool, classes, clients, experiment.seed)?;
    Ok((split, partition))
}

/// The clients have unlabelled images: as the data assigns them, or dealt at random.
fn with_unlabelled(
    experiment: &Experiment,
    data: &DataSet,
    unlabelled: &Unlabelled,
) -> Result<(Split, Partition)> {
    let clients = experiment.data.clients;
    let mut split = server_split(experiment, data)?;
    let (first, count) = (data.train.len() as u32, unlabelled.images.len() as u32);
    split.pool = (first..first + count).collect();
    let partition = if !unlabelled.clients.is_empty() {
        let shifted = |images: &Vec<u32>| images.iter().map(|&index| first + index).collect();
        Partition { clients: unlabelled.clients.iter().map(shifted).collect() }
    } else if let Scheme::Iid {} = experiment.partition {
        partition::partition(experiment.partition, &[], &split.pool, 0, clients, experiment.seed)?
    } else {
        let problem = "needs the labels of the clients' images, which have none: set it to `iid`, or \
                       give every client a folder of its own";
        return Err(Error::config("partition.kind", problem));
    };
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
        assert!(error.contains("as the images have channels, 1, got 3"), "{error}");
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
