//! The decoders of this crate that read foreign bytes, as in `crates/data/fuzz/src/decoders.rs`.

use crate::decoder::{Decoder, as_it_is};
use fedanchor::engine::tensors::{Entry, Layout, Params, Part, decode};
use fedanchor::experiment::{resolve, sweep};
use fedanchor::messages::{Answer, Broadcast, ClientOutcome};
use std::path::Path;
use std::sync::Arc;
use tch::Device;

/// Every one of them.
pub const DECODERS: [Decoder; 5] = [
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
        // Without the tensors themselves, which libtorch allocates once their sizes are known to be right.
        most: |bytes| 64 * bytes + (64 << 10),
    },
    Decoder {
        name: "broadcast",
        family: "broadcast",
        seeds: &[".safetensors"],
        wrap: as_it_is,
        decode: broadcast,
        most: |bytes| 64 * bytes + (64 << 10),
    },
    Decoder {
        name: "answer",
        family: "answer",
        seeds: &[".safetensors"],
        wrap: as_it_is,
        decode: answer,
        most: |bytes| 64 * bytes + (64 << 10),
    },
];

/// Text as values with their places in it, once more as a table, and the defaults beneath.
fn settings(bytes: usize) -> usize {
    128 * bytes + (6 << 20)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// A network of two tensors.
fn layout() -> Layout {
    let entry = |name: &str, shape: &[i64], part| Entry {
        name: name.to_owned(),
        shape: shape.to_vec(),
        part,
        statistic: false,
    };
    let stem = entry("stem.weight", &[2, 1, 3, 3], Part::Backbone);
    Arc::new(vec![stem, entry("norm.bias", &[2], Part::Classifier)])
}

fn parameters(_: &Path, bytes: &[u8]) -> bool {
    let Ok(decoded) = decode(bytes) else { return false };
    let params = Params::from_decoded(&layout(), decoded.f32, Device::Cpu);
    let Ok(params) = params.and_then(|params| params.complete(&layout())) else { return false };
    let sizes: Vec<Vec<i64>> = params.tensors.iter().map(tch::Tensor::size).collect();
    assert_eq!(sizes, [vec![1, 2, 1, 3, 3], vec![1, 2]]);
    true
}

fn broadcast(_: &Path, bytes: &[u8]) -> bool {
    let decoded = Broadcast::decode(bytes, &layout(), Device::Cpu);
    let Ok((broadcast, client)) = decoded else { return false };
    assert_eq!(broadcast.params.layout.len(), 2);
    // What was decoded can be encoded.
    assert!(broadcast.encode(client).is_ok());
    true
}

fn answer(_: &Path, bytes: &[u8]) -> bool {
    let Ok(answer) = Answer::decode(bytes, &layout(), Device::Cpu) else { return false };
    if let ClientOutcome::Update(update) = &answer.outcome {
        assert_eq!(update.params.layout.len(), update.params.tensors.len());
    }
    assert!(answer.encode().is_ok());
    true
}
