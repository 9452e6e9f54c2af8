//! A federation in one process: the data set dealt to simulated clients, and the server's share of it.

mod faults;
mod fleet;
mod load;
mod measurements;
mod poison;
mod samples;
mod trial;

pub use fleet::SimulatedFleet;
pub use load::{Assigned, assign, load, load_watched, load_with, place};
pub use samples::{Picked, PickedSample};
pub use trial::{Folds, Trial};

use crate::config::{Experiment, FaultKind, StatisticsSource, ensure};
use crate::error::Result;
use crate::federation::{Coordinator, Federation};
use crate::labels::PseudoLabels;
use crate::messages::Answer;
use crate::privacy::Secrecy;
use crate::server::Server;
use faults::Faults;
use fedanchor_data::stream::SERVER;
use fedanchor_data::{DataSet, ImageSet, Partition, Purpose};
use measurements::Measurements;
use poison::{Poison, triggered};
use rand::seq::index::sample;
use std::cell::RefCell;
use std::sync::Arc;

/// A federation with its clients in this process. It alone knows the clients' true labels, where there are any, to
/// measure pseudo-labels by.
pub struct Simulation {
    /// The server's half.
    pub federation: Federation,
    /// The images of each client.
    pub partition: Partition,
    /// Names of the clients, where the data has them.
    pub client_names: Vec<String>,
    /// Training images without their labels, which clients must not see.
    images: Arc<ImageSet>,
    /// Labels of all training images; none where the clients' images have none.
    true_labels: Option<Vec<u16>>,
    faults: Faults,
    poison: Option<Poison>,
    measurements: RefCell<Measurements>,
}

/// A batch of more images than any client has would only repeat them, at the cost of memory. Small batches may, for
/// the sake of clients with a few images.
fn check_batch(experiment: &Experiment, partition: &Partition) -> Result<()> {
    const SMALL: usize = 64;
    let largest = partition.clients.iter().map(Vec::len).max().unwrap_or(0);
    let (batch, most) = (experiment.client.batch, largest.max(SMALL));
    let problem =
        format!("must be at most {most}: the largest client has {largest} images, got {batch}");
    ensure(batch <= most, "client.batch", problem)
}

impl Simulation {
    /// Draws anchors and clients. `workers` threads augment images [default: one per core].
    pub fn new(experiment: Experiment, data: DataSet, workers: Option<usize>) -> Result<Self> {
        let Assigned { split, partition, experiment } = assign(&experiment, &data)?;
        check_batch(&experiment, &partition)?;
        let mut federation = Federation::with_split(experiment, &data, split, workers)?;
        let DataSet { train: mut images, unlabelled, .. } = data;
        let labels = images.labels.take();
        let faults = Faults::new(&federation.experiment);
        let (true_labels, client_names) = match unlabelled {
            None => (labels, Vec::new()),
            Some(unlabelled) => {
                images.append(unlabelled.images);
                (None, unlabelled.client_names)
            }
        };
        let poison = Poison::new(&faults, &partition, &images, true_labels.as_deref())?;
        let images = Arc::new(images);
        if federation.experiment.batch_norm.statistics == StatisticsSource::StaticAll {
            let drawn = statistics_images(&federation, images.len());
            federation.statistics = Some((images.clone(), drawn));
        }
        // Where a threshold selects nothing, there is nothing kept and nothing left out to show.
        let selects = federation.method.properties().selects;
        let samples = if selects { federation.experiment.record.samples } else { 0 };
        let measurements = RefCell::new(Measurements::new(federation.classes.len(), samples));
        Ok(Self {
            federation,
            partition,
            client_names,
            images,
            true_labels,
            faults,
            poison,
            measurements,
        })
    }

    /// Images of every class on every client; `None` if their classes are unknown.
    pub fn histogram(&self) -> Option<Vec<Vec<u32>>> {
        let labels = self.true_labels.as_ref()?;
        Some(self.partition.histogram(labels, self.federation.classes.len()))
    }

    /// The server's half, before pre-training. Its records have what only a simulation can measure.
    pub fn coordinator(&self) -> Result<Coordinator<'_>> {
        let label_counts = self.federation.experiment.record.label_counts;
        let mut coordinator = self.federation.coordinator()?;
        coordinator.secrecy = Secrecy::Seed; // no real images, and runs that can be repeated
        coordinator.measure = Some(Box::new(move |record| {
            self.measurements.borrow_mut().complete(record, label_counts)
        }));
        Ok(coordinator)
    }

    /// The clients, before their first round.
    pub fn fleet(&self) -> SimulatedFleet<'_> {
        SimulatedFleet::new(self)
    }

    fn measure(&self, answer: &Answer, labels: &PseudoLabels) {
        let local = &self.partition.clients[answer.client as usize];
        let truth = self.true_labels.as_deref();
        self.measurements.borrow_mut().add(answer, local, labels, truth);
    }

    /// The samples of the last round that a person should see, where `record.samples` asks for them and clients
    /// labelled their images.
    pub fn take_picked(&self) -> Option<Picked> {
        self.measurements.borrow_mut().picked.take()
    }

    /// The share of the test images of other classes, in percent, that a trigger turns into its class; `None` without
    /// clients that try to teach one.
    pub fn backdoor_success(&self, server: &Server) -> Result<Option<f64>> {
        if self.faults.kind != FaultKind::Backdoor {
            return Ok(None);
        }
        Ok(Some(server.evaluate(&triggered(&self.federation.test))?.accuracy))
    }
}

/// Which images `static-all` measures on, the same in every round: of all but the validation images.
fn statistics_images(federation: &Federation, images: usize) -> Vec<u32> {
    let held_out = &federation.split.validation;
    let all: Vec<u32> =
        (0..images as u32).filter(|index| held_out.binary_search(index).is_err()).collect();
    let count = match federation.experiment.batch_norm.images {
        0 => all.len(),
        count => count.min(all.len()),
    };
    let mut rng = federation.context.streams(0).of(Purpose::Statistics, SERVER).rng();
    let mut drawn = sample(&mut rng, all.len(), count).into_vec();
    drawn.sort_unstable();
    drawn.into_iter().map(|at| all[at]).collect()
}
