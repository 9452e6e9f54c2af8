//! Whether a TIFF file is complete. The directory of a picture may come before its data, and not every decoder of
//! compressed data notices that the end is missing.

/// The tags of the offsets and of the lengths of the data, in strips or in tiles.
const DATA: [(u16, u16); 2] = [(273, 279), (324, 325)];
const SHORT: u16 = 3;
const LONG: u16 = 4;

/// Whether all data of the first picture is within the file. A directory that cannot be read is left to the decoder,
/// which says more about it.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    let file = File { bytes, is_little: bytes.first() == Some(&b'I') };
    let Some(directory) = file.long(4) else { return true };
    DATA.iter().all(|&(offsets, lengths)| {
        let values = |tag| file.values(directory as usize, tag).unwrap_or_default();
        let ends = values(offsets).into_iter().zip(values(lengths));
        ends.map(|(offset, length)| u64::from(offset) + u64::from(length))
            .all(|end| end <= bytes.len() as u64)
    })
}

struct File<'a> {
    bytes: &'a [u8],
    is_little: bool,
}

impl File<'_> {
    fn short(&self, at: usize) -> Option<u16> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn long(&self, at: usize) -> Option<u32> {
        let bytes = *self.bytes.get(at..)?.first_chunk()?;
        Some(if self.is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    /// The numbers of a tag, which are in its entry if they fit into 4 bytes, and elsewhere in the file otherwise.
    fn values(&self, directory: usize, tag: u16) -> Option<Vec<u32>> {
        let entries = usize::from(self.short(directory)?);
        let mut entries = (0..entries).map(|entry| directory + 2 + 12 * entry);
        let entry = entries.find(|&at| self.short(at) == Some(tag))?;
        let count = self.long(entry + 4)? as usize;
        let size = match self.short(entry + 2)? {
            SHORT => 2,
            LONG => 4,
            _ => return None,
        };
        let fits = count.checked_mul(size)? <= 4;
        let start = if fits { entry + 8 } else { self.long(entry + 8)? as usize };
        let value = |at| if size == 2 { self.short(at).map(u32::from) } else { self.long(at) };
        (0..count).map(|number| value(start + number * size)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory before two strips of four bytes, whose offsets are elsewhere and whose lengths are in the entry.
    fn file(long: fn(u32) -> [u8; 4], short: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let start = if short(1) == [1, 0] { *b"II" } else { *b"MM" };
        let mut bytes = [&start[..], &short(42), &long(8), &short(2)].concat();
        bytes.extend([&short(273)[..], &short(LONG), &long(2), &long(38)].concat());
        bytes.extend([&short(279)[..], &short(SHORT), &long(2), &short(4), &short(4)].concat());
        bytes.extend([&long(0)[..], &long(46), &long(50), b"01234567"].concat());
        bytes
    }

    #[test]
    fn data_beyond_the_end_is_found() {
        let little = file(u32::to_le_bytes, u16::to_le_bytes);
        let big = file(u32::to_be_bytes, u16::to_be_bytes);
        for whole in [little, big] {
            assert_eq!(whole.len(), 54);
            assert!(is_complete(&whole));
            assert!(is_complete(&[&whole[..], b"appended"].concat()));
            for length in 46..54 {
                assert!(!is_complete(&whole[..length]), "{length} bytes");
            }
        }
    }

    #[test]
    fn damage_to_the_directory_is_left_to_the_decoder() {
        let whole = file(u32::to_le_bytes, u16::to_le_bytes);
        for length in 0..30 {
            assert!(is_complete(&whole[..length]), "{length} bytes");
        }
        let mut many = whole;
        many[14..18].copy_from_slice(&[0xff; 4]);
        assert!(is_complete(&many));
    }
}
