//! Every augmentation operation gives the same bytes as Pillow, and the weak crop the same as
//! numpy's reflect padding. The fixtures are made by `scripts/make_augment_fixtures.py`.

use std::io::Read;

use super::ops::Op;
use super::{WeakDraw, apply_weak};
use crate::Shape;
use serde::Deserialize;

#[derive(Deserialize)]
struct Index {
    images: Vec<Image>,
    ops: Vec<Op>,
    weak: Vec<WeakDraw>,
}

#[derive(Deserialize)]
struct Image {
    name: String,
    shape: Shape,
}

struct Fixtures {
    index: Index,
    /// The images, then all images after each operation, then all images after each weak draw.
    pixels: Vec<u8>,
}

impl Fixtures {
    fn read() -> Self {
        let index = serde_json::from_str(include_str!("../../tests/fixtures/augment.json"))
            .expect("an index");
        let packed: &[u8] = include_bytes!("../../tests/fixtures/augment.z");
        let mut pixels = Vec::new();
        flate2::read::ZlibDecoder::new(packed).read_to_end(&mut pixels).expect("zlib");
        let fixtures = Self { index, pixels };
        let Index { ops, weak, .. } = &fixtures.index;
        let blocks = 1 + ops.len() + weak.len();
        assert_eq!(fixtures.pixels.len(), blocks * fixtures.block_bytes());
        fixtures
    }

    /// Bytes of all images.
    fn block_bytes(&self) -> usize {
        self.index.images.iter().map(|image| image.shape.bytes()).sum()
    }

    /// The pixels of all images after change number `number`; 0 is no change.
    fn block(&self, number: usize) -> impl Iterator<Item = (&Image, &[u8])> {
        let mut rest = &self.pixels[number * self.block_bytes()..];
        self.index.images.iter().map(move |image| {
            let (pixels, after) = rest.split_at(image.shape.bytes());
            rest = after;
            (image, pixels)
        })
    }

    /// Every image before and after change number `number`.
    fn pairs(&self, number: usize) -> impl Iterator<Item = (&Image, &[u8], &[u8])> {
        let before = self.block(0);
        before.zip(self.block(number)).map(|((image, src), (_, expected))| (image, src, expected))
    }
}

#[track_caller]
fn assert_same(got: &[u8], expected: &[u8], image: &Image, what: &dyn std::fmt::Debug) {
    let differences = got.iter().zip(expected).filter(|(a, b)| a != b).count();
    let first =
        got.iter().zip(expected).position(|(a, b)| a != b).map(|i| (i, got[i], expected[i]));
    assert!(
        got == expected,
        "{what:?} on {} {:?}: {differences} values differ, first (index, got, expected) {first:?}",
        image.name,
        image.shape,
    );
}

#[test]
fn operations_equal_pillow() {
    let fixtures = Fixtures::read();
    assert_eq!(fixtures.index.ops.len(), 63);
    let mut scratch = Vec::new();
    for (i, op) in fixtures.index.ops.iter().enumerate() {
        for (image, src, expected) in fixtures.pairs(1 + i) {
            let mut got = src.to_vec();
            op.apply(image.shape, &mut got, &mut scratch);
            assert_same(&got, expected, image, op);
        }
    }
}

#[test]
fn weak_augmentation_equals_numpy() {
    let fixtures = Fixtures::read();
    assert_eq!(fixtures.index.weak.len(), 8);
    for (i, draw) in fixtures.index.weak.iter().enumerate() {
        for (image, src, expected) in fixtures.pairs(1 + fixtures.index.ops.len() + i) {
            let mut got = vec![0; src.len()];
            apply_weak(image.shape, *draw, src, &mut got);
            assert_same(&got, expected, image, draw);
        }
    }
}
