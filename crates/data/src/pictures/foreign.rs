//! Picture formats that are recognised but not read, so that a message can name them.

use std::path::Path;

/// What cameras write instead of or beside a picture.
pub(super) const RAW: &str = "camera raw";

/// Formats by the endings of their names.
const ENDINGS: [(&str, &[&str]); 5] = [
    ("HEIC", &["heic", "heif"]),
    ("AVIF", &["avif"]),
    ("JPEG XL", &["jxl"]),
    ("JPEG 2000", &["jp2", "j2k"]),
    (RAW, &["dng", "cr2", "cr3", "nef", "arw", "orf", "raf", "rw2"]),
];

/// The format of a file by its name.
pub(super) fn by_name(path: &Path) -> Option<&'static str> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    let found = ENDINGS.iter().find(|(_, endings)| endings.contains(&ending.as_str()));
    found.map(|(format, _)| *format)
}

/// The format of a file that begins with these bytes.
pub(super) fn by_content(start: &[u8]) -> Option<&'static str> {
    match start {
        [b'I', b'I', b'*', 0, _, _, _, _, b'C', b'R', ..] => Some(RAW),
        [b'I', b'I', b'+', 0, ..] | [b'M', b'M', 0, b'+', ..] => Some("BigTIFF"),
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => Some("JPEG XL"),
        [0xff, 0x4f, 0xff, 0x51, ..] | [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] => {
            Some("JPEG 2000")
        }
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => match brand.first_chunk()? {
            b"avif" | b"avis" => Some("AVIF"),
            b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1" => {
                Some("HEIC")
            }
            b"crx " => Some(RAW),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_by_name_and_by_content() {
        for (name, format) in [
            ("scan.TIF", None),
            ("IMG_0001.HEIC", Some("HEIC")),
            ("a.avif", Some("AVIF")),
            ("a.jxl", Some("JPEG XL")),
            ("a.NEF", Some("camera raw")),
            ("a.png", None),
            ("tif", None),
        ] {
            assert_eq!(by_name(Path::new(name)), format, "{name}");
        }
        for (start, format) in [
            (&b"II*\0\x08\0\0\0\0\0"[..], None),
            (b"II*\0\x10\0\0\0CR\x02", Some("camera raw")),
            (b"II+\0\x08\0\0\0", Some("BigTIFF")),
            (b"MM\0+\0\x08\0\0", Some("BigTIFF")),
            (b"\0\0\0\x18ftypheic\0\0\0\0", Some("HEIC")),
            (b"\0\0\0\x1cftypavif", Some("AVIF")),
            (b"\xff\x0a\x12", Some("JPEG XL")),
            (b"\0\0\0\x0cJXL \r\n\x87\n", Some("JPEG XL")),
            (b"\0\0\0\x0cjP  \r\n\x87\n", Some("JPEG 2000")),
            (b"\0\0\0\x18ftypmp42", None),
            (b"\0\0\0\x18ftyp", None),
            (b"\xff\xd8\xff\xe0", None),
            (b"", None),
        ] {
            assert_eq!(by_content(start), format, "{start:?}");
        }
    }
}
