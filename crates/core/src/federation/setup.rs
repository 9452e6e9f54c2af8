//! The server's half of an experiment: settings, network, method and the server's images.

use super::coordinator::Coordinator;
use crate::config::{Experiment, FaultKind, StatisticsSource};
use crate::error::{Error, Result};
use crate::experiment::settle;
use crate::labels::AnchorSet;
use crate::methods::{self, Method};
use fedanchor_data::split::{Split, split, split_all};
use fedanchor_data::{DataSet, ImageSet, Skipped, Unlabelled};
use fedanchor_engine::training::Context;
use fedanchor_record::ClientLabels;
use std::sync::Arc;

/// The server's half of an experiment. The clients may be anywhere.
pub struct Federation {
    /// The settings of the run.
    pub experiment: Experiment,
    /// The network and how to train it.
    pub context: Context,
    /// The method.
    pub method: Box<dyn Method>,
    /// Which of the labelled images are anchors and which are held out.
    pub split: Split,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Files of the data set that were left out.
    pub skipped: Vec<Skipped>,
    pub(super) test: LabelledImages,
    pub(super) validation: LabelledImages,
    anchors: LabelledImages,
    /// The images that `batch_norm.statistics = "static-all"` measures on, and which of them.
    pub(crate) statistics: Option<(Arc<ImageSet>, Vec<u32>)>,
}

/// Images of the server's own.
pub(super) struct LabelledImages {
    pub(super) images: ImageSet,
    pub(super) labels: Vec<u16>,
    /// The number of each image.
    numbers: Vec<u32>,
}

impl LabelledImages {
    fn new(images: ImageSet, labels: Vec<u16>) -> Self {
        let numbers = (0..labels.len() as u32).collect();
        Self { images, labels, numbers }
    }

    fn selected(from: &ImageSet, labels: &[u16], chosen: &[u32]) -> Self {
        let labels = chosen.iter().map(|&index| labels[index as usize]).collect();
        Self::new(from.select(chosen), labels)
    }
}

/// What is left of the data for the clients.
pub(crate) struct ForClients {
    /// All labelled images, without their labels: clients cannot see what they must not.
    pub(crate) images: ImageSet,
    /// Their labels.
    pub(crate) labels: Vec<u16>,
    /// Unlabelled images, where the data has them.
    pub(crate) unlabelled: Option<Unlabelled>,
}

/// What needs the clients' images or true labels is refused where the clients are elsewhere.
fn check_fleet(experiment: &Experiment) -> Result<()> {
    let refused = |key: &str, problem: &str| Err(Error::config(key, problem));
    match experiment {
        e if e.batch_norm.statistics == StatisticsSource::StaticAll => refused(
            "batch_norm.statistics",
            "`static-all` needs the clients' images, which do not leave them: set `static-server` or `average`",
        ),
        e if e.faults.kind != FaultKind::None => refused(
            "faults.kind",
            "faults are simulated; the clients of a fleet are real: set `none`",
        ),
        e if e.record.samples > 0 => {
            refused("record.samples", "the clients' images do not leave them: set 0")
        }
        _ => Ok(()),
    }
}

impl Federation {
    /// For clients that are elsewhere, with images of their own. `workers` threads augment images
    /// [default: one per core].
    pub fn new(experiment: &Experiment, data: DataSet, workers: Option<usize>) -> Result<Self> {
        check_fleet(experiment)?;
        let split = server_split(experiment, &data)?;
        let mut experiment = experiment.clone();
        experiment.data.anchors = split.anchors.len();
        let (federation, _) = Self::with_split(experiment, data, split, workers)?;
        if federation.method.properties().labels == ClientLabels::True {
            let name = federation.method.name();
            let problem = format!("`{name}` trains on the clients' labels, which stay with them");
            return Err(Error::config("method.name", problem));
        }
        Ok(federation)
    }

    /// With anchors that were drawn already; returns what is left for the clients.
    pub(crate) fn with_split(
        experiment: Experiment,
        data: DataSet,
        split: Split,
        workers: Option<usize>,
    ) -> Result<(Self, ForClients)> {
        let DataSet { mut train, unlabelled, test, normalisation, flip, skipped, .. } = data;
        let labels = train.require_labels("drawing anchors")?.to_vec();
        train.labels = None;
        let test_labels = test.require_labels("testing")?.to_vec();
        let classes = train.classes.clone();
        let method = methods::build(&experiment.method)?;
        let properties = method.properties();
        if properties.labels == ClientLabels::True && unlabelled.is_some() {
            let problem =
                format!("`{}` trains on the clients' labels, which have none", method.name());
            return Err(Error::config("method.name", problem));
        }
        let settings = experiment.training(properties.heads)?;
        let (shape, count) = (train.shape, classes.len());
        let context = Context::new(settings, shape, count, &normalisation, flip, workers)?;
        super::memory::check(&experiment, &context)?;
        if experiment.model.init_from.is_some() {
            context.initial()?; // a file that does not fit is found before a run folder is made
        }
        let federation = Self {
            context,
            method,
            anchors: LabelledImages::selected(&train, &labels, &split.anchors),
            validation: LabelledImages::selected(&train, &labels, &split.validation),
            test: LabelledImages::new(test, test_labels),
            split,
            classes,
            skipped,
            statistics: None,
            experiment,
        };
        Ok((federation, ForClients { images: train, labels, unlabelled }))
    }

    /// The experiment with every choice written down that was left to the data.
    pub fn settled(&self) -> Result<Experiment> {
        let images = &self.context.images;
        settle(&self.experiment, images.shape(), self.classes.len(), images.flip())
    }

    /// The labelled images that the server trains on.
    pub fn anchors(&self) -> AnchorSet<'_> {
        let LabelledImages { images, labels, numbers } = &self.anchors;
        AnchorSet { images, local: numbers, labels }
    }

    /// The images that it tests on, and their labels.
    pub fn test(&self) -> (&ImageSet, &[u16]) {
        (&self.test.images, &self.test.labels)
    }

    /// A coordinator before pre-training.
    pub fn coordinator(&self) -> Result<Coordinator<'_>> {
        Coordinator::new(self)
    }
}

/// Which of the labelled images are anchors, where the clients' images are others.
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
