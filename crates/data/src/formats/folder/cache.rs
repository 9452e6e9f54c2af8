//! A cache of decoded pictures, so that photographs are not decoded at every start.
//!
//! One file per part of a data set, under a name that depends on everything its pixels depend on:
//! the files with their lengths and modification times, the size and the fit. Changed pictures give
//! another name, so nothing is ever updated.

use super::decode::Decoded;
use crate::cache::{self, Cache};
use crate::formats::Options;
use crate::{Reason, Shape};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The version of the layout and of the decoder: to be raised whenever decoding gives other pixels.
const VERSION: u32 = 2;

/// The start of a file, after its length as 4 bytes. The pixels follow, then the hash of all.
#[derive(Serialize, Deserialize)]
struct Head {
    shape: Shape,
    unreadable: Vec<(usize, Reason)>,
}

/// The kind of content.
const PICTURES: &str = "pictures";

/// The cache file of a part.
pub(super) struct CacheFile<'a> {
    cache: &'a Cache,
    path: PathBuf,
    files: usize,
}

impl<'a> CacheFile<'a> {
    /// `None` without a cache, or if the metadata of a file cannot be read.
    pub fn new(root: &Path, files: &[PathBuf], options: &'a Options) -> Option<Self> {
        let is_used = !files.is_empty() && options.features.is_none(); // features have a cache of their own
        let cache = options.cache.as_ref().filter(|_| is_used)?;
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(&VERSION.to_le_bytes());
        add(&options.size.map_or(0, |size| size as u64).to_le_bytes());
        add(options.fit.to_string().as_bytes());
        // Pictures from archives may have the same names, lengths and times as those of other folders.
        let here = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        add(fs::canonicalize(here).ok()?.as_os_str().as_encoded_bytes());
        for file in files {
            let metadata = fs::metadata(file).ok()?;
            let changed = metadata.modified().ok()?;
            let after = changed.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
            add(file.strip_prefix(root).unwrap_or(file).as_os_str().as_encoded_bytes());
            add(&metadata.len().to_le_bytes());
            add(&after.to_le_bytes());
        }
        let name = format!("{}.pixels", hasher.finalize().to_hex());
        let path = cache.folder.join(PICTURES).join(name);
        Some(Self { cache, path, files: files.len() })
    }

    /// The pictures, if the file exists and is intact.
    pub fn load(&self) -> Option<Decoded> {
        let mut bytes = fedanchor_disk::read(&self.path, fedanchor_disk::MAX_FILE).ok()?;
        let content = bytes.len().checked_sub(blake3::OUT_LEN)?;
        let (content, hash) = bytes.split_at(content);
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        let length = u32::from_le_bytes(*content.first_chunk()?) as usize;
        let start = 4 + length;
        let Head { shape, unreadable } = serde_json::from_slice(content.get(4..start)?).ok()?;
        let pixels = content.len() - start;
        if pixels != (self.files.checked_sub(unreadable.len())?) * shape.bytes() {
            return None;
        }
        bytes.truncate(start + pixels);
        bytes.drain(..start);
        cache::touch(&self.path);
        Some(Decoded { shape, pixels: bytes, features: None, unreadable })
    }

    /// Stores pictures, if that is possible.
    pub fn store(&self, decoded: &Decoded) {
        // Permissions may change without the modification time.
        let not_opened = |bad: &(usize, Reason)| matches!(bad.1, Reason::NotOpened { .. });
        if !decoded.unreadable.iter().any(not_opened) {
            self.try_store(decoded).ok();
        }
    }

