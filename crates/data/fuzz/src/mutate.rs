//! Damaged files against a decoder: it may not panic, nor use more memory than its limit.
//!
//! Two thousand inputs for each decoder, so that `make test` stays quick; `FEDANCHOR_MUTATIONS=1000000`
//! asks for more. An input is determined by its number: a failure comes again. It is kept as a file,
//! too, for a fuzz target or a debugger.

use crate::damage::damage;
use crate::decoder::{Decoder, scratch};
use fedanchor_data::{Purpose, Stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Inputs for each decoder unless `FEDANCHOR_MUTATIONS` says otherwise.
const MUTATIONS: u64 = 2000;

/// Memory is counted for the whole process: one decoder at a time.
pub static TURN: Mutex<()> = Mutex::new(());

/// Throws damaged seeds at a decoder of this list.
pub fn survives(decoders: &[Decoder], name: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(MUTATIONS, |count| {
        count.parse().expect("FEDANCHOR_MUTATIONS is the number of inputs for each decoder")
    });
    let number = decoders.iter().position(|decoder| decoder.name == name).unwrap();
    // On a thread of its own pool a decoder does its parallel work itself: no time goes to waking
    // others up, which takes longer than these inputs.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| mutate(&decoders[number], number as u32, count));
}

fn mutate(decoder: &Decoder, number: u32, count: u64) {
    let folder = scratch().unwrap();
    let mut seeds = Vec::new();
    for path in seed_paths(decoder) {
        let seed = std::fs::read(&path).unwrap();
        let outcome = decoder.run(folder.path(), &(decoder.wrap)(seed.clone()));
        // A seed that is refused anyway hides what damage does; the small pickles are no CIFAR.
        assert!(outcome.accepted || path.to_str().unwrap().contains("small-"), "{path:?}");
        seeds.push(seed);
    }
    let stream = Stream::new(2026, Purpose::Shuffle, 0, number);
    let (mut accepted, mut memory, mut slowest, start) = (0, (0, 0), 0, Instant::now());
    for case in 0..count {
        let bytes = (decoder.wrap)(damage(&mut stream.at(case), &seeds));
        let begun = Instant::now();
        let run = catch_unwind(AssertUnwindSafe(|| decoder.run(folder.path(), &bytes)));
        slowest = slowest.max(begun.elapsed().as_millis());
        let Ok(outcome) = run else {
            let kept = std::env::temp_dir().join(format!("mutated-{}-{case}", decoder.name));
            std::fs::write(&kept, &bytes).unwrap();
            panic!("{}: input {case} is kept in {}", decoder.name, kept.display());
        };
        accepted += u64::from(outcome.accepted);
        memory = memory.max((outcome.memory, bytes.len()));
    }
    println!(
        "{}: {count} inputs, {accepted} accepted, at most {} KiB of memory (for {} bytes), \
         slowest {slowest} ms, {:.0} s in all",
        decoder.name,
        memory.0.div_ceil(1024),
        memory.1,
        start.elapsed().as_secs_f64()
    );
}

/// The committed files that a decoder starts from.
fn seed_paths(decoder: &Decoder) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(decoder.family);
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_seed = |path: &PathBuf| {
        decoder.seeds.iter().any(|end| path.file_name().unwrap().to_str().unwrap().ends_with(end))
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_seed).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", decoder.name);
    paths
}
