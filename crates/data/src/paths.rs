//! Paths as text. The name of a file may be any bytes; tables, CSV files and JSON hold UTF-8.

use serde::Serializer;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A path that no text file can hold, so that it leads back to its file.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: the path is not UTF-8, so no table or text file can hold it: rename the file or its folder",
    in_message(.0)
)]
pub struct NotUtf8(pub PathBuf);

/// A path as text that leads back to the file, or an error that names it.
pub fn text(path: &Path) -> Result<&str, NotUtf8> {
    path.to_str().ok_or_else(|| NotUtf8(path.to_owned()))
}

/// A path for people: bytes that are not UTF-8 become `\xE9` and the like.
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

/// A path in a message.
pub fn in_message(path: &Path) -> String {
    escaped(&shown(path))
}

/// An untrusted name in a message: line breaks and other control characters become `\n` and the like, so that the name
/// cannot pass for another message.
pub fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter.is_control() {
            true => text.extend(letter.escape_default()),
            false => text.push(letter),
        }
    }
    text
}

/// Writes a path as [`shown`]: serde's own way fails for a name that is not UTF-8.
pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn bytes_that_are_not_text_are_named() {
        let path = Path::new(OsStr::from_bytes(b"photos/caf\xe9 \xc3\xa9.png"));
        assert_eq!(shown(path), "photos/caf\\xE9 é.png");
        let error = text(path).unwrap_err().to_string();
        assert!(error.starts_with("photos/caf\\xE9 é.png: the path is not UTF-8"), "{error}");
        assert_eq!(text(Path::new("é.png")).unwrap(), "é.png");
    }

    #[test]
    fn a_name_in_a_message_stays_on_its_line() {
        let path = Path::new(OsStr::from_bytes(b"a\nerror: b\r\x1b[2J\xe9.png"));
        assert_eq!(in_message(path), "a\\nerror: b\\r\\u{1b}[2J\\xE9.png");
        assert_eq!(escaped("größe 100 %"), "größe 100 %");
    }
}
