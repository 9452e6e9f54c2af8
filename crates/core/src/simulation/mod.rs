//! A federation in one process: the data set dealt to simulated clients, and the server's share of it.

mod faults;
mod fleet;
mod load;
mod memory;
mod poison;
mod samples;

pub use faults::Faults;
pub use fleet::SimulatedFleet;
pub use load::{Assigned, assign, assign_to_server, load, place};

use crate::config::{Experiment, FaultKind, StatisticsSource};
use crate::error::{Error, Result};
use crate::experiment::settle;
use crate::federation::{Coordinator, ServerData};
use crate::labels::AnchorSet;
use crate::methods::{self, Method};
use crate::server::Server;
use fedanchor_data::split::Split;
use fedanchor_data::{DataSet, ImageSet, Partition, Skipped};
use fedanchor_engine::training::Context;
use poison::{Poison, triggered};

/// Data, partition and settings of a simulated federation. It alone knows the clients' true labels, where
/// there are any, to measure pseudo-labels by.
pub struct Simulation {
    /// The settings of the run.
    pub experiment: Experiment,
    /// The network and how to train it.
    pub context: Context,
    /// The method.
    pub method: Box<dyn Method>,
    /// Which images are anchors.
    pub split: Split,
    /// Which images are whose.
    pub partition: Partition,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Training images without their labels: clients cannot see what they must not.
    images: ImageSet,
    /// All of them but the validation images.
    trained_on: Vec<u32>,
    /// Labels of all training images; none where the clients' images have none.
    true_labels: Option<Vec<u16>>,
    /// Names of the clients, where the data has them.
    pub client_names: Vec<String>,
    /// Files of the data set that were left out.
    pub skipped: Vec<Skipped>,
    faults: Faults,
    poison: Option<Poison>,
    anchor_labels: Vec<u16>,
    validation: ImageSet,
    validation_labels: Vec<u16>,
    test: ImageSet,
    test_labels: Vec<u16>,
}

/// A batch of more images than any client has would only repeat them, at the cost of memory. Small batches may, for
/// the sake of clients with a few images.
fn check_batch(experiment: &Experiment, partition: &Partition) -> Result<()> {
    const SMALL: usize = 64;
    let largest = partition.clients.iter().map(Vec::len).max().unwrap_or(0);
    let batch = experiment.client.batch;
    match batch > largest.max(SMALL) {
        true => Err(Error::config(
            "client.batch",
            format!(
                "expected at most {}, since the largest client has {largest} images, found {batch}",
                largest.max(SMALL)
            ),
        )),
        false => Ok(()),
    }
}

/// What only a simulation can do is refused where the clients are elsewhere.
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

impl Simulation {
    /// Draws anchors and clients and builds the network's description. `workers` threads augment images
    /// [default: one per core].
    pub fn new(experiment: Experiment, data: DataSet, workers: Option<usize>) -> Result<Self> {
        let assigned = assign(&experiment, &data)?;
        check_batch(&assigned.experiment, &assigned.partition)?;
        Self::with(assigned, data, workers)
    }

    /// The server's half alone: the clients are elsewhere, and nothing is known of their images.
    pub fn without_clients(
        experiment: Experiment,
        mut data: DataSet,
        workers: Option<usize>,
    ) -> Result<Self> {
        check_fleet(&experiment)?;
        data.unlabelled = None;
        let assigned = assign_to_server(&experiment, &data)?;
        let simulation = Self::with(assigned, data, workers)?;
        if simulation.method.sees_labels() {
            let name = simulation.method.name();
            let problem = format!("`{name}` trains on the clients' labels, which stay with them");
            return Err(Error::config("method.name", problem));
        }
        Ok(simulation)
    }

    fn with(assigned: Assigned, data: DataSet, workers: Option<usize>) -> Result<Self> {
        let Assigned { split, partition, experiment } = assigned;
        let DataSet { mut train, unlabelled, test, normalisation, flip, skipped, .. } = data;
        let labels = train.labels.take().unwrap_or_default(); // `assign` requires them
        let test_labels = test.require_labels("testing")?.to_vec();
        let classes = train.classes.clone();
        let method = methods::build(&experiment.method)?;
        if method.sees_labels() && unlabelled.is_some() {
            let problem =
                format!("`{}` trains on the clients' labels, which have none", method.name());
            return Err(Error::config("method.name", problem));
        }
        let settings = experiment.training(method.heads())?;
        let (shape, count) = (train.shape, classes.len());
        let context = Context::new(settings, shape, count, &normalisation, flip, workers)?;
        memory::check(&experiment, &context)?;
        if experiment.model.init_from.is_some() {
            context.initial()?; // a file that does not fit is found before a run folder is made
        }
        let faults = Faults::new(&experiment);
        let labels_of = |indices: &[u32]| -> Vec<u16> {
            indices.iter().map(|&index| labels[index as usize]).collect()
        };
        let (anchor_labels, validation_labels) =
            (labels_of(&split.anchors), labels_of(&split.validation));
        let validation = train.select(&split.validation);
        let (true_labels, client_names) = match unlabelled {
            None => (Some(labels), Vec::new()),
            Some(unlabelled) => {
                train.pixels.extend(unlabelled.images.pixels);
                (None, unlabelled.client_names)
            }
        };
        let poison = Poison::new(&faults, &partition, &train, true_labels.as_deref())?;
        let trained_on = (0..train.len() as u32)
            .filter(|index| split.validation.binary_search(index).is_err())
            .collect();
        Ok(Self {
            experiment,
            context,
            method,
            split,
            partition,
            classes,
            images: train,
            trained_on,
            true_labels,
            client_names,
            skipped,
            faults,
            poison,
            anchor_labels,
            validation,
            validation_labels,
            test,
            test_labels,
        })
    }

    /// Images of every class on every client; `None` where nobody knows their classes.
    pub fn histogram(&self) -> Option<Vec<Vec<u32>>> {
        let labels = self.true_labels.as_ref()?;
        Some(self.partition.histogram(labels, self.classes.len()))
    }

    /// The experiment with every choice written down that was left to the data.
    pub fn settled(&self) -> Result<Experiment> {
        let images = &self.context.images;
        settle(&self.experiment, images.shape(), self.classes.len(), images.flip())
    }

    /// The server's half, before pre-training.
    pub fn coordinator(&self) -> Result<Coordinator<'_>> {
        let anchors = AnchorSet {
            images: &self.images,
            local: &self.split.anchors,
            labels: &self.anchor_labels,
        };
        let (test, test_labels) = (&self.test, &self.test_labels[..]);
        let all = Some((&self.images, &self.trained_on[..]));
        let validation = (&self.validation, &self.validation_labels[..]);
        let validation = Some(validation).filter(|(images, _)| !images.is_empty());
        let data = ServerData { anchors, test, test_labels, validation, all };
        Coordinator::new(&self.experiment, &self.context, &*self.method, data)
    }

    /// The share of the test images of other classes, in percent, that a trigger turns into its class; `None` without
    /// clients that try to teach one.
    pub fn backdoor_success(&self, server: &Server) -> Result<Option<f64>> {
        if self.faults.kind() != FaultKind::Backdoor {
            return Ok(None);
        }
        let (images, labels) = triggered(&self.test, &self.test_labels);
        Ok(Some(server.evaluate(&images, &labels)?.accuracy))
    }

    /// The clients, before their first round.
    pub fn fleet(&self) -> SimulatedFleet<'_> {
        SimulatedFleet::new(self)
    }
}
