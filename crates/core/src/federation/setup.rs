//! The server's half of an experiment: settings, network, method and the server's images.

use crate::config::{Experiment, FaultKind, StatisticsSource, Unfreeze, ensure};
use crate::error::{Error, Result};
use crate::experiment::settle;
use crate::labels::LabelledImages;
use crate::messages::MessagePrecision;
use crate::methods::{self, LossBatches, Method, Properties};
use fedanchor_data::features::TrunkInfo;
use fedanchor_data::formats::free_memory;
use fedanchor_data::split::{Split, split, split_all};
use fedanchor_data::{DataSet, ImageSet, Skipped};
use fedanchor_engine::Device;
use fedanchor_engine::training::Context;
use fedanchor_record::ClientLabels;
use std::sync::Arc;

/// The server's half of an experiment. The clients may be anywhere.
#[allow(missing_docs)] // the types have comments
pub struct Federation {
    pub experiment: Experiment,
    pub context: Context,
    pub method: Box<dyn Method>,
    /// The anchors and the held out images among the labelled images.
    pub split: Split,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Files of the data set that were left out.
    pub skipped: Vec<Skipped>,
    /// The trunk that made the features of all images, if they have any.
    pub trunk: Option<TrunkInfo>,
    /// The images that the server tests on.
    pub test: LabelledImages,
    pub(super) validation: LabelledImages,
    pub(super) anchors: LabelledImages,
    /// Images, and those of them that `batch_norm.statistics = "static-all"` measures on.
    pub(crate) statistics: Option<(Arc<ImageSet>, Vec<u32>)>,
}

/// Refuses settings that need the clients' images or change their answers.
fn check_fleet(experiment: &Experiment) -> Result<()> {
    let problem = "`static-all` needs the clients' images, which do not leave them: set `static-server` \
                   or `average`";
    let possible = experiment.batch_norm.statistics != StatisticsSource::StaticAll;
    ensure(possible, "batch_norm.statistics", problem)?;
    let none = experiment.faults.kind == FaultKind::None;
    ensure(none, "faults.kind", "must be `none` with a fleet of real clients")?;
    let problem = "the clients' images do not leave them: set 0";
    ensure(experiment.record.samples == 0, "record.samples", problem)
}

impl Federation {
    /// For clients that are elsewhere. `workers` threads augment images [default: one per core].
    pub fn new(experiment: &Experiment, data: DataSet, workers: Option<usize>) -> Result<Self> {
        check_fleet(experiment)?;
        let split = server_split(experiment, &data)?;
        let mut experiment = experiment.clone();
        experiment.count_anchors(split.anchors.len());
        let federation = Self::with_split(experiment, &data, split, workers)?;
        let name = federation.method.name();
        let problem = format!("`{name}` trains on the clients' labels, which stay with them");
        let sees_labels = federation.method.properties().labels == ClientLabels::True;
        ensure(!sees_labels, "method.name", problem)?;
        Ok(federation)
    }

    /// With anchors that are already drawn.
    pub(crate) fn with_split(
        mut experiment: Experiment,
        data: &DataSet,
        split: Split,
        workers: Option<usize>,
    ) -> Result<Self> {
        let DataSet { train, unlabelled, test, normalisation, flip, skipped, trunk, .. } = data;
        let labels = train.require_labels("drawing anchors")?;
        let test_labels = test.require_labels("testing")?.to_vec();
        let classes = train.classes.clone();
        let method = methods::build(&experiment.method)?;
        let properties = method.properties();
        if experiment.privacy.is_some() {
            let problem = format!(
                "`{}` shows clients the updates of single others, which a private run must not",
                method.name()
            );
            ensure(!properties.observes_updates, "method.name", problem)?;
            experiment.calibrate()?;
        }
        if experiment.messages.precision != MessagePrecision::F32 {
            let problem = format!(
                "`{}` sends parts of models, which are not rounded: set f32",
                method.name()
            );
            let whole = properties.summand.is_none() && !properties.observes_updates;
            ensure(whole, "messages.precision", problem)?;
            let problem = "faulty updates are not rounded: set messages.precision=f32";
            ensure(experiment.faults.kind == FaultKind::None, "faults.kind", problem)?;
        }
        let sees_labels = properties.labels == ClientLabels::True;
        let problem = format!("`{}` trains on the clients' labels, which have none", method.name());
        ensure(!sees_labels || unlabelled.is_none(), "method.name", problem)?;
        if experiment.client.loss.is_some() {
            let problem = format!(
                "the clients of `{}` minimise a loss of their own: those of `fedanchor`, `semifl` and `supervised` may \
                 have another",
                method.name()
            );
            ensure(properties.loss_on.is_some(), "client.loss", problem)?;
            let problem = "these rounds have a loss of their own: set 0, or remove client.loss";
            ensure(properties.warm_up == 0, "method.warm_up.rounds", problem)?;
        }
        let settings = experiment.training(properties.heads)?;
        let (format, count) = (train.format(), classes.len());
        let context = Context::new(settings, format, count, normalisation, *flip, workers)?;
        if let (Some(own), Some(LossBatches::Plain)) = (&context.loss, properties.loss_on) {
            let problem = "the loss reads mixtures, but the clients train on none: set method.client_mixup=true";
            ensure(!own.reads_mixture(), "client.loss.file", problem)?;
        }
        check_memory(free_memory(), &experiment, &context)?;
        if experiment.model.init_from.is_some() || experiment.model.unfreeze != Unfreeze::None {
            context.initial()?; // a file that does not fit is found before a run folder is made
        }
        Ok(Self {
            context,
            method,
            anchors: LabelledImages::select(train, labels, &split.anchors),
            validation: LabelledImages::select(train, labels, &split.validation),
            test: LabelledImages { images: test.clone(), labels: test_labels },
            split,
            classes,
            skipped: skipped.clone(),
            trunk: trunk.clone(),
            statistics: None,
            experiment,
        })
    }

