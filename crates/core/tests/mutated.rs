//! Damaged files against every decoder of this crate; `mutate.rs` says how.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../../data/fuzz/src/damage.rs"]
mod damage;
#[path = "../../data/fuzz/src/decoder.rs"]
mod decoder;
#[path = "../fuzz/src/decoders.rs"]
mod decoders;
#[path = "../../data/fuzz/src/mutate.rs"]
mod mutate;

use decoders::DECODERS;
use mutate::{TURN, survives};
use std::sync::PoisonError;

#[test]
fn experiments() {
    survives(&DECODERS, "experiment");
}

#[test]
fn sweeps() {
    survives(&DECODERS, "sweep");
}

#[test]
fn safetensors() {
    survives(&DECODERS, "safetensors");
}

#[test]
fn broadcasts() {
    survives(&DECODERS, "broadcast");
}

#[test]
fn answers() {
    survives(&DECODERS, "answer");
}

#[test]
fn none_is_forgotten() {
    assert_eq!(
        DECODERS.map(|decoder| decoder.name),
        ["experiment", "sweep", "safetensors", "broadcast", "answer"],
        "a test for each"
    );
}

/// Damage hardly ever makes the files that cost most for their size; these are made on purpose.
#[test]
fn limits_hold_for_the_costliest_files() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = decoder::scratch().unwrap();
    let run = |name: &str, bytes: &[u8]| {
        let decoder = DECODERS.iter().find(|decoder| decoder.name == name).unwrap();
        let outcome = decoder.run(folder.path(), bytes);
        let (memory, length) = (outcome.memory.div_ceil(1024), bytes.len());
        println!("{name}: {length} bytes, at most {memory} KiB of memory");
    };
    // Settings that lie deep, and many of them.
    const SIZE: usize = 1 << 18;
    for (start, again, end) in [
        ("a=", "[", ""),
        ("a=", "{b=", "1"),
        ("", "a.", "b=1"),
        ("", "[a.b.c]\n", ""),
        ("a=[", "[],", "]"),
        ("a=[", "1,", "]"),
        ("a=[", "{},", "]"),
        ("[[a]]\n", "[[a.b]]\n", ""),
        ("a='''", "\n", "'''"),
    ] {
        let text = format!("{start}{}{end}", again.repeat(SIZE / again.len()));
        run("experiment", text.as_bytes());
        run("sweep", text.as_bytes());
    }
    let keys: String = (0..SIZE / 8).map(|key| format!("k{key}=1\n")).collect();
    run("experiment", keys.as_bytes());
    run("sweep", format!("[base]\n{keys}").as_bytes());
    // As many cells as may be, from a few lines: stated for what a cell holds, not for the file.
    let values: Vec<String> = (1..=30).map(|value| value.to_string()).collect();
    let values = values.join(",");
    run("sweep", format!("[grid]\nrounds=[{values}]\nclient.epochs=[{values}]\n").as_bytes());

    // Headers that promise more than there is.
    let message = |header: &str| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 80]].concat()
    };
    for (shape, end) in [("18446744073709551615,2", 80), ("4294967296,4294967296", 0), ("0", 80)] {
        let entry = format!(
            r#"{{"norm.bias":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,{end}]}}}}"#
        );
        run("safetensors", &message(&entry));
    }
    run("safetensors", &[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    run("safetensors", &message(&"{\"a\":".repeat(SIZE / 5)));
    let entries: Vec<String> = (0..SIZE / 64)
        .map(|n| format!(r#""t{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    run("safetensors", &message(&format!("{{{}}}", entries.join(","))));
}
