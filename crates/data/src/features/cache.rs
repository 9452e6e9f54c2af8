//! Features on disk, so that a picture passes a trunk once.
//!
//! One file per picture, under the hash of its content, in a folder per trunk and augmentation. Any problem with a file
//! costs the time to make its features again, never the run. When all files together reach the limit, the folders of
//! other trunks are removed, those unused for longest first; if that is not enough, nothing more is stored.

use super::Extracted;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The most bytes, unless `FEDANCHOR_CACHE_LIMIT` states another number: features of 400,000 pictures.
const LIMIT: u64 = 10 << 30;

/// The features of one trunk and augmentation.
pub(super) struct Cache {
    folder: Option<PathBuf>,
    /// Bytes of a thumbnail, and of the features of a picture.
    sizes: [usize; 2],
    /// Bytes that may still be written.
    left: AtomicU64,
}

impl Cache {
    /// Below `root`; without one, nothing is kept.
    pub(super) fn new(root: Option<&Path>, key: &str, sizes: [usize; 2]) -> Self {
        let given = std::env::var("FEDANCHOR_CACHE_LIMIT").ok();
        let limit = given.and_then(|text| text.parse().ok()).unwrap_or(LIMIT);
        Self::with_limit(root, key, sizes, limit)
    }

    pub(super) fn with_limit(
        root: Option<&Path>,
        key: &str,
        sizes: [usize; 2],
        limit: u64,
    ) -> Self {
        let mut left = 0;
        let folder = root.map(|root| {
            let root = root.with_file_name("features");
            let folder = root.join(key);
            // Its time of change says when it was last used.
            if fs::create_dir_all(&folder).is_ok()
                && let Ok(handle) = fs::File::open(&folder)
            {
                handle.set_modified(SystemTime::now()).ok();
            }
            left = limit.saturating_sub(make_room(&root, &folder, limit));
            folder
        });
        Self { folder, sizes, left: left.into() }
    }

    fn path(&self, key: &blake3::Hash) -> Option<PathBuf> {
        let name = key.to_hex();
        Some(self.folder.as_ref()?.join(&name[..2]).join(&name[2..]))
    }

    /// The features of a picture, if they are there and intact.
    pub(super) fn load(&self, key: &blake3::Hash) -> Option<Extracted> {
        let mut bytes = fs::read(self.path(key)?).ok()?;
        let [thumbnail, vectors] = self.sizes;
        if bytes.len() != thumbnail + vectors + blake3::OUT_LEN {
            return None;
        }
        let (content, hash) = bytes.split_at(thumbnail + vectors);
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        bytes.truncate(thumbnail + vectors);
        let vectors = bytes.split_off(thumbnail);
        Some(Extracted { thumbnail: bytes, vectors })
    }

    /// Stores them, if that is possible and the limit allows it.
    pub(super) fn store(&self, key: &blake3::Hash, extracted: &Extracted) {
        let Some(path) = self.path(key) else { return };
        let Extracted { thumbnail, vectors } = extracted;
        let length = (thumbnail.len() + vectors.len() + blake3::OUT_LEN) as u64;
        let take = |left: u64| left.checked_sub(length);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            write(&path, thumbnail, vectors).ok();
        }
    }
}

fn write(path: &Path, thumbnail: &[u8], vectors: &[u8]) -> std::io::Result<()> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(thumbnail).update(vectors);
    let hash = hasher.finalize();
    fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
    // Several runs, and several threads with equal pictures, may write the same.
    let thread = rayon::current_thread_index().unwrap_or(usize::MAX);
    let temporary = path.with_extension(format!("{}-{thread}", std::process::id()));
    let written = fs::write(&temporary, [thumbnail, vectors, hash.as_bytes()].concat())
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        fs::remove_file(&temporary).ok(); // a full disk
    }
    written
}

/// Removes the folders of other trunks while all files have more bytes than the limit; returns what is left.
fn make_room(root: &Path, own: &Path, limit: u64) -> u64 {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut folders: Vec<(SystemTime, PathBuf, u64)> = entries
        .filter_map(|entry| {
            let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok()?;
            Some((changed, entry.path(), size(&entry.path())))
        })
        .collect();
    folders.sort();
    let mut total = folders.iter().map(|(_, _, size)| size).sum::<u64>();
    for (_, folder, size) in folders {
        if total >= limit && folder != own && fs::remove_dir_all(&folder).is_ok() {
            total -= size;
        }
    }
    total
}

/// The bytes of all files below a folder.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(if metadata.is_dir() { size(&entry.path()) } else { metadata.len() })
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_makes_room_by_dropping_other_trunks() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("pictures");
        let extracted = || Extracted { thumbnail: vec![1; 40], vectors: vec![2; 28] };
        let cache = |key: &str, limit| Cache::with_limit(Some(&root), key, [40, 28], limit);
        let keys: Vec<blake3::Hash> = (0..5u8).map(|byte| blake3::hash(&[byte])).collect();
        let old = cache("old", 250);
        keys.iter().for_each(|key| old.store(key, &extracted())); // 100 bytes each: two fit
        let kept = keys.iter().filter(|key| old.load(key).is_some()).count();
        assert_eq!(kept, 2);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let new = cache("new", 200);
        assert!(old.load(&keys[0]).is_none() && old.load(&keys[1]).is_none());
        keys.iter().for_each(|key| new.store(key, &extracted()));
        assert_eq!(keys.iter().filter(|key| new.load(key).is_some()).count(), 2);
        // Its own folder is never dropped.
        let again = cache("new", 200);
        assert!(again.load(&keys[0]).is_some());
    }
}
