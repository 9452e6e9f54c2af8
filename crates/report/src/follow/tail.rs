//! The lines that are appended to a file, read once each.

use fs_err::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of a line. A round with ten thousand clients takes a hundredth of it.
const LONGEST_LINE: u64 = 16 << 20;
/// Bytes before the current position that must still be there. They contain the checksum of the last line,
/// which covers all lines before it.
const COMPARED: usize = 64;

/// What a file looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    length: u64,
    inode: u64,
    /// When the file was last written to.
    pub(super) modified: SystemTime,
}

impl Stamp {
    /// Of a file; `None` if there is none.
    pub(super) fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs_err::metadata(path) {
            // Opening something else, a pipe for example, might wait forever.
            Ok(metadata) if !metadata.is_file() => {
                Err(io::Error::other(format!("{}: not a file", path.display())))
            }
            Ok(metadata) => Ok(Some(Self {
                length: metadata.len(),
                inode: metadata.ino(),
                modified: metadata.modified()?,
            })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a file or a folder above it does not exist.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// A position in a file that grows.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// Bytes read.
    position: u64,
    /// The last of them.
    before: Vec<u8>,
    /// The start of a line whose end is not written yet.
    partial: Vec<u8>,
}

/// What is new in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Appended {
    /// The file is another one than before, or shorter, or gone: everything read from it is void, and
    /// `lines` start with its first.
    pub(super) restarted: bool,
    /// Complete lines, without their ends.
    pub(super) lines: Vec<String>,
    /// Why no more could be read.
    pub(super) problem: Option<String>,
}

impl Tail {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, stamp: None, position: 0, before: Vec::new(), partial: Vec::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file when it was last read; `None` if there was none.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// Whether the file ends within a line.
    pub(super) fn is_partial(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Reads what was appended since the last time.
    pub(super) fn read(&mut self) -> Appended {
        let mut new = Appended::default();
        if let Err(error) = self.read_into(&mut new) {
            new.problem = Some(error.to_string());
        }
        new
    }

    fn read_into(&mut self, new: &mut Appended) -> io::Result<()> {
        let stamp = Stamp::of(&self.path)?;
        if stamp == self.stamp {
            return Ok(());
        }
        let Some(stamp) = stamp else {
            self.restart(new);
            return Ok(());
        };
        let mut file =
            BufReader::new(File::from_parts(fedanchor_disk::open(&self.path)?, self.path.clone()));
        if self.position > 0 && !self.continues(&stamp, &mut file)? {
            self.restart(new);
        }
        file.seek(SeekFrom::Start(self.position))?;
        while self.next_line(&mut file)? {
            let line = std::mem::take(&mut self.partial);
            // Damaged bytes need not be text: the record's own check finds them.
            new.lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        // Last: what could not be read is tried again.
        self.stamp = Some(stamp);
        Ok(())
    }

    fn restart(&mut self, new: &mut Appended) {
        *self = Self::new(std::mem::take(&mut self.path));
        new.restarted = true;
    }

    /// Whether what was read is still there.
    fn continues(&self, stamp: &Stamp, file: &mut BufReader<File>) -> io::Result<bool> {
        let replaced = self.stamp.is_some_and(|old| old.inode != stamp.inode);
        if replaced || stamp.length < self.position {
            return Ok(false);
        }
        let mut found = vec![0; self.before.len()];
        file.seek(SeekFrom::Start(self.position - found.len() as u64))?;
        match file.read_exact(&mut found) {
            Ok(()) => Ok(found == self.before),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads on to the end of the line, which `partial` then holds, or to the end of the file.
    fn next_line(&mut self, file: &mut BufReader<File>) -> io::Result<bool> {
        let start = self.partial.len();
        let room = (LONGEST_LINE + 1).saturating_sub(start as u64);
        let count = file.by_ref().take(room).read_until(b'\n', &mut self.partial)?;
        self.position += count as u64;
        self.before.extend(&self.partial[start..]);
        self.before.drain(..self.before.len().saturating_sub(COMPARED));
        if self.partial.last() == Some(&b'\n') {
            self.partial.pop();
            return Ok(true);
        }
        if self.partial.len() as u64 > LONGEST_LINE {
            let problem = format!("{}: a line is longer than 16 MiB", self.path.display());
            return Err(io::Error::other(problem));
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn appended(lines: &[&str]) -> Appended {
        let lines = lines.iter().map(|&line| line.to_owned()).collect();
        Appended { restarted: false, lines, problem: None }
    }

    fn restarted(lines: &[&str]) -> Appended {
        Appended { restarted: true, ..appended(lines) }
    }

    struct Case {
        _folder: tempfile::TempDir,
        path: PathBuf,
        tail: Tail,
    }

    impl Case {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("lines");
            Self { _folder: folder, tail: Tail::new(path.clone()), path }
        }

        fn append(&self, bytes: impl AsRef<[u8]>) {
            let mut file =
                std::fs::OpenOptions::new().create(true).append(true).open(&self.path).unwrap();
            file.write_all(bytes.as_ref()).unwrap();
        }

        fn read(&mut self) -> Appended {
            self.tail.read()
        }
    }

    #[test]
    fn lines_are_read_once() {
        let mut case = Case::new();
        assert_eq!(case.read(), appended(&[])); // no file yet
        case.append("one\ntwo\n");
        assert_eq!(case.read(), appended(&["one", "two"]));
        assert_eq!(case.read(), appended(&[]));
        case.append("\nthree\n");
        assert_eq!(case.read(), appended(&["", "three"]));
    }

    #[test]
    fn a_line_is_waited_for_until_its_end() {
        let mut case = Case::new();
        case.append("one\nt");
        assert_eq!(case.read(), appended(&["one"]));
        assert!(case.tail.is_partial());
        case.append("w");
        assert_eq!(case.read(), appended(&[]));
        // The two bytes of a letter, one after the other.
        case.append([0xc3]);
        assert_eq!(case.read(), appended(&[]));
        case.append([0xb6, b'\n', b'x', 0xff, b'\n']);
        assert_eq!(case.read(), appended(&["twö", "x\u{fffd}"]));
        assert!(!case.tail.is_partial());
    }

    #[test]
    fn a_shorter_file_is_read_from_its_start() {
        let mut case = Case::new();
        case.append("one\ntwo\nthree\n");
        case.read();
        std::fs::OpenOptions::new().write(true).open(&case.path).unwrap().set_len(4).unwrap();
        assert_eq!(case.read(), restarted(&["one"]));
        case.append("2\n");
        assert_eq!(case.read(), appended(&["2"]));
    }

    #[test]
    fn a_file_that_was_cut_and_has_grown_since_is_read_from_its_start() {
        let mut case = Case::new();
        case.append("one\ntwo\n");
        case.read();
        std::fs::OpenOptions::new().write(true).open(&case.path).unwrap().set_len(4).unwrap();
        case.append("other\nlines\n");
        assert_eq!(case.read(), restarted(&["one", "other", "lines"]));
        // The same lines again are no change.
        std::fs::OpenOptions::new().write(true).open(&case.path).unwrap().set_len(10).unwrap();
        case.append("lines\nmore\n");
        assert_eq!(case.read(), appended(&["more"]));
    }

    #[test]
    fn another_file_in_its_place_is_read_from_its_start() {
        let mut case = Case::new();
        case.append("one\ntwo\n");
        case.read();
        let other = case.path.with_extension("other");
        std::fs::write(&other, "one\ntwo\nthree\n").unwrap();
        std::fs::rename(&other, &case.path).unwrap();
        assert_eq!(case.read(), restarted(&["one", "two", "three"]));
        std::fs::remove_file(&case.path).unwrap();
        assert_eq!(case.read(), restarted(&[]));
        assert_eq!(case.read(), appended(&[]));
        case.append("one\n");
        assert_eq!(case.read(), appended(&["one"]));
    }

    #[test]
    fn an_endless_line_is_named_and_not_kept() {
        let mut case = Case::new();
        case.append("one\n");
        case.append(vec![b'x'; LONGEST_LINE as usize + 1]);
        for lines in [&["one"][..], &[]] {
            let mut read = case.read();
            let problem = read.problem.take().unwrap();
            assert!(problem.ends_with("lines: a line is longer than 16 MiB"), "{problem}");
            assert_eq!(read, appended(lines));
            assert_eq!(case.tail.partial.len() as u64, LONGEST_LINE + 1);
            case.append("x");
        }
    }

    #[test]
    fn what_is_no_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let problem = Tail::new(folder.path().to_owned()).read().problem.unwrap();
        assert!(problem.ends_with(": not a file"), "{problem}");
    }
}
