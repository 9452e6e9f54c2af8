//! Paths as text. The name of a file may be any bytes; what stands in a table, a CSV file or JSON is UTF-8.

use serde::Serializer;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A path cannot stand in a file of text and lead back to its file.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: the path is not UTF-8, so no table or text file can hold it: rename the file or its folder",
    shown(.0)
)]
pub struct NotUtf8(pub PathBuf);

/// A path as text that leads back to the file, or an error that names it.
pub fn text(path: &Path) -> Result<&str, NotUtf8> {
    path.to_str().ok_or_else(|| NotUtf8(path.to_owned()))
}

/// A path for people, also one that is not UTF-8: bytes that are not text become `\xE9` and the like.
pub fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    text
}

/// Writes a path as [`shown`]: serde's own way fails for a name that is not UTF-8.
pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown(path))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn bytes_that_are_no_text_are_named() {
        let path = Path::new(OsStr::from_bytes(b"photos/caf\xe9 \xc3\xa9.png"));
        assert_eq!(shown(path), "photos/caf\\xE9 é.png");
        let error = text(path).unwrap_err().to_string();
        assert!(error.starts_with("photos/caf\\xE9 é.png: the path is not UTF-8"), "{error}");
        assert_eq!(text(Path::new("é.png")).unwrap(), "é.png");
    }
}
