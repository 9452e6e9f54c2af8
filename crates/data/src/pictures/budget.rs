//! A limit of the pixels in memory.
//!
//! Small pictures are decoded on all threads; the largest wait until they are alone. A pixel costs
//! at most some 16 bytes while it is decoded (4 channels of 16 bits, twice in TIFF files; other formats
//! take 12, for 4 channels of 16 bits and their 8-bit copy, or for the coefficients of a progressive JPEG
//! and its colours), so pictures take 1.6 GB at most, whatever their number, their size and the number
//! of threads.

use crate::skipped::MAX_PIXELS;
use std::sync::{Condvar, Mutex, PoisonError};

static IN_USE: Mutex<u64> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// A share of the budget, given back when dropped.
pub(super) struct Share(u64);

/// Waits until this many pixels fit. A thread must not take a second share while it holds one.
pub(super) fn take(pixels: u64) -> Share {
    let pixels = pixels.min(MAX_PIXELS);
    let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let full = |in_use: &mut u64| *in_use + pixels > MAX_PIXELS;
    let mut in_use = FREED.wait_while(in_use, full).unwrap_or_else(PoisonError::into_inner);
    *in_use += pixels;
    Share(pixels)
}

/// The cost of the bytes of a file, in pixels.
pub(super) fn of_file(bytes: u64) -> u64 {
    bytes / 16
}

impl Drop for Share {
    fn drop(&mut self) {
        *IN_USE.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        FREED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_pixels_than_the_budget_are_in_use() {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _share = take(MAX_PIXELS / (1 + thread));
                        assert!(*IN_USE.lock().unwrap() <= MAX_PIXELS);
                    }
                });
            }
        });
        drop(take(u64::MAX));
    }
}
