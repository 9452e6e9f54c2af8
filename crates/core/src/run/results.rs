//! What the records of a run amount to, and what it leaves at its end: the model, what is known of it, and the summary.

use super::{Observer, Phase, Run, RunOptions};
use crate::error::{Error, Result};
use crate::federation::{Coordinator, Federation, peak_memory};
use crate::labels::{AnchorPayload, Anchors};
use crate::model::{Description, Head, encode_model};
use crate::server::Evaluation;
use crate::simulation::Picked;
use fedanchor_engine::guard;
use fedanchor_engine::model::Statistics;
use fedanchor_record::{Build, BuildRounds, Manifest, RoundRecord, Summary, files};
use std::sync::atomic::Ordering;

/// What the records of a run amount to so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// What the records say; the rest is left out.
    pub(super) summary: Summary,
    /// The round whose checkpoint is the best: by validation accuracy where there is any.
    pub(super) chosen_round: u32,
    chosen: f64,
    /// Of the last round in which clients labelled.
    pub(super) picked: Option<Picked>,
    /// Checksums of the further files of the rounds.
    pub(super) files: Manifest,
    /// Images that clients had and that they kept, in all rounds.
    seen: u64,
    kept: u64,
}

impl Progress {
    pub(super) fn add(&mut self, record: &RoundRecord) {
        let (accuracy, summary) = (record.test_accuracy, &mut self.summary);
        if record.round == 0 {
            summary.pretrained_accuracy = accuracy;
        }
        if record.round == 0 || accuracy > summary.best_accuracy {
            (summary.best_accuracy, summary.best_round) = (accuracy, record.round);
        }
        let judged_by = record.validation_accuracy.unwrap_or(accuracy);
        if record.round == 0 || judged_by > self.chosen {
            (self.chosen, self.chosen_round) = (judged_by, record.round);
        }
        self.seen += record.seen as u64;
        self.kept += record.kept as u64;
        summary.rounds = record.round;
        summary.final_accuracy = accuracy;
        summary.final_validation_accuracy = record.validation_accuracy;
        summary.bytes_down += record.bytes_down;
        summary.bytes_up += record.bytes_up;
        summary.incidents.add(record);
    }
}

impl Progress {
    /// The clients' training so far as epochs of pre-training: how many cost as much. It counts images, since a clock
    /// would give every machine another comparison.
    fn epochs_of_clients(&self, federation: &Federation) -> u32 {
        let (experiment, properties) = (&federation.experiment, federation.method.properties());
        if experiment.privacy.is_some() {
            return u32::MAX; // private records do not count images
        }
        let trained = if properties.selects { self.kept } else { self.seen };
        let views = 2; // fix and mix, or two views
        let labelling = self.seen / 3; // one pass forward, without the two back
        let images = labelling + views * trained * u64::from(experiment.client.epochs);
        let epoch = experiment.data.anchors.max(1) as u64
            * if experiment.pretrain.contrastive { 2 } else { 1 };
        u32::try_from(images / epoch).unwrap_or(u32::MAX)
    }
}

impl Run<'_> {
    /// The summary, and the comparison where it is asked for.
    pub(super) fn finish(
        &self,
        coordinator: &mut Coordinator,
        progress: &Progress,
        test: &Evaluation,
        seconds: &dyn Fn() -> f64,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        let Self { prepared, folder, options: RunOptions { stop, .. }, .. } = self;
        let federation = prepared.federation();
        let experiment = &federation.experiment;
        let builds = self.builds(progress)?;
        let mut summary = Summary {
            build: last_build(&builds),
            builds,
            method: experiment.method.name.clone(),
            data: experiment.data.name.clone(),
            model: experiment.model.name.clone(),
            parameters: federation.context.network.parameter_counts().0,
            anchors: experiment.data.anchors,
            seed: experiment.seed,
            data_fingerprint: self.data.clone(),
            classes: federation.classes.clone(),
            rounds_planned: experiment.rounds,
            calibration_error: Some(test.calibration_error),
            seconds: seconds(),
            peak_memory: peak_memory(),
            peak_gpu_memory: federation.context.peak_gpu_memory(),
            compute_threads: tch::get_num_threads(),
            backdoor_success: match prepared.simulation() {
                Some(simulation) => simulation.backdoor_success(&coordinator.server)?,
                None => None,
            },
            ..progress.summary.clone()
        };
        folder.seal_records(summary.rounds)?;
        folder.write_summary(&summary, &progress.files)?;
        let compare = federation.is_compared();
        if compare && summary.rounds > 0 && !stop.load(Ordering::Relaxed) {
            let (rounds, limit) = (progress.summary.rounds, progress.epochs_of_clients(federation));
            let alone = guard(|| {
                coordinator.train_alone(rounds, limit, &mut |done, planned| {
                    observer.epoch(Phase::Comparison, done, planned);
                    !stop.load(Ordering::Relaxed)
                })
            })?;
            summary.server_only = alone.unwrap_or_default();
            summary.seconds = seconds();
            summary.server_only_accuracy =
                summary.best_server_only().map(|best| best.test_accuracy);
            folder.forget(files::SUMMARY, &progress.files)?;
            folder.write_summary(&summary, &progress.files)?;
        }
        if compare && summary.server_only_accuracy.is_none() {
            observer.notice("stopped early: not compared with the anchors alone");
        }
        if summary.is_without_effect() {
            let Summary { rounds, incidents, .. } = summary;
            return Err(Error::WithoutEffect { rounds, incidents });
        }
        Ok(summary)
    }

    fn builds(&self, progress: &Progress) -> Result<Vec<BuildRounds>> {
        Ok(BuildRounds::of(&self.folder.timings()?.0, progress.summary.rounds))
    }

    pub(super) fn write_results(
        &self,
        coordinator: &Coordinator,
        progress: &Progress,
        test: &Evaluation,
    ) -> Result<()> {
        let (federation, folder) = (self.prepared.federation(), &self.folder);
        let (server, classes) = (&coordinator.server, &federation.classes);
        let properties = federation.method.properties();
        let (source, payload) = (properties.latents, AnchorPayload::ClassMeans);
        let (context, params) = (&federation.context, &server.params);
        let views = server.anchors.views();
        let plain = (&views[..], Statistics::Running);
        let anchors = Anchors::compute(context, params, server.anchors, plain, source, payload)?;
        folder.write_matrix(files::CONFUSION, classes, &test.confusion)?;
        let similarity = anchors.similarity(classes.len())?;
        folder.write_matrix(files::SIMILARITY, classes, &similarity)?;
        let description = Description {
            build: last_build(&self.builds(progress)?),
            method: self.settled.method.name.clone(),
            model: self.settled.model.clone(),
            heads: Head::of(properties.heads),
            shape: context.images.format.shape,
            trunk: federation.trunk.clone(),
            fit: self.settled.data.fit,
            normalisation: context.images.normalisation.clone(),
            classes: classes.clone(),
            latents: source,
        };
        let means = anchors.class_means(classes.len())?;
        folder.write(files::MODEL, encode_model(&description, params, &means)?)
    }
}

/// The build that made the model: a run that is resumed with no round left keeps the one it had.
fn last_build(builds: &[BuildRounds]) -> Build {
    builds.last().map_or_else(|| Build::current().clone(), |last| last.build.clone())
}
