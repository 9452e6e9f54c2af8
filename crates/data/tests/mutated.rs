//! Damaged files against every decoder: none may panic, none may use more memory than its limit.
//!
//! Two thousand inputs for each decoder, so that `make test` stays quick; `FEDANCHOR_MUTATIONS=1000000`
//! asks for more. An input is determined by its number: a failure comes again. It is kept as a file,
//! too, for a fuzz target or a debugger.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../fuzz/src/decoders.rs"]
mod decoders;

use decoders::{DECODERS, Decoder};
use fedanchor_data::{Purpose, Stream};
use rand::{Rng, RngExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Inputs for each decoder unless `FEDANCHOR_MUTATIONS` says otherwise.
const MUTATIONS: u64 = 2000;

/// Memory is counted for the whole process: one decoder at a time.
static TURN: Mutex<()> = Mutex::new(());

fn survives(name: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(MUTATIONS, |count| {
        count.parse().expect("FEDANCHOR_MUTATIONS is the number of inputs for each decoder")
    });
    let number = DECODERS.iter().position(|decoder| decoder.name == name).unwrap();
    // On a thread of its own pool a decoder does its parallel work itself: no time goes to waking
    // others up, which takes longer than these inputs.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| mutate(&DECODERS[number], number as u32, count));
}

fn mutate(decoder: &Decoder, number: u32, count: u64) {
    let folder = decoders::scratch().unwrap();
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

/// One seed with one to eight mutations.
fn damage(rng: &mut impl Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
    for _ in 0..rng.random_range(1..=8) {
        let at = place(rng, bytes.len());
        let end = bytes.len().min(at + length(rng));
        match rng.random_range(0..10) {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.random_range(0..8);
                }
            }
            2 => bytes[at..end].fill([0, 0xff, 0x7f, 0x80][rng.random_range(0..4)]),
            3 => rng.fill_bytes(&mut bytes[at..end]),
            4 => number(rng, &mut bytes[at..]),
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..end)),
            7 => {
                let mut new = vec![0; length(rng)];
                rng.fill_bytes(&mut new);
                drop(bytes.splice(at..at, new));
            }
            8 => {
                let again = bytes[at..end].repeat(rng.random_range(1..5));
                let to = place(rng, bytes.len());
                drop(bytes.splice(to..to, again));
            }
            _ => {
                // From here on as another seed goes on somewhere.
                let other = &seeds[rng.random_range(0..seeds.len())];
                let from = place(rng, other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
    bytes
}

/// A place in a file, often near one of its ends: that is where headers and directories are.
fn place(rng: &mut impl Rng, length: usize) -> usize {
    let near = rng.random_range(0..=length.min(128));
    match rng.random_range(0..4) {
        0 => near,
        1 => length - near,
        _ => rng.random_range(0..=length),
    }
}

/// The length of a range, mostly short.
fn length(rng: &mut impl Rng) -> usize {
    1 << rng.random_range(0..8) >> rng.random_range(0..4)
}

/// Overwrites the start with a number of the kind that breaks sizes.
fn number(rng: &mut impl Rng, bytes: &mut [u8]) {
    let width = [1, 2, 4, 8][rng.random_range(0..4)];
    let around = 1u64 << rng.random_range(0..64);
    let value = around.wrapping_add(rng.random_range(0..3)).wrapping_sub(1);
    let mut number = if width == 8 { value } else { value % (1 << (8 * width)) }.to_le_bytes();
    if rng.random() {
        number[..width].reverse();
    }
    let width = width.min(bytes.len());
    bytes[..width].copy_from_slice(&number[..width]);
}

/// Damage hardly ever makes the files that cost most for their size; these are made on purpose.
#[test]
fn limits_hold_for_the_costliest_files() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = decoders::scratch().unwrap();
    let run = |name: &str, bytes: &[u8]| {
        let decoder = DECODERS.iter().find(|decoder| decoder.name == name).unwrap();
        let folder = tempfile::tempdir_in(folder.path()).unwrap();
        let bytes = (decoder.wrap)(bytes.to_vec());
        let outcome = decoder.run(folder.path(), &bytes);
        let (memory, length) = (outcome.memory.div_ceil(1024), bytes.len());
        let most = (decoder.most)(length) / 1024;
        println!("{name}: {length} bytes, at most {memory} KiB of memory (limit {most} KiB)");
        outcome.accepted
    };

    // Programs for the stack machine in which a byte or two make a value, a memo entry, a mark; and
    // one that makes the same array of 32 dimensions again and again.
    let shape = [&b"("[..], &b"K\x01".repeat(32), b"t"].concat();
    let arguments = [b"(Ncnumpy\ndtype\nU\x02u1\x85R", &shape[..], b"U\x01Ctq\x01"].concat();
    let array = [b"cnumpy.core.numeric\n_frombuffer\nq\x00", &arguments[..]].concat();
    for (start, again) in [
        (&b""[..], &b"N"[..]),
        (b"", b"]"),
        (b"", b"("),
        (b"N", b"\x85"),
        (b"N", b"\x94"),
        (b"", b"]Na"),
        (b"", b"}NNs"),
        (&array, b"h\x00h\x01R"),
    ] {
        let count = (1 << 20) / again.len() + 1;
        run("cifar-python", &[b"\x80\x02", start, &again.repeat(count)].concat());
    }

    // Nothing but ones, just within what a file may unpack to.
    let ones = vec![1; 16 << 20];
    let images = [&[0, 0, 8, 3, 0, 0, 0, 16, 0, 0, 4, 0, 0, 0, 4, 0], &ones[..]].concat();
    assert!(run("idx-wrapped", &images));
    let labels = [&[0, 0, 8, 1, 1, 0, 0, 0], &ones[..]].concat();
    run("idx-wrapped", &labels);
    let header = |shape: &str| {
        let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n");
        let length = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes()].concat()
    };
    let arrays = [header("(1398101, 3, 2, 2)"), ones[4..].into(), header("(16777216,)")];
    run("npz-wrapped", &[&arrays.concat(), &ones[..]].concat());
    let variable = |name: u8, dims: [u32; 4]| {
        let dims = dims.map(u32::to_le_bytes).concat();
        let body = [
            &[6, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 16, 0, 0, 0][..],
            &dims,
            &[1, 0, 1, 0, name, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1],
            &ones,
        ];
        let body = body.concat();
        [&14u32.to_le_bytes()[..], &(body.len() as u32).to_le_bytes(), &body].concat()
    };
    let mut file = [b' '; 128];
    file[124..].copy_from_slice(&[0, 1, b'I', b'M']);
    let variables = [variable(b'X', [1, 1, 1, 1 << 24]), variable(b'y', [1 << 24, 1, 1, 1])];
    run("mat-wrapped", &[&file[..], &variables.concat()].concat());

    // Flat pictures: four million pixels in a few kilobytes.
    let picture = image::GrayImage::new(2048, 2048);
    for (name, format) in [("png", image::ImageFormat::Png), ("jpeg", image::ImageFormat::Jpeg)] {
        let mut file = std::io::Cursor::new(Vec::new());
        picture.write_to(&mut file, format).unwrap();
        assert!(run(name, file.get_ref()));
    }

    // An entry whose name is a megabyte.
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, "a/".repeat(1 << 19), &b""[..]).unwrap();
    run("archive-wrapped", &builder.into_inner().unwrap());
}

macro_rules! every_decoder {
    ($($test:ident: $name:literal),*) => {
        $(#[test] fn $test() { survives($name) })*

        #[test]
        fn none_is_forgotten() {
            assert_eq!(DECODERS.map(|decoder| decoder.name), [$($name),*]);
        }
    };
}

every_decoder!(
    cifar_binary: "cifar-binary",
    cifar_python: "cifar-python",
    mat: "mat",
    mat_wrapped: "mat-wrapped",
    idx: "idx",
    idx_wrapped: "idx-wrapped",
    npz: "npz",
    npz_wrapped: "npz-wrapped",
    png: "png",
    png_wrapped: "png-wrapped",
    jpeg: "jpeg",
    archive: "archive",
    archive_wrapped: "archive-wrapped"
);
