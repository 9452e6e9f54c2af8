//! A single bit of any file.

use crate::{Bench, all_files, assert_same, copy, learnt};
use fedanchor_data::{Purpose, Stream};
use rand::RngExt;
use std::path::Path;

/// Flips of each kind of folder and method, in `make test` and in `make test-slow`.
fn flips() -> u64 {
    std::env::var("FEDANCHOR_FLIPS").map_or(12, |text| text.parse().unwrap())
}

/// A random bit of a random file, named.
fn flip(folder: &Path, case: u64) -> (String, usize) {
    let mut rng = Stream::new(2026, Purpose::Faults, 0, 0).at(case);
    let files = all_files(folder);
    let (name, bytes) = files.iter().nth(rng.random_range(0..files.len())).unwrap();
    if bytes.is_empty() {
        return flip(folder, case + 1_000_000);
    }
    let bit = rng.random_range(0..8 * bytes.len());
    let mut bytes = bytes.clone();
    bytes[bit / 8] ^= 1 << (bit % 8);
    std::fs::write(folder.join(name), bytes).unwrap();
    (name.clone(), bit)
}

const METHODS: [&str; 3] = ["fedanchor", "fedcon", "fedmatch"];

/// `verify` names the file, and so does a resume, or it ends in the same bytes.
fn try_flips(bench: &Bench, whole: &Path, kind: u64) {
    let expected = bench.reference();
    assert!(fedanchor::verify(whole).unwrap().is_intact());
    let out = bench.at("flipped");
    for case in 0..flips() {
        copy(whole, &out);
        let (name, bit) = flip(&out, 1000 * kind + case);
        let what = format!("case {case}: bit {bit} of {name}");
        let found = fedanchor::verify(&out).unwrap();
        let named = found.problems.iter().any(|problem| problem.contains(&name));
        assert!(named, "{what}: {found:?}");
        let (notices, ended) = bench.go_on(&out);
        let said = |text: &String| text.contains(&name);
        match ended {
            Err(error) => assert!(said(&error.to_string()), "{what}: {error}"),
            Ok(_) if notices.iter().any(said) => {
                let lost =
                    notices.iter().filter(|note| note.contains("starts without its saved state"));
                assert!(lost.count() <= 1, "{what}: {notices:?}");
                if !name.contains("clients/") {
                    let mut same = expected.clone();
                    same.insert(name.clone(), learnt(&out).remove(&name).unwrap_or_default());
                    same.retain(|name, bytes| !bytes.is_empty() || expected.contains_key(name));
                    assert_same(&learnt(&out), &same, &what);
                }
            }
            Ok(_) => {
                assert_same(&learnt(&out), &expected, &what);
                // Except for a checkpoint that is no longer needed.
                let found = fedanchor::verify(&out).unwrap();
                let elsewhere = found.problems.iter().filter(|problem| !problem.contains(&name));
                assert_eq!(elsewhere.count(), 0, "{what}: {found:?}");
            }
        }
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_bit_of_a_finished_run() {
    for (kind, method) in METHODS.iter().enumerate() {
        let bench = Bench::new(&[&format!("method.name={method}")]);
        let whole = bench.at("whole");
        bench.go_on(&whole).1.unwrap();
        try_flips(&bench, &whole, kind as u64);
    }
}

#[test]
fn a_bit_of_a_run_that_was_stopped() {
    for (kind, method) in METHODS.iter().enumerate() {
        let bench = Bench::new(&[&format!("method.name={method}")]);
        let whole = bench.at("whole");
        bench.go_until(&whole, 2).1.unwrap();
        try_flips(&bench, &whole, 10 + kind as u64);
    }
}
