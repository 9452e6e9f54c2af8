//! Going on with a run: which checkpoint to go on from, and whether the run is the one that is asked for.
//! Nothing in the folder is changed before that is known, and nothing that is on record is given up
//! unless someone insists.

use crate::checkpoint::{self, About, Found};
use crate::config::Experiment;
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::run::{Observer, Run, prepare, settled_table};
use fedanchor_record::{Summary, files};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Goes on with a run from its last complete round, or from the start where none is complete. The
/// experiment must be the one it was started with, but for more rounds; `force` lets others pass.
pub fn resume(
    experiment: &Experiment,
    out: &Path,
    workers: Option<usize>,
    force: bool,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    let path = out.join(files::CONFIG);
    let stored = fs_err::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
    let stored: toml::Table = stored.parse().map_err(|error| Error::file(&path, error))?;
    let (simulation, data) = prepare(experiment, workers)?;
    let settled = settled_table(&simulation)?;
    let config = config_fingerprint(&settled);
    let folder = RunFolder::reopen(out, force)?;
    let (found, broken) = find(out, &folder, force)?;
    let mut other = Vec::new();
    differences(&stored, &settled, "", &mut other);
    if let Some(About { round, version, data: seen, config: made, .. }) =
        found.as_ref().map(|found| &found.about)
    {
        if *round > experiment.rounds {
            let problem = format!("{round} are done, more than {}", experiment.rounds);
            return Err(Error::config("rounds", problem));
        }
        let now = env!("CARGO_PKG_VERSION");
        if version != now {
            other.push(format!("version (there {version}, now {now})"));
        }
        if *seen != data {
            other.push("the data set's pixels or labels".to_owned());
        }
        if *made != config && other.is_empty() {
            other.push(format!("the settings that the checkpoint of round {round} was made with"));
        }
    }
    if !other.is_empty() && !force {
        let problem =
            format!("this run differs in {}; --force goes on all the same", other.join(", "));
        return Err(Error::file(out, problem));
    }
    if !broken.is_empty() {
        let rounds: Vec<String> = broken.iter().map(u32::to_string).collect();
        let rounds = rounds.join(", ");
        observer.notice(&format!("the checkpoint of round {rounds} is damaged and not used"));
    }
    match &found {
        Some(found) => observer.notice(&format!("going on after round {}", found.about.round)),
        None => observer.notice("no round is complete: starting again"),
    }
    if stored.get("rounds") != settled.get("rounds") && experiment.spans_all_rounds() {
        observer.notice(
            "optimiser.schedule or method.threshold follows the number of rounds: extended, this is \
             not the run that was planned longer",
        );
    }
    Run { experiment, simulation, data, config, folder, out }.go(found, stop, observer)
}

/// The checkpoint to go on from, and the rounds whose checkpoints are damaged.
fn find(out: &Path, folder: &RunFolder, force: bool) -> Result<(Option<Found>, Vec<u32>)> {
    let recorded = folder.records()?.len() as u32;
    let (found, broken) = checkpoint::last(out, u32::MAX)?;
    match found.as_ref().map(|found| found.about.round) {
        // A checkpoint brings its own round's lines along; those before must be there.
        Some(round) if round > recorded && force => checkpoint::last(out, recorded),
        Some(round) if round > recorded => {
            let problem = format!(
                "line {} is damaged or missing, and the checkpoint of round {round} needs all before \
                 it; --force goes on from what is whole and does the rounds behind it again",
                recorded + 1
            );
            Err(Error::file(out.join(files::ROUNDS), problem))
        }
        // Round 0 alone may be pre-training that was ended early.
        None if recorded > 1 && !force => {
            let problem = format!(
                "{} rounds are on record and there is no checkpoint to go on from; --force starts again",
                recorded - 1
            );
            Err(Error::file(out, problem))
        }
        _ => Ok((found, broken)),
    }
}

/// What must be the same for a checkpoint to be gone on from, in a few letters.
pub(crate) fn config_fingerprint(settled: &toml::Table) -> String {
    let mut table = settled.clone();
    for key in FREE.iter().chain(&["rounds"]) {
        match key.split_once('.') {
            None => drop(table.remove(*key)),
            Some((section, key)) => {
                let section = table.get_mut(section).and_then(toml::Value::as_table_mut);
                section.map(|section| section.remove(key));
            }
        }
    }
    if let Some(toml::Value::String(device)) = table.get_mut("device") {
        device.truncate(4); // another GPU is as good
    }
    blake3::hash(table.to_string().as_bytes()).to_hex().to_string()
}

/// Keys that do not change what is learnt.
const FREE: [&str; 3] = ["compare", "checkpoint", "data.path"];

/// The keys in which two configs differ, but for what does not change what is learnt and for more rounds.
pub fn differences(there: &toml::Table, now: &toml::Table, path: &str, out: &mut Vec<String>) {
    let keys: std::collections::BTreeSet<&String> = there.keys().chain(now.keys()).collect();
    for key in keys {
        let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if FREE.contains(&name.as_str()) {
            continue;
        }
        match (there.get(key), now.get(key)) {
            (Some(toml::Value::Table(there)), Some(toml::Value::Table(now))) => {
                differences(there, now, &name, out);
            }
            (Some(toml::Value::Integer(there)), Some(toml::Value::Integer(now)))
                if name == "rounds" && now >= there => {}
            (there, now) if there == now => {}
            // Another GPU is as good.
            (Some(toml::Value::String(there)), Some(toml::Value::String(now)))
                if name == "device" && there.starts_with("cuda") && now.starts_with("cuda") => {}
            (there, now) => {
                let text = |value: Option<&toml::Value>| {
                    value.map_or("left out".to_owned(), toml::Value::to_string)
                };
                out.push(format!("{name} (there {}, now {})", text(there), text(now)));
            }
        }
    }
}
