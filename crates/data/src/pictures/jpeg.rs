//! Whether a JPEG file is complete. The decoder fills missing parts with grey and reports no error.

/// Whether the end of the image follows its last scan. Data after that is ignored: cameras
/// append previews, and some programs padding.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    let mut at = 2;
    let mut scanned = false;
    while let Some(marker) = next_marker(bytes, &mut at) {
        match marker {
            0xd9 => return scanned,
            0x01 | 0xd0..=0xd8 => {}
            _ => {
                // A segment with a length, which may contain a whole thumbnail.
                let Some(length) = bytes.get(at..at + 2) else { return false };
                at += usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
                scanned |= marker == 0xda;
            }
        }
    }
    false
}

/// The next marker at or after a position, which moves past it. In the data of a scan, 255 is
/// followed by 0.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        *at += bytes.get(*at..)?.iter().position(|&byte| byte == 0xff)? + 1;
        match *bytes.get(*at)? {
            0xff => {} // padding
            0 => *at += 1,
            marker => {
                *at += 1;
                return Some(marker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_image_is_found_after_the_scan() {
        let start = [0xff, 0xd8, 0xff, 0xe1, 0, 6, 0xff, 0xd9, 1, 2];
        let scan = [0xff, 0xda, 0, 3, 9, 1, 2, 0xff, 0, 3, 0xff, 0xd3, 4];
        let end = [0xff, 0xff, 0xd9];
        let whole = [&start[..], &scan, &end].concat();
        assert!(is_complete(&whole));
        assert!(is_complete(&[&whole[..], b"appended"].concat()));
        for length in 0..whole.len() {
            assert!(!is_complete(&whole[..length]), "{length} bytes");
        }
        assert!(!is_complete(&[&start[..], &end].concat()));
    }
}
