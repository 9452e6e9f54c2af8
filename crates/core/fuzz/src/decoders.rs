//! The decoders of this crate that meet foreign bytes, as in `crates/data/fuzz/src/decoders.rs`.

use crate::decoder::{Decoder, as_it_is};
use fedanchor::config::{resolve, sweep};
use fedanchor::params::{Entry, Layout, Params, Part};
use std::path::Path;
use std::sync::Arc;
use tch::Device;

/// Every one of them.
pub const DECODERS: [Decoder; 3] = [
    Decoder {
        name: "experiment",
        family: "experiment",
        seeds: &[".toml"],
        wrap: as_it_is,
        decode: |_, bytes| text(bytes).is_some_and(|text| resolve(text, &[]).is_ok()),
        most: settings,
    },
    Decoder {
        name: "sweep",
        family: "sweep",
        seeds: &[".toml"],
        wrap: as_it_is,
        decode: |_, bytes| text(bytes).is_some_and(|text| sweep(text, &[], &[]).is_ok()),
        most: settings,
    },
    Decoder {
        name: "safetensors",
        family: "safetensors",
        seeds: &[".safetensors"],
        wrap: as_it_is,
        decode: parameters,
        // Without the tensors themselves, which libtorch allocates once their sizes are seen to be right.
        most: |bytes| 64 * bytes + (64 << 10),
    },
];

/// Text as values with their places in it, once more as a table, and the defaults beneath.
fn settings(bytes: usize) -> usize {
    128 * bytes + (4 << 20)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn parameters(_: &Path, bytes: &[u8]) -> bool {
    let entry = |name: &str, shape: &[i64]| Entry {
        name: name.to_owned(),
        shape: shape.to_vec(),
        part: Part::Backbone,
        statistic: false,
    };
    let layout: Layout =
        Arc::new(vec![entry("stem.weight", &[2, 1, 3, 3]), entry("norm.bias", &[2])]);
    let Ok(params) = Params::decode(&layout, bytes, Device::Cpu) else { return false };
    let sizes: Vec<Vec<i64>> = params.tensors.iter().map(tch::Tensor::size).collect();
    assert_eq!(sizes, [vec![1, 2, 1, 3, 3], vec![1, 2]]);
    true
}
