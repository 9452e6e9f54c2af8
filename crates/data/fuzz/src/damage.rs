//! Mutations that tend to break decoders.

use rand::{Rng, RngExt};

/// One seed with one to eight mutations.
pub fn damage(rng: &mut impl Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
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
                // Replace the rest by the end of another seed.
                let other = &seeds[rng.random_range(0..seeds.len())];
                let from = place(rng, other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
    bytes
}

/// A position in a file, often near its start or end, where headers and directories are.
fn place(rng: &mut impl Rng, length: usize) -> usize {
    let near = rng.random_range(0..=length.min(128));
    match rng.random_range(0..4) {
        0 => near,
        1 => length - near,
        _ => rng.random_range(0..=length),
    }
}

/// The length of a range, usually short.
fn length(rng: &mut impl Rng) -> usize {
    1 << rng.random_range(0..8) >> rng.random_range(0..4)
}

/// Overwrites the start with a number close to a power of two, to break size fields.
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
