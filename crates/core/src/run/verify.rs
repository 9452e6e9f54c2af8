//! Whether a run folder is what was written.

use super::checkpoint;
use crate::disk::{self, read_manifest};
use crate::error::{Error, Result};
use fedanchor_record::{BuildRounds, Checksums, Manifest, Summary, Timing, files, missing_timings};
use serde::Serialize;
use std::path::Path;

/// What was found in a run folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Files that match their checksums.
    pub files: usize,
    /// Rounds on record, round 0 included.
    pub rounds: usize,
    /// Checkpoint files that are intact, those of clients included.
    pub checkpoints: usize,
    /// Which build of the program computed which rounds, as far as the folder tells.
    pub builds: Vec<BuildRounds>,
    /// What is not as it was written: each names a file of the run folder.
    pub problems: Vec<String>,
    /// What could not be checked, and why.
    pub notes: Vec<String>,
}

impl Verification {
    /// Whether everything that could be checked is as it was written.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks all files of a run folder: those of a finished run against their checksums, every line of the records, and
/// every checkpoint. Nothing is changed. It is an error if the folder holds no run.
pub fn verify(folder: &Path) -> Result<Verification> {
    let config = folder.join(files::CONFIG);
    if !config.try_exists().map_err(|error| Error::file(&config, error))? {
        return Err(Error::file(folder, format!("holds no run: {} is missing", files::CONFIG)));
    }
    let mut found = Verification::default();
    let mut manifest = None;
    match read_manifest(folder) {
        Ok(read) => manifest = read,
        Err(error) => found.problems.push(in_folder(folder, &error)),
    }
    if let Some(manifest) = &manifest {
        found.check_files(folder, manifest);
    } else if found.problems.is_empty() {
        found.notes.push(format!(
            "{} is missing: the run was written by an earlier version, or has only just begun; its records \
             and checkpoints alone were checked",
            files::CHECKSUMS
        ));
    }
    let rounds = found.check_lines(folder, files::ROUNDS).unwrap_or_default();
    // The summary of a finished run, also where nothing has a checksum.
    let last = rounds.lines().last().and_then(|line| serde_json::from_str(line).ok());
    let contradiction = finished(folder).zip(last).and_then(|(all, last)| all.contradiction(&last));
    found.problems.extend(contradiction.map(|text| format!("{}: {text}", files::SUMMARY)));
    // Records that were kept for their results, without the rest of the folder, have no timings.
    let timings = folder.join(files::TIMINGS);
    if manifest.is_none() && !timings.try_exists().map_err(|error| Error::file(&timings, error))? {
        found.notes.push(format!("{} is missing: no result depends on it", files::TIMINGS));
    } else if let Some(timings) = found.check_lines(folder, files::TIMINGS)
        && !manifest.is_some_and(|manifest| manifest.lists(files::TIMINGS))
    {
        let (timings, rounds) = (timings.lines().count(), rounds.lines().count());
        let problem = missing_timings(timings, rounds);
        found.problems.extend(problem.map(|text| format!("{}: {text}", files::TIMINGS)));
    }
    found.builds = builds(folder, found.rounds);
    match checkpoint::verify(folder) {
        Ok((intact, damaged)) => {
            found.checkpoints = intact;
            let damaged = damaged.iter().map(|path| path.strip_prefix(folder).unwrap_or(path));
            let problem = |path: &Path| format!("{}: is damaged or missing", path.display());
            found.problems.extend(damaged.map(problem));
        }
        Err(error) => found.problems.push(in_folder(folder, &error)),
    }
    Ok(found)
}

impl Verification {
    fn check_files(&mut self, folder: &Path, manifest: &Manifest) {
        for name in manifest.names() {
            let found = disk::read_if_exists(&folder.join(name));
            match found.map(|content| content.map(|content| manifest.check(name, &content))) {
                Ok(Some(Ok(()))) => self.files += 1,
                Ok(Some(Err(mismatch))) => self.problems.push(format!("{name}: {mismatch}")),
                Ok(None) => {
                    let problem = format!("{name}: is in {}, but missing", files::CHECKSUMS);
                    self.problems.push(problem);
                }
                Err(error) => self.problems.push(in_folder(folder, &error)),
            }
        }
        // A run that says it is finished has all its files, and a checksum of each.
        let needed = if finished(folder).is_some() { &files::ALL[..] } else { &files::FIRST[..] };
        for name in needed.iter().filter(|name| !manifest.lists(name)) {
            let problem = "has no checksum: resume the run, which writes it again";
            self.problems.push(format!("{name}: {problem}"));
        }
    }

    /// Checks every line of a file; returns its text.
    fn check_lines(&mut self, folder: &Path, name: &str) -> Option<String> {
        let text = match disk::read(&folder.join(name)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                self.problems.push(in_folder(folder, &error));
                return None;
            }
        };
        let (mut checksums, mut lines) = (Checksums::default(), 0);
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let intact = line.ends_with('\n') && checksums.accepts(line.trim_end_matches('\n'));
            checksums = Checksums::after(line.trim_end_matches('\n'));
            if intact {
                lines += 1;
            } else {
                let problem = "does not match its checksum";
                self.problems.push(format!("{name}: line {} {problem}", index + 1));
            }
        }
        if name == files::ROUNDS {
            self.rounds = lines;
        }
        Some(text)
    }
}

/// The summary of a run that has all its rounds, if it can be read.
fn finished(folder: &Path) -> Option<Summary> {
    let bytes = disk::read_if_exists(&folder.join(files::SUMMARY)).ok()??;
    let summary: Summary = serde_json::from_slice(&bytes).ok()?;
    (summary.rounds >= summary.rounds_planned).then_some(summary)
}

/// Which build computed which rounds: by the summary or, before there is one, by the timings.
fn builds(folder: &Path, rounds: usize) -> Vec<BuildRounds> {
    if let Some(summary) = finished(folder).filter(|summary| !summary.builds.is_empty()) {
        return summary.builds;
    }
    let Some(last) = rounds.checked_sub(1) else { return Vec::new() };
    let bytes = disk::read_if_exists(&folder.join(files::TIMINGS)).ok().flatten();
    let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
    let timings = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    BuildRounds::of(&timings.collect::<Vec<Timing>>(), last as u32)
}

/// An error about a file, by its path in the run folder.
fn in_folder(folder: &Path, error: &Error) -> String {
    match error {
        Error::File { path, problem } => {
            format!("{}: {problem}", path.strip_prefix(folder).unwrap_or(path).display())
        }
        other => other.to_string(),
    }
}