    /// Whether the anchors alone are trained on, too: a method without clients has nothing to be compared with.
    pub(crate) fn is_compared(&self) -> bool {
        self.experiment.compare && self.method.properties().clients
    }

    /// The experiment, complete with the settings that depend on data and files.
    pub fn settled(&self) -> Result<Experiment> {
        let images = &self.context.images;
        let mut settled = settle(&self.experiment, images.format, self.classes.len(), images.flip)?;
        if let (Some(config), Some(own)) = (&mut settled.client.loss, &self.context.loss) {
            config.hash = Some(own.hash.clone());
        }
        Ok(settled)
    }

    /// The properties of the method, with the losses that its clients have here.
    pub(crate) fn properties(&self) -> Properties {
        let mut properties = self.method.properties();
        if let Some(own) = &self.context.loss {
            properties.client_losses = own.terms.clone();
        }
        properties
    }
}

/// Splits the labelled images if none of them is a client's.
pub(crate) fn server_split(experiment: &Experiment, data: &DataSet) -> Result<Split> {
    let config = &experiment.data;
    let (anchors, validation) = (config.anchors, config.validation);
    let (labelled, seed) = (data.train.len(), experiment.seed);
    match anchors {
        0 => Ok(split_all(&data.train, validation, seed)?),
        // As the config of a finished run states it.
        _ if anchors + validation == labelled => Ok(split_all(&data.train, validation, seed)?),
        _ if anchors > labelled => {
            let problem = format!(
                "there are {labelled} labelled images, not {anchors}: set 0 to use all of them"
            );
            Err(Error::config("data.anchors", problem))
        }
        _ => Ok(split(&data.train, anchors, validation, config.choice, seed)?),
    }
}

/// Refuses batches whose training cannot fit into the memory that is free. What is counted is the least: what
/// convolutions compute for one view of one batch, in single precision. A GPU says itself when its memory is full.
fn check_memory(free: Option<u64>, experiment: &Experiment, context: &Context) -> Result<()> {
    let Some(free) = free.filter(|_| context.device == Device::Cpu) else { return Ok(()) };
    let of_image = context.network.convolved * size_of::<f32>() as u64;
    for (key, images) in
        [("server.batch", experiment.server.batch), ("client.batch", experiment.client.batch)]
    {
        let needed = of_image.saturating_mul(images as u64);
        let problem = format!(
            "training on {images} images at a time needs at least {} MB of memory, and {} MB are free: \
             expected at most {}, or a smaller model or data.size",
            needed / 1_000_000,
            free / 1_000_000,
            free / of_image.max(1),
        );
        ensure(needed <= free, key, problem)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;
    use fedanchor_data::sample;

    #[test]
    fn a_batch_that_cannot_fit_is_refused_with_the_number() {
        let keys = ["model.name=wrn28x2", "data.name=sample", "server.batch=40", "client.batch=20"];
        let experiment = resolve("preset = \"paper\"", &keys.map(str::to_owned)).unwrap();
        let federation = Federation::new(&experiment, sample::load().unwrap(), Some(1)).unwrap();
        let Federation { experiment, context, .. } = &federation;
        let image = 4 * context.network.convolved;
        check_memory(Some(40 * image), experiment, context).unwrap();
        let refused =
            check_memory(Some(40 * image - 1), experiment, context).unwrap_err().to_string();
        let problem = "server.batch: training on 40 images at a time needs at least";
        assert!(refused.starts_with(problem) && refused.contains("at most 39, or"), "{refused}");
        let experiment = Experiment {
            server: crate::config::ServerConfig { batch: 1, ..experiment.server.clone() },
            ..experiment.clone()
        };
        let refused =
            check_memory(Some(20 * image - 1), &experiment, context).unwrap_err().to_string();
        assert!(refused.starts_with("client.batch: training on 20 images"), "{refused}");
    }
}
