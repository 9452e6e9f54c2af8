//! Runs on disks that fail, lose their power and change a bit: whatever happens, a run ends with the same records and
//! the same model, or with words that name the file.

#![allow(clippy::unwrap_used)]

mod failures;
mod flips;

use fedanchor::{Experiment, Federation, Observer, Result, Resume, RunOptions, resolve};
use fedanchor_data::Partition;
use fedanchor_record::{RoundRecord, Summary, Timing, files};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// As small as a run can be that has everything: clients with a state, latents, samples.
const BRIEF: &[&str] = &[
    "rounds=3",
    "model.name=small",
    "data.anchors=20",
    "data.clients=3",
    "client.per_round=2",
    "client.epochs=1",
    "client.batch=16",
    "server.batch=20",
    "pretrain.epochs=1",
    "compare=false",
    "record.latents=[0, 1, 2]",
    "record.samples=2",
    "checkpoint.every=2",
];

/// A data set of a few small images, and an experiment with it.
struct Bench {
    folder: TempDir,
    experiment: Experiment,
}

impl Bench {
    fn new(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        for (part, count) in [("train", 50), ("t10k", 20)] {
            let pixels: Vec<u8> =
                (0..count * 256u32).map(|at| (at * at / 7 + at / 256) as u8).collect();
            let labels: Vec<u8> = (0..count).map(|at| (at % 10) as u8).collect();
            let head = |kind: u8, sizes: &[u32]| -> Vec<u8> {
                let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
                [0, 0, 8, kind].into_iter().chain(sizes).collect()
            };
            let images = [head(3, &[count, 16, 16]), pixels].concat();
            std::fs::write(data.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
            let labels = [head(1, &[count]), labels].concat();
            std::fs::write(data.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
        }
        let path = format!("data.path={}", data.display());
        let own = [path.as_str(), "data.name=tiny"];
        let all = BRIEF.iter().chain(&own).chain(settings).map(|&key| key.to_owned());
        let experiment = resolve("preset = \"paper\"", &all.collect::<Vec<_>>()).unwrap();
        Self { folder, experiment }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts or resumes a run, whichever is possible; what it noted, and how it ended.
    fn go_on(&self, out: &Path) -> (Vec<String>, Result<Summary>) {
        self.go_until(out, u32::MAX)
    }

    /// The same, stopped after a round.
    fn go_until(&self, out: &Path, last: u32) -> (Vec<String>, Result<Summary>) {
        let stop = AtomicBool::new(false);
        let mut watching = Watching { notices: Vec::new(), last, stop: &stop };
        let ended = match out.join(files::CONFIG).exists() {
            true => fedanchor::run(
                &self.experiment,
                RunOptions {
                    resume: Resume::Yes,
                    workers: Some(1),
                    stop: &stop,
                    ..RunOptions::new(out)
                },
                &mut watching,
            ),
            false => fedanchor::run(
                &self.experiment,
                RunOptions { workers: Some(1), stop: &stop, ..RunOptions::new(out) },
                &mut watching,
            ),
        };
        (watching.notices, ended)
    }

    /// A run without any trouble.
    fn reference(&self) -> BTreeMap<String, Vec<u8>> {
        let out = self.at("reference");
        self.go_on(&out).1.unwrap();
        learnt(&out)
    }
}

/// Keeps what a run notes, and stops it after a round.
struct Watching<'a> {
    notices: Vec<String>,
    last: u32,
    stop: &'a AtomicBool,
}

impl Observer for Watching<'_> {
    fn started(&mut self, _: &Federation, _: Option<&Partition>) {}
    fn round(&mut self, record: &RoundRecord, _: &Timing) {
        self.stop.fetch_or(record.round >= self.last, Ordering::Relaxed);
    }
    fn notice(&mut self, text: &str) {
        self.notices.push(text.to_owned());
    }
}

/// All files below a folder, by their paths in it.
fn all_files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    found
}

/// What the algorithm did, without what the machine did: times, memory, and files that contain them.
fn learnt(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = all_files(folder);
    files.retain(|name, _| {
        let of_the_machine = [files::TIMINGS, files::SUMMARY, files::CHECKSUMS];
        !of_the_machine.contains(&name.as_str()) && !name.starts_with("checkpoints/")
    });
    files
}

/// Whether two folders hold the same files; names are easier to read than bytes.
#[track_caller]
fn assert_same(
    found: &BTreeMap<String, Vec<u8>>,
    expected: &BTreeMap<String, Vec<u8>>,
    what: &str,
) {
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    let other: Vec<_> = found.iter().filter(|(name, bytes)| expected[*name] != **bytes).collect();
    let other: Vec<_> = other.into_iter().map(|(name, _)| name).collect();
    assert!(other.is_empty(), "{what}: {other:?} differ");
}

/// A copy of a run folder.
fn copy(from: &Path, to: &Path) {
    for (name, bytes) in all_files(from) {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// How many of `count` cases are tried: all of them in `make test-slow`.
fn step(count: usize, cases: usize) -> usize {
    match std::env::var_os("FEDANCHOR_EVERY_CALL") {
        Some(_) => 1,
        None => count.div_ceil(cases).max(1),
    }
}
