//! Pictures that are in two places.
//!
//! Equal files are found by a hash of their bytes. Near-duplicates, that is the same picture saved
//! again in another format, size or quality, in two steps: by a difference hash of 64 bits (is a
//! field of a 9 x 8 grid clearly brighter than the one to its left?), of which at most [`MOST_BITS`]
//! may differ, and then by a thumbnail of 12 x 12, of which the mean difference may be at most
//! [`MOST_DIFFERENCE`] of 255.
//!
//! The hash alone does not do for digits on black, which have few edges: of the 6 million pairs
//! between the training and the test part of the embedded sample it takes 15,000 for the same, 1,054
//! of them with other labels. With the thumbnail 6 are left, all of them ones. Of 1,000 digits saved
//! again as JPEG it finds 991, of those enlarged three times 998, of those enlarged twice and saved
//! as JPEG 815.
//!
//! Comparing all pairs would take hours for some 100,000 pictures. So they are sorted by the brightness of their
//! thumbnails, which differs by at most the difference of the thumbnails, and each is compared with those of similar
//! brightness alone. Of many pictures that look the same, each is reported with one of the others.

use super::Place;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// The side of the picture a print is made of: a multiple of 8, 9 and 12.
pub(super) const SIDE: usize = 72;
/// The most bits of the difference hash in which near-duplicates differ.
const MOST_BITS: u32 = 3;
/// The largest mean difference between the thumbnails of near-duplicates.
const MOST_DIFFERENCE: u32 = 2;
/// How much brighter a field must be to count as brighter: more than the noise of compression.
const CLEARLY: f64 = 8.0;
/// The side of a thumbnail.
const THUMBNAIL: usize = 12;
/// The largest sum of differences between the thumbnails of near-duplicates.
const LARGEST_SUM: u32 = MOST_DIFFERENCE * (THUMBNAIL * THUMBNAIL) as u32;
/// The most darker, and the most brighter pictures that one is compared with. It bounds the time for data sets of which
/// most pictures are equally bright, blank pages for example.
const MOST_COMPARED: usize = 10_000;

/// Pictures that are in two places where they must not be: under two labels, or in two parts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Duplicates {
    /// Files with the same bytes.
    pub exact: Vec<Vec<Place>>,
    /// Pictures that look the same, from files with other bytes: every such picture with one of the others. Of files with
    /// the same bytes in one class and part, the first alone is compared.
    pub near: Vec<NearPair>,
}

/// Two pictures that look the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NearPair {
    /// One of them.
    pub first: Place,
    /// The other.
    pub second: Place,
}

/// The features by which pictures are compared.
pub(super) struct Fingerprint {
    content: blake3::Hash,
    edges: u64,
    thumbnail: [u8; THUMBNAIL * THUMBNAIL],
    /// The sum of the thumbnail.
    brightness: u32,
}

impl Fingerprint {
    /// Of the bytes of a file and its grey pixels, [`SIDE`] x [`SIDE`].
    pub fn new(content: blake3::Hash, pixels: &[u8]) -> Self {
        let fields = averages(pixels, 9, 8);
        let mut edges = 0;
        for row in fields.chunks_exact(9) {
            for pair in row.windows(2) {
                edges = edges << 1 | u64::from(pair[1] > pair[0] + CLEARLY);
            }
        }
        let mut thumbnail = [0; THUMBNAIL * THUMBNAIL];
        for (place, value) in thumbnail.iter_mut().zip(averages(pixels, THUMBNAIL, THUMBNAIL)) {
            *place = value.round() as u8;
        }
        let brightness = thumbnail.iter().map(|&value| u32::from(value)).sum();
        Self { content, edges, thumbnail, brightness }
    }

    pub fn near(&self, other: &Self) -> bool {
        self.bits(other) <= MOST_BITS
            && self.content != other.content
            && self.difference(other) <= LARGEST_SUM
    }

    fn bits(&self, other: &Self) -> u32 {
        (self.edges ^ other.edges).count_ones()
    }

    /// The sum of the differences between the thumbnails.
    fn difference(&self, other: &Self) -> u32 {
        let pairs = self.thumbnail.iter().zip(&other.thumbnail);
        pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
    }
}

/// The means of the fields of a grid.
fn averages(pixels: &[u8], columns: usize, rows: usize) -> Vec<f64> {
    let (width, height) = (SIDE / columns, SIDE / rows);
    let mut sums = vec![0u32; columns * rows];
    for (y, line) in pixels.chunks_exact(SIDE).enumerate() {
        for (x, &value) in line.iter().enumerate() {
            sums[y / height * columns + x / width] += u32::from(value);
        }
    }
    sums.into_iter().map(|sum| f64::from(sum) / (width * height) as f64).collect()
}

/// The duplicates among these pictures.
pub(super) fn find(pictures: &[(Place, Fingerprint)]) -> Duplicates {
    let groups = groups(pictures);
    let mut files: HashMap<blake3::Hash, Vec<usize>> = HashMap::new();
    for (number, (_, print)) in pictures.iter().enumerate() {
        files.entry(print.content).or_default().push(number);
    }
    let mut exact: Vec<&Vec<usize>> = files
        .values()
        .filter(|same| same.iter().any(|&other| groups[other] != groups[same[0]]))
        .collect();
    exact.sort();
    let mut once = HashSet::new();
    let compared =
        (0..pictures.len()).filter(|&at| once.insert((pictures[at].1.content, groups[at])));
    let mut order: Vec<usize> = compared.collect();
    order.sort_by_key(|&at| pictures[at].1.brightness);
    let mut near: Vec<(usize, usize)> = (0..order.len())
        .into_par_iter()
        .filter_map(|at| {
            let one = order[at];
            let print = &pictures[one].1;
            let similar = |&&other: &&usize| {
                print.brightness.abs_diff(pictures[other].1.brightness) <= LARGEST_SUM
            };
            let darker = order[..at].iter().rev().take_while(similar).take(MOST_COMPARED);
            let brighter = order[at + 1..].iter().take_while(similar).take(MOST_COMPARED);
            let is_near =
                |other: &usize| groups[*other] != groups[one] && print.near(&pictures[*other].1);
            let other = darker.chain(brighter).copied().find(is_near)?;
            Some((one.min(other), one.max(other)))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    let place = |number: usize| pictures[number].0.clone();
    Duplicates {
        exact: exact.into_iter().map(|same| same.iter().map(|&at| place(at)).collect()).collect(),
        near: near
            .into_iter()
            .map(|(first, second)| NearPair { first: place(first), second: place(second) })
            .collect(),
    }
}

/// A number for every picture that is the same for pictures of one part and class.
fn groups(pictures: &[(Place, Fingerprint)]) -> Vec<usize> {
    let mut known: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    let mut numbers = Vec::with_capacity(pictures.len());
    for (place, _) in pictures {
        let next = known.len();
        numbers.push(*known.entry((place.part, place.class.as_deref())).or_insert(next));
    }
    numbers
}
