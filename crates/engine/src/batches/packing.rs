//! One step's inputs as one block of bytes: drawn and rendered on the host, sent to the device in one
//! copy, and read there as typed views. A tensor per part was rejected: on a GPU each would be a
//! separate copy, and a captured step needs its inputs at one fixed address.

use crate::error::Result;
use std::ops::Range;
use tch::{Kind, Tensor};

/// Where the parts of a step's inputs lie.
#[derive(Debug)]
pub struct Packing(Vec<Range<usize>>);

/// Parts start at multiples of this many bytes, for aligned access on a GPU.
const ALIGNMENT: usize = 256;

impl Packing {
    /// Parts of these sizes in bytes, in this order.
    pub fn new(sizes: &[usize]) -> Self {
        let mut start = 0;
        let places = sizes.iter().map(|&size| {
            let place = start..start + size;
            start = place.end.next_multiple_of(ALIGNMENT);
            place
        });
        Self(places.collect())
    }

    /// Total bytes.
    pub fn total(&self) -> usize {
        self.0.last().map_or(0, |last| last.end)
    }

    /// The parts of `bytes`, to be filled.
    pub fn split<'a>(&self, bytes: &'a mut [u8]) -> Vec<&'a mut [u8]> {
        let (mut rest, mut start) = (bytes, 0);
        let parts = self.0.iter().map(|place| {
            let (before, after) = std::mem::take(&mut rest).split_at_mut(place.end - start);
            let part = &mut before[place.start - start..];
            (rest, start) = (after, place.end);
            part
        });
        parts.collect()
    }

    /// One part as a tensor that shares the memory of `bytes`.
    pub fn view(&self, bytes: &Tensor, part: usize, kind: Kind, size: &[i64]) -> Result<Tensor> {
        let place = &self.0[part];
        let bytes = bytes.f_narrow(0, place.start as i64, place.len() as i64)?;
        Ok(bytes.f_view_dtype(kind)?.f_view(size)?)
    }
}

/// Writes numbers into a part, as many as fit.
pub fn write<const N: usize>(part: &mut [u8], numbers: impl Iterator<Item = [u8; N]>) {
    for (place, number) in part.chunks_exact_mut(N).zip(numbers) {
        place.copy_from_slice(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_read_as_they_were_written() {
        let packing = Packing::new(&[16, 3, 8]);
        assert_eq!(packing.total(), 520);
        let mut bytes = vec![0; packing.total()];
        let mut parts = packing.split(&mut bytes);
        write(parts[0], [7i64, -8].into_iter().map(i64::to_ne_bytes));
        parts[1].copy_from_slice(&[1, 2, 3]);
        write(parts[2], [0.5f32, -2.0].into_iter().map(f32::to_ne_bytes));
        let bytes = Tensor::from_slice(&bytes);
        let labels = packing.view(&bytes, 0, Kind::Int64, &[1, 2]).unwrap();
        let pixels = packing.view(&bytes, 1, Kind::Uint8, &[3]).unwrap();
        let shares = packing.view(&bytes, 2, Kind::Float, &[2, 1]).unwrap();
        assert_eq!(labels, Tensor::from_slice(&[7i64, -8]).view([1, 2]));
        assert_eq!(pixels, Tensor::from_slice(&[1u8, 2, 3]));
        assert_eq!(shares, Tensor::from_slice(&[0.5f32, -2.0]).view([2, 1]));
    }
}
