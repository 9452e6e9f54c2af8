//! Resuming a run: which checkpoint to continue from, and whether the run is the one that is asked for.
//! Nothing in the folder is changed before that is known, and nothing on record is given up unless
//! `--force` asks for it.

use super::checkpoint::{self, CheckpointMeta, Found};
use super::fleet_file::{self, FleetFile};
use super::folder::RunFolder;
use super::{Observer, Resume, Run, RunOptions, as_table, prepare, settled};
use crate::config::{Experiment, LrSchedule, differences, ensure, fingerprint};
use crate::disk::{self, read_manifest};
use crate::error::{Error, Result};
use fedanchor_record::{Build, Summary, files, with_current_keys};
use std::path::Path;

pub(super) fn resume(
    experiment: &Experiment,
    options: RunOptions,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    let RunOptions { out, clients, .. } = options;
    let force = options.resume == Resume::Force;
    let stored = stored_config(out, force)?;
    let fleet_file = fleet_file::check(out, clients, force)?;
    let (prepared, data) = prepare(experiment, options, observer.reading())?;
    let settled = settled(prepared.federation())?;
    let table = as_table(&settled)?;
    let config = fingerprint(&table);
    let folder = RunFolder::reopen(out, force)?;
    let recorded = folder.records(usize::MAX)?.0.len() as u32; // round 0 included
    let (found, broken) = find(&folder, recorded, force)?;
    let mut other: Vec<String> =
        differences(&stored, &table).iter().map(ToString::to_string).collect();
    if let Some(Found { meta, .. }) = &found {
        let CheckpointMeta { round, build, data: seen, config: made, .. } = meta;
        let problem = format!("{round} rounds are done, more than {}", experiment.rounds);
        ensure(*round <= experiment.rounds, "rounds", problem)?;
        // Another build of the same version is not refused, but noted.
        let (there, now) = (&build.version, &Build::current().version);
        if there != now {
            other.push(format!("version (there {there}, now {now})"));
        }
        if *seen != data {
            other.push("the data set's pixels or labels".to_owned());
        }
        if *made != config && other.is_empty() {
            other.push(format!("the settings that the checkpoint of round {round} was made with"));
        }
    }
    if recorded > 1 {
        check_privacy(&stored, &table)?;
    }
    if !other.is_empty() && !force {
        let other = other.join(", ");
        let problem =
            format!("the run in this folder differs in {other}; --force resumes it anyway");
        return Err(Error::file(out, problem));
    }
    let follows_rounds = experiment.optimiser.schedule == LrSchedule::Cosine
        || prepared.federation().method.properties().depends_on_rounds;
    let more_rounds = stored.get("rounds") != table.get("rounds") && follows_rounds;
    let last = found.as_ref().map_or(0, |found| found.meta.round);
    if more_rounds && last + 1 < recorded && !force {
        let problem = format!(
            "{} rounds are on record, but the last intact checkpoint is of round {last}; repeated with \
             another number of rounds, those after it would not be the same: resume the run with its own number \
             first, or --force",
            recorded - 1
        );
        return Err(Error::file(out, problem));
    }
    for round in broken {
        let file = checkpoint::name(round);
        observer
            .notice(&format!("{file}, the checkpoint of round {round}, is damaged and not used"));
    }
    match &found {
        Some(found) => observer.notice(&format!("resuming after round {}", found.meta.round)),
        None => observer.notice("no round is complete: starting from the beginning"),
    }
    if more_rounds {
        observer.notice(
            "optimiser.schedule or method.threshold depends on the number of rounds: an extended run is \
             not the run that would have been planned longer",
        );
    }
    // A run that starts over is a new run to its clients, which cannot use their saved states.
    let fleet_file = FleetFile::of(clients, fleet_file.filter(|_| found.is_some()))?;
    Run { prepared, settled, data, config, folder, options, fleet_file }.execute(found, observer)
}

/// What has been published was published by the old settings, and the accountant knows one set of them.
fn check_privacy(stored: &toml::Table, now: &toml::Table) -> Result<()> {
    let private = |config: &toml::Table| config.get("privacy").is_some();
    for (section, key) in [("privacy", "noise"), ("client", "per_round"), ("data", "clients")] {
        let of = |config: &toml::Table| config.get(section).and_then(|it| it.get(key)).cloned();
        let same = of(stored) == of(now) || !private(stored) && !private(now);
        let problem = "cannot change in a private run, whose budget is counted by it, not even with --force: start a \
                       new run";
        ensure(same, &format!("{section}.{key}"), problem)?;
    }
    Ok(())
}

/// The config in the folder, which must be the one that was written there.
fn stored_config(out: &Path, force: bool) -> Result<toml::Table> {
    let path = out.join(files::CONFIG);
    let bytes = disk::read(&path)?;
    if !force
        && let Some(manifest) = read_manifest(out)?
        && let Err(mismatch) = manifest.check(files::CONFIG, &bytes)
    {
        let problem = format!("{mismatch}; --force resumes the run with the settings given now");
        return Err(Error::file(path, problem));
    }
    let text = String::from_utf8(bytes).map_err(|error| Error::file(&path, error))?;
    Ok(with_current_keys(text.parse().map_err(|error| Error::file(&path, error))?))
}

/// The checkpoint to continue from, and the rounds whose checkpoints are damaged.
fn find(folder: &RunFolder, recorded: u32, force: bool) -> Result<(Option<Found>, Vec<u32>)> {
    let out = &folder.path;
    let (found, broken) = checkpoint::last(out, u32::MAX)?;
    let Some(round) = found.as_ref().map(|found| found.meta.round) else {
        // Round 0 alone may be pre-training that was ended early.
        let lines = folder.lines()?;
        if lines > 1 && !force {
            let mut problem = format!(
                "{} rounds are on record, but there is no checkpoint to resume from",
                lines - 1
            );
            for round in broken {
                problem += &format!("; {} is damaged", checkpoint::name(round));
            }
            if lines > recorded as usize {
                problem += &format!("; line {} of {} is damaged", recorded + 1, files::ROUNDS);
            }
            return Err(Error::file(out, problem + "; --force starts over"));
        }
        return Ok((found, broken));
    };
    // A checkpoint has its own round's lines; those before must be in the records, and lead up to them.
    let intact = |found: &Found| -> Result<bool> {
        let (records, mut checksums) = folder.records(found.meta.round as usize)?;
        let leads_up = checksums.accepts(&found.meta.lines.record);
        Ok(records.len() == found.meta.round as usize && leads_up)
    };
    if found.as_ref().map(&intact).transpose()? == Some(true) {
        return Ok((found, broken));
    }
    if !force {
        let advice = "--force resumes from the last intact round and repeats the rounds after it";
        let problem = match recorded < round {
            true => format!(
                "line {} is damaged or missing, and the checkpoint of round {round} needs all lines \
                 before it; {advice}",
                recorded + 1
            ),
            false => format!(
                "does not lead up to the checkpoint of round {round}: one of the two is damaged or \
                 belongs to another run; {advice}"
            ),
        };
        return Err(Error::file(out.join(files::ROUNDS), problem));
    }
    let (found, broken) = checkpoint::last(out, recorded.min(round.saturating_sub(1)))?;
    let usable = found.as_ref().map(intact).transpose()? == Some(true);
    Ok((found.filter(|_| usable), broken))
}
