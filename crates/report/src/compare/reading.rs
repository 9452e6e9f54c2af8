//! The two experiments that are compared: their runs, and the settings in which they differ.

use super::ChangedSetting;
use crate::error::{ReportError, Result};
use crate::history::{Histories, History, read_histories};
use crate::setup::{Complete, FINGERPRINT, Group, differing, group};
use fedanchor_record::{KeyRole, files};
use std::collections::BTreeSet;
use std::path::Path;

/// Experiments that an error names.
const NAMED: usize = 8;

/// The runs in a folder, one per seed and sorted by it. They must be of one experiment.
pub(super) fn read(
    folder: &Path,
    complete: Complete,
    notes: &mut Vec<String>,
) -> Result<Vec<History>> {
    let Histories { runs, damaged } = read_histories(&[folder.to_owned()], complete)?;
    let mut problems: Vec<String> = damaged.iter().map(ToString::to_string).collect();
    let (mut runs, incomplete): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|run| run.rounds[0].round == 0);
    problems.extend(
        incomplete.iter().map(|run| {
            format!("{}: {}: round 0 is missing", run.setup.path.display(), files::ROUNDS)
        }),
    );
    if runs.is_empty() {
        let problem = format!("no run in it can be compared: {}", problems.join("; "));
        return Err(ReportError::about(folder, problem));
    }
    let groups = group(runs.iter().map(|run| &run.setup));
    if groups.len() > 1 {
        let problem = format!(
            "contains runs of {} experiments: give a folder with the runs of one; found {}",
            groups.len(),
            names(&groups, &runs)
        );
        return Err(ReportError::about(folder, problem));
    }
    notes.extend(problems.into_iter().map(|problem| format!("left out: {problem}")));
    let mut seeds: Vec<History> = Vec::new();
    // Of two runs of a seed, the one that is whole.
    runs.sort_by_key(|run| (!run.problems.is_empty(), !run.is_finished));
    for run in runs {
        let path = run.setup.path.display();
        notes.extend(run.problems.iter().map(|problem| format!("{path}: {problem}")));
        match seeds.iter().find(|other| other.seed() == run.seed()) {
            None => seeds.push(run),
            Some(first) => notes.push(format!(
                "left out: {path}: {} is a run of the same experiment and seed",
                first.setup.path.display()
            )),
        }
    }
    seeds.sort_by_key(History::seed);
    Ok(seeds)
}

/// Each experiment in a few words, and where its first run is; of many, the first few.
fn names(groups: &[Group], runs: &[History]) -> String {
    let words = |group: &Group| {
        let heading = &runs[group.members[0]].setup.heading;
        [
            heading.method.clone(),
            heading.data.clone(),
            heading.model.clone(),
            format!("{} anchors", heading.anchors),
            heading.partition.to_string(),
            format!("preset {}", heading.preset),
            group.distinction(groups),
        ]
    };
    let all: Vec<[String; 7]> = groups.iter().map(words).collect();
    let differs = |column: usize| all.iter().any(|one| one[column] != all[0][column]);
    let name = |(group, words): (&Group, &[String; 7])| {
        let shown = words
            .iter()
            .enumerate()
            .filter(|(column, word)| !word.is_empty() && (*column == 0 || differs(*column)));
        let shown: Vec<&str> = shown.map(|(_, word)| word.as_str()).collect();
        let path = runs[group.members[0]].setup.path.display();
        let more = match group.members.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{} ({path}{more})", shown.join(", "))
    };
    let mut names: Vec<String> = groups.iter().zip(&all).take(NAMED).map(name).collect();
    if groups.len() > NAMED {
        names.push(format!("and {} more", groups.len() - NAMED));
    }
    names.join("; ")
}

/// No run may be in both experiments, under whatever path.
pub(super) fn check_apart(a: &[History], b: &[History]) -> Result<()> {
    for run in b {
        let path = &run.setup.path;
        let real = fs_err::canonicalize(path)?;
        for other in a {
            if fs_err::canonicalize(&other.setup.path)? == real {
                let problem = "is on both sides of the comparison: give two different folders";
                return Err(ReportError::about(path, problem));
            }
        }
    }
    Ok(())
}

/// The settings that differ; also where the runs were computed, which explains different seconds.
pub(super) fn changed_settings(a: &[History], b: &[History]) -> Vec<ChangedSetting> {
    let [group_a, group_b] = [a, b].map(|runs| group(runs.iter().map(|run| &run.setup)));
    let ([group_a], [group_b]) = (&group_a[..], &group_b[..]) else { return Vec::new() };
    let mut changed = Vec::new();
    for key in differing(&[group_a, group_b]) {
        let [a, b] = [group_a, group_b]
            .map(|group| group.settings.get(key).map(|value| (*value).to_owned()));
        // A run that was not finished has no fingerprint.
        if key != FINGERPRINT || (a.is_some() && b.is_some()) {
            changed.push(ChangedSetting { key: key.to_owned(), a, b });
        }
    }
    let machine = a[0].setup.settings.iter().map(|(key, _)| key);
    for key in machine.filter(|key| KeyRole::of(key) == KeyRole::Machine) {
        let [a, b] = [a, b].map(|runs| values(runs, key));
        if a != b {
            changed.push(ChangedSetting { key: key.clone(), a, b });
        }
    }
    changed
}

/// The values of a setting in these runs, each once.
fn values(runs: &[History], key: &str) -> Option<String> {
    let settings = runs.iter().flat_map(|run| &run.setup.settings);
    let values = settings.filter(|(other, _)| other == key).map(|(_, value)| value.as_str());
    let values = Vec::from_iter(BTreeSet::from_iter(values));
    (!values.is_empty()).then(|| values.join(", "))
}