    fn try_store(&self, decoded: &Decoded) -> std::io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder)?;
        let Decoded { shape, pixels, unreadable, .. } = decoded;
        let head = Head { shape: *shape, unreadable: unreadable.clone() };
        let head = serde_json::to_vec(&head)?;
        let length = (head.len() as u32).to_le_bytes();
        let bytes = (length.len() + head.len() + pixels.len() + blake3::OUT_LEN) as u64;
        if bytes > self.cache.limit || self.cache.make_room(PICTURES, &self.path, bytes) < bytes {
            return Ok(());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&length).update(&head).update(pixels);
        let hash = hasher.finalize();
        // Several runs may start at the same time.
        let temporary = self.path.with_extension(std::process::id().to_string());
        fedanchor_disk::write(&temporary, &[&length, &head, pixels, hash.as_bytes()])?;
        fs::rename(&temporary, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use crate::formats::{Options, open};
    use crate::{Cache, DataSet, Fit};
    use image::{GrayImage, Luma};
    use std::fs;
    use std::path::Path;

    /// Writes a bitmap, all of which have the same length, with a fixed time of change.
    fn bitmap(path: &Path, value: u8, seconds: u64) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        GrayImage::from_pixel(4, 4, Luma([value])).save(path).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        file.set_modified(time).unwrap();
    }

    fn first(set: &DataSet) -> [u8; 3] {
        let unlabelled = set.unlabelled.as_ref().unwrap();
        [set.train.pixels[0], set.test.pixels[0], unlabelled.images.pixels[0]]
    }

    #[test]
    fn pictures_are_decoded_once_and_again_when_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let place = Cache::new(folder.path().join("cache"));
        let cache = place.folder.join("pictures");
        let data = folder.path().join("data");
        let files = ["labelled/cat/a.bmp", "test/cat/a.bmp", "unlabelled/a.bmp"]
            .map(|name| data.join(name));
        files.iter().for_each(|file| bitmap(file, 10, 1000));
        let options = Options { cache: Some(place), ..Options::default() };
        assert_eq!(first(&open(&data, &options).unwrap()), [10; 3]);
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 3);
        // Other content with the same length and time: what was kept is used, nothing is decoded.
        files.iter().for_each(|file| bitmap(file, 20, 1000));
        assert_eq!(first(&open(&data, &options).unwrap()), [10; 3]);
        assert_eq!(first(&open(&data, &Options::default()).unwrap()), [20; 3]);
        // A changed time, size or fit means another entry.
        bitmap(&files[0], 30, 2000);
        assert_eq!(first(&open(&data, &options).unwrap()), [30, 10, 10]);
        let cropped = Options { fit: Fit::Crop, ..options.clone() };
        assert_eq!(first(&open(&data, &cropped).unwrap()), [30, 20, 20]);
        let smaller = Options { size: Some(2), ..options.clone() };
        assert_eq!(open(&data, &smaller).unwrap().train.shape.side, 2);
        // Damage in any entry: decoded again, and kept again.
        for entry in fs::read_dir(&cache).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        }
        assert_eq!(first(&open(&data, &options).unwrap()), [30, 20, 20]);
        assert!(fs::read_dir(&cache).unwrap().all(|entry| {
            entry.unwrap().path().extension().is_some_and(|extension| extension == "pixels")
        }));
        // The same files in another folder are other files.
        let moved = folder.path().join("moved");
        fs::rename(&data, &moved).unwrap();
        bitmap(&moved.join("labelled/cat/a.bmp"), 40, 2000);
        assert_eq!(first(&open(&moved, &options).unwrap()), [40, 20, 20]);
    }

    #[test]
    fn the_pictures_that_were_unused_for_longest_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let set = |name: &str, limit: u64| {
            let data = folder.path().join(name);
            bitmap(&data.join("train/cat/a.bmp"), 10, 1000);
            bitmap(&data.join("test/cat/a.bmp"), 10, 1000);
            let cache = Some(Cache { limit, ..Cache::new(&cache) });
            let options = Options { cache, ..Options::default() };
            open(&data, &options).unwrap();
            let mut all: Vec<_> = fs::read_dir(cache_of(&options)).unwrap().flatten().collect();
            all.sort_by_key(|entry| entry.metadata().unwrap().modified().unwrap());
            all.into_iter().map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let first = set("first", 1 << 20);
        let [one, _] = &first[..] else { panic!("{first:?}") };
        let limit = 4 * fs::metadata(one).unwrap().len();
        let both = set("second", limit);
        assert_eq!(both.len(), 4);
        set("first", limit); // used again
        let last = set("third", limit);
        assert_eq!(last.len(), 4);
        assert!(first.iter().all(|file| last.contains(file)), "{first:?} {last:?}");
        assert!(set("fourth", 10).len() == 4, "a part that is larger than the limit is not kept");
    }

    fn cache_of(options: &Options) -> std::path::PathBuf {
        options.cache.as_ref().unwrap().folder.join("pictures")
    }

    #[test]
    fn unreadable_pictures_are_remembered_too() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        for name in ["train/cat/a.bmp", "train/cat/b.bmp", "test/cat/a.bmp"] {
            bitmap(&data.join(name), 10, 1000);
        }
        fs::write(data.join("train/cat/a.jpg"), "a text").unwrap();
        let cache = Some(Cache::new(folder.path().join("cache")));
        let options = Options { cache, skip_unreadable: true, ..Options::default() };
        let once = open(&data, &options).unwrap();
        let again = open(&data, &options).unwrap();
        assert_eq!((once.train, once.skipped), (again.train, again.skipped));
        let refuse = Options { skip_unreadable: false, ..options };
        assert!(open(&data, &refuse).unwrap_err().to_string().contains("a.jpg: unreadable"));
    }

    #[test]
    fn a_cache_that_cannot_be_written_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        for name in ["train/cat/a.bmp", "test/cat/a.bmp"] {
            bitmap(&data.join(name), 10, 1000);
        }
        let file = folder.path().join("file");
        fs::write(&file, "not a folder").unwrap();
        let options = Options { cache: Some(Cache::new(file.join("cache"))), ..Options::default() };
        assert_eq!(open(&data, &options).unwrap().train.len(), 1);
    }
}
