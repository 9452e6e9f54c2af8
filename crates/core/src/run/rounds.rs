//! The rounds of a run, from where it starts or resumes: each is computed, recorded and saved.

use super::checkpoint::{Checkpoint, CheckpointMeta, Found, Saver};
use super::folder::{LineChecksums, Lines, RoundFile, json};
use super::results::Progress;
use super::{Observer, Phase, Prepared, Run, RunOptions, resume_command};
use crate::clients::ComputeThreads;
use crate::config::FleetConfig;
use crate::error::{Error, Result};
use crate::federation::{ClientKey, Coordinator, Fleet};
use crate::simulation::Simulation;
use fedanchor_data::skipped::by_reason;
use fedanchor_data::tables::histogram_table;
use fedanchor_engine::guard;
use fedanchor_record::{Assignment, Build, Manifest, Summary, files};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Run<'_> {
    /// Does what is left to do; an error of the disk says how to resume.
    pub(super) fn execute(
        self,
        found: Option<Found>,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        self.rounds(found, observer).map_err(|error| match error {
            Error::File { path, problem } => {
                let problem = format!(
                    "{problem}; what was saved before is intact: fix the disk, then resume with `{}`",
                    resume_command(self.options.out)
                );
                Error::file(path, problem)
            }
            other => other,
        })
    }

    fn rounds(&self, found: Option<Found>, observer: &mut dyn Observer) -> Result<Summary> {
        let RunOptions { out, stop, .. } = self.options;
        let (federation, simulation) = (self.prepared.federation(), self.prepared.simulation());
        let experiment = &federation.experiment;
        observer.started(federation, simulation.map(|simulation| &simulation.partition));
        if !federation.skipped.is_empty() {
            let counts = by_reason(&federation.skipped).into_iter();
            let counts: Vec<String> =
                counts.map(|(reason, count)| format!("{count} {reason}")).collect();
            observer.notice(&format!(
                "files of the data set that were left out: {} (`fedanchor data check` names them)",
                counts.join(", ")
            ));
        }
        let _compute_threads = ComputeThreads::for_server(&experiment.model.name);
        let clock = Instant::now();
        let mut coordinator = match simulation {
            Some(simulation) => simulation.coordinator()?,
            None => federation.coordinator()?,
        };
        let mut fleet = match &self.prepared {
            Prepared::Simulation(simulation, wrap) => wrap(simulation.fleet())?,
            Prepared::Fleet(federation, connect) => {
                let FleetConfig { deadline, ask, .. } = experiment.fleet;
                coordinator.deadline = (deadline > 0.0).then(|| Duration::from_secs_f64(deadline));
                coordinator.ask = ask;
                let run = self.fleet_file.as_ref().map_or("", |file| &file.run);
                connect(federation, run)?
            }
        };
        if let Some(found) = &found {
            // Before anything in the folder is changed.
            let restored = coordinator
                .server
                .restore(&found.server)
                .and_then(|()| fleet.restore_states(&found.clients, &coordinator.server.params));
            restored.map_err(|error| {
                let problem = format!("the checkpoint does not fit this experiment: {error}");
                Error::config("--resume", problem)
            })?;
            coordinator.state = found.meta.coordinator.clone();
            fleet.expect(&coordinator.state.registry.keys);
        }
        let publishes = experiment.privacy.is_some() && simulation.is_none();
        if publishes {
            coordinator.count_published(self.folder.published()?);
        }
        let (mut progress, mut checksums) = self.open_records(found.as_ref())?;
        let last = found.as_ref().map(|found| found.meta.round);
        self.open_figures(&coordinator, last, &mut progress, observer)?;
        let (timings, damaged) = self.folder.timings()?;
        let seconds_before: f64 = timings.iter().map(|timing| timing.total).sum();
        for line in damaged {
            let name = files::TIMINGS;
            observer.notice(&format!("{name}: line {line} is damaged, its seconds do not count"));
        }
        let mut notes = self.notes_on_resuming(found.as_ref(), observer);
        let mut saver = Saver::start(out, self.folder.log()?, last)?;
        let first = last.map_or(0, |last| last + 1);
        let mut test = None;
        for round in first..=experiment.rounds {
            if round > 0 && stop.load(Ordering::Relaxed) {
                break;
            }
            if round > 0
                && let Some(epsilon) = coordinator.beyond_budget()
            {
                observer.notice(&format!(
                    "the run ends after round {}: the next one would cost epsilon {epsilon:.3} in all, more than \
                     privacy.epsilon ({})",
                    round - 1,
                    experiment.budget()
                ));
                break;
            }
            if publishes {
                // On disk before the broadcast: the model may go out and the checkpoint be lost.
                self.folder.publish(coordinator.releases())?;
            }
            let done = guard(|| match round {
                0 => coordinator.pretrain(&mut |done, planned| {
                    observer.epoch(Phase::Pretraining, done, planned);
                    !stop.load(Ordering::Relaxed)
                }),
                _ => coordinator.round(&mut *fleet, round),
            });
            let mut done = match done {
                Err(Error::Stopped) => break,
                other => other?,
            };
            let picked = simulation.and_then(Simulation::take_picked);
            let files = self.figures(&coordinator, round, picked.as_ref())?;
            files.iter().for_each(|file| progress.files.add(&file.name, &file.bytes));
            test = Some(done.evaluation);
            progress.add(&done.record);
            progress.picked = picked.or(progress.picked);
            let of_fleet = fleet.take_notes();
            if publishes {
                of_fleet.iter().for_each(|text| observer.notice(text)); // they name clients
            } else {
                done.record.notes.extend(of_fleet);
            }
            let notices: Vec<String> =
                std::iter::from_fn(|| federation.context.take_notice()).collect();
            for text in notices.iter().chain(&done.record.notes) {
                observer.notice(text);
            }
            done.record.notes.append(&mut notes);
            let name = |client: &u32| match simulation {
                Some(simulation) => simulation.client_names.get(*client as usize).cloned(),
                None => match coordinator.state.registry.keys.get(*client as usize) {
                    Some(ClientKey::Name(name)) => Some(name.clone()),
                    _ => None,
                },
            };
            done.record.client_names = done.record.clients.iter().filter_map(name).collect();
            done.timing.build = Build::current().clone();
            let lines = checksums.seal(&done.record, &done.timing)?;
            // Pre-training that was ended early cannot be resumed from.
            let complete = round > 0 || !stop.load(Ordering::Relaxed);
            if experiment.checkpoint.write && complete {
                saver.save(self.checkpoint(&coordinator, &*fleet, lines, files, &progress)?)?;
            } else {
                files.iter().try_for_each(|file| file.write(out))?;
                self.folder.log.append(&lines)?;
            }
            observer.round(&done.record, &done.timing);
        }
        saver.finish()?;
        let test = match test {
            Some(test) => test,
            None => guard(|| coordinator.test(progress.summary.rounds))?, // nothing was left to do
        };
        self.write_results(&coordinator, &progress, &test)?;
        let seconds = || seconds_before + clock.elapsed().as_secs_f64();
        self.finish(&mut coordinator, &progress, &test, &seconds, observer)
    }

    /// Brings the records to where the run starts or resumes: what they amount to, and their checksums.
    fn open_records(&self, found: Option<&Found>) -> Result<(Progress, LineChecksums)> {
        // What changes now has no checksum until it has changed.
        self.folder.remove(files::CHECKSUMS)?;
        self.folder.remove(files::SUMMARY)?;
        self.write_setting()?;
        self.folder.keep_lines(found.map_or(0, |found| found.meta.round as usize))?;
        if let Some(found) = found {
            self.folder.log.append(&found.meta.lines)?;
        }
        let (records, _) = self.folder.records(usize::MAX)?;
        let mut progress = Progress::default();
        records.iter().for_each(|record| progress.add(record));
        // Of other data, which `--force` accepts, there are no such images.
        let same_data = found.filter(|found| found.meta.data == self.data);
        progress.picked = same_data.and_then(|found| found.meta.picked.clone());
        progress.files = found.map(|found| found.meta.files.clone()).unwrap_or_default();
        self.folder.write_manifest(&Manifest::default())?;
        Ok((progress, self.folder.checksums()?))
    }

    /// Notes on what has changed when a run is resumed, also for the next record: another build of the program, and
    /// clients whose state was lost.
    fn notes_on_resuming(&self, found: Option<&Found>, observer: &mut dyn Observer) -> Vec<String> {
        let Some(found) = found else { return Vec::new() };
        let (before, now) = (&found.meta.build, Build::current());
        let round = found.meta.round;
        let computes = round < self.prepared.federation().experiment.rounds;
        let other = (before != now && computes).then(|| {
            format!("resumed with another build: {before} until round {round}, {now} from here on")
        });
        let lost = found.lost.iter().map(|(client, path)| {
            let file = path.strip_prefix(self.options.out).unwrap_or(path).display();
            format!("client {client} starts without its saved state: {file} is damaged or missing")
        });
        let notes: Vec<String> = other.into_iter().chain(lost).collect();
        notes.iter().for_each(|note| observer.notice(note));
        notes
    }

    fn write_setting(&self) -> Result<()> {
        let federation = self.prepared.federation();
        if let Some(fleet) = &self.fleet_file {
            self.folder.write(files::FLEET, json(fleet)? + "\n")?;
        }
        let config = toml::to_string(&self.settled);
        let config = config.map_err(|error| Error::file(files::CONFIG, error))?;
        self.folder.write(files::CONFIG, config)?;
        let simulation = self.prepared.simulation();
        let clients =
            simulation.map(|one| (one.partition.clients.clone(), one.client_names.clone()));
        let (clients, client_names) = clients.unwrap_or_default();
        let assignment = Assignment {
            anchors: federation.split.anchors.clone(),
            validation: federation.split.validation.clone(),
            clients,
            client_names,
        };
        let names = &assignment.client_names;
        let sizes = assignment.clients.iter().map(|local| vec![local.len() as u32]);
        let table = match simulation.map_or(Some(Vec::new()), Simulation::histogram) {
            Some(rows) => histogram_table(&rows, &federation.classes, names),
            None => histogram_table(&sizes.collect::<Vec<_>>(), &["unknown".to_owned()], names),
        };
        self.folder.write(files::ASSIGNMENT, json(&assignment)? + "\n")?;
        self.folder.write(files::PARTITION, table)
    }

    fn checkpoint(
        &self,
        coordinator: &Coordinator,
        fleet: &dyn Fleet,
        lines: Lines,
        files: Vec<RoundFile>,
        progress: &Progress,
    ) -> Result<Checkpoint> {
        let (config, round) =
            (&self.prepared.federation().experiment.checkpoint, progress.summary.rounds);
        let clients = fleet.save_states(round, &coordinator.server.params)?;
        let meta = CheckpointMeta {
            round,
            build: Build::current().clone(),
            data: self.data.clone(),
            config: self.config.clone(),
            clients: clients.trained_in,
            lasting: config.every > 0 && round > 0 && round.is_multiple_of(config.every),
            best: config.best && progress.chosen_round == round,
            coordinator: coordinator.state.clone(),
            lines,
            picked: progress.picked.clone(),
            files: progress.files.clone(),
        };
        Ok(Checkpoint { meta, server: coordinator.server.save()?, clients: clients.bundles, files })
    }
}
