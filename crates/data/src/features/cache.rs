//! Features on disk, so that a picture passes a trunk once.
//!
//! One file per picture, under the hash of its content, in a folder per trunk and augmentation. When all files together
//! reach the limit, the folders of other trunks are removed; if that is not enough, nothing more is stored.

use super::Extracted;
use crate::cache::{self, Cache};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The features of one trunk and augmentation.
pub(super) struct FeatureCache {
    folder: Option<PathBuf>,
    /// Bytes of a thumbnail, and of the features of a picture.
    sizes: [usize; 2],
    /// Bytes that may still be written.
    left: AtomicU64,
}

impl FeatureCache {
    /// Without a cache, nothing is kept.
    pub(super) fn new(cache: Option<&Cache>, key: &str, sizes: [usize; 2]) -> Self {
        let mut left = 0;
        let folder = cache.map(|cache| {
            let folder = cache.folder.join("features").join(key);
            if fs::create_dir_all(&folder).is_ok() {
                cache::touch(&folder);
            }
            left = cache.make_room("features", &folder, sizes.iter().sum::<usize>() as u64);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_makes_room_by_dropping_other_trunks() {
        let place = tempfile::tempdir().unwrap();
        let extracted = || Extracted { thumbnail: vec![1; 40], vectors: vec![2; 28] };
        let cache = |key: &str, limit| {
            let cache = Cache { folder: place.path().to_owned(), limit };
            FeatureCache::new(Some(&cache), key, [40, 28])
        };
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
