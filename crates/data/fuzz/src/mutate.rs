//! Runs a decoder on damaged files: it must not panic, nor use more memory than its limit.
//!
//! Two thousand inputs per decoder keep `make test` fast; set `FEDANCHOR_MUTATIONS=1000000` for
//! more. An input is determined by its number, so failures are reproducible. A failing input is
//! also saved to a file, for a fuzz target or a debugger.

use crate::damage::damage;
use crate::decoder::{Decoder, scratch};
use fedanchor_data::{Purpose, Stream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Inputs per decoder unless `FEDANCHOR_MUTATIONS` is set.
const MUTATIONS: u64 = 2000;

/// Memory is measured for the whole process, so only one decoder may run at a time.
pub static TURN: Mutex<()> = Mutex::new(());

/// Runs a decoder of this list on damaged seeds.
pub fn survives(decoders: &[Decoder], name: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(MUTATIONS, |count| {
        count.parse().expect("FEDANCHOR_MUTATIONS must be a number, the inputs per decoder")
    });
    let number = decoders.iter().position(|decoder| decoder.name == name).unwrap();
    // A pool of one thread: waking others takes longer than decoding these inputs.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| mutate(&decoders[number], number as u32, count));
}

fn mutate(decoder: &Decoder, number: u32, count: u64) {
    let folder = scratch().unwrap();
    let mut seeds = Vec::new();
    for path in seed_paths(decoder) {
        let seed = std::fs::read(&path).unwrap();
        let outcome = decoder.run(folder.path(), &(decoder.wrap)(seed.clone()));
        // A seed must be valid to show the effect of damage.
        assert!(outcome.accepted, "{path:?}");
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
            panic!("{}: failing input {case} saved to {}", decoder.name, kept.display());
        };
        accepted += u64::from(outcome.accepted);
        memory = memory.max((outcome.memory, bytes.len()));
    }
    println!(
        "{}: {count} inputs, {accepted} accepted, peak memory {} KiB (for {} bytes), \
         slowest {slowest} ms, {:.0} s in total",
        decoder.name,
        memory.0.div_ceil(1024),
        memory.1,
        start.elapsed().as_secs_f64()
    );
}

/// The committed seeds of a decoder.
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
