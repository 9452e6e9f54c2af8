//! Replies on disk, so that memory does not grow with the number of nodes or with what one of them sends.

use crate::protocol::UNREACHABLE;
use fedanchor_record::words::excerpt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A reply in a file, which is removed on drop.
#[derive(Debug, PartialEq, Eq)]
pub struct Spooled(pub(crate) PathBuf);

impl Spooled {
    /// Reads at most this many bytes from its beginning.
    pub(crate) fn prefix(&self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(&self.0)?.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Describes an answer with this status, which is not that of a success.
    pub(crate) fn error(&self, status: u16) -> String {
        const MOST: usize = 2 << 10;
        let text = excerpt(&String::from_utf8_lossy(&self.prefix(MOST).unwrap_or_default()));
        match status {
            UNREACHABLE => text,
            _ => format!("its node answered with status {status}: {text}"),
        }
    }

    /// The ranges of byte strings that were concatenated after their lengths; `None` if there are not `count` of them.
    pub(crate) fn parts(&self, count: usize) -> io::Result<Option<Vec<Range<u64>>>> {
        let file = File::open(&self.0)?;
        let end = file.metadata()?.len();
        let (mut parts, mut at) = (Vec::new(), 0);
        while parts.len() < count && end - at >= 8 {
            let mut length = [0; 8];
            file.read_exact_at(&mut length, at)?;
            let start = at + 8;
            at = match start.checked_add(u64::from_le_bytes(length)).filter(|stop| *stop <= end) {
                Some(stop) => stop,
                None => return Ok(None),
            };
            parts.push(start..at);
        }
        Ok((parts.len() == count && at == end).then_some(parts))
    }

    /// Reads a part, up to this many bytes.
    pub(crate) fn read(&self, part: &Range<u64>, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (part.end - part.start).min(most) as usize];
        File::open(&self.0)?.read_exact_at(&mut bytes, part.start)?;
        Ok(bytes)
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        // If this fails, the next coordinator removes it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::framed;

    #[test]
    fn parts_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let spooled = |bytes: &[u8]| {
            let path = folder.path().join("a");
            std::fs::write(&path, bytes).unwrap();
            Spooled(path)
        };
        let parts = [&b"one"[..], b"", b"three"].map(|part| framed(part.into()));
        let whole = parts.concat().concat();
        let reply = spooled(&whole);
        let parts = reply.parts(3).unwrap().unwrap();
        let read: Vec<Vec<u8>> = parts.iter().map(|part| reply.read(part, 4).unwrap()).collect();
        assert_eq!(read, [&b"one"[..], b"", b"thre"]);
        assert_eq!(reply.prefix(9).unwrap(), &whole[..9]);
        // The wrong number of parts, a truncated file, an impossible length.
        assert_eq!((reply.parts(2).unwrap(), reply.parts(4).unwrap()), (None, None));
        drop(reply);
        for end in 0..whole.len() {
            assert_eq!(spooled(&whole[..end]).parts(3).unwrap(), None, "{end}");
        }
        assert_eq!(spooled(&u64::MAX.to_le_bytes()).parts(1).unwrap(), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
