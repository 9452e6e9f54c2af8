//! Faults for tests: a call that fails, and a power cut.

use crate::call::Call;
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that is watched until this is dropped. Calls elsewhere are not affected, so tests can run in parallel.
#[derive(Debug)]
pub struct Injector {
    folder: PathBuf,
}

struct Watched {
    folder: PathBuf,
    calls: Vec<Done>,
    /// The index of the call that fails, and the number of the error.
    fails: Option<(usize, i32)>,
    start: Disk,
}

/// A call that was made or failed.
struct Done {
    name: String,
    /// The effect on the disk, unless it failed.
    change: Option<Change>,
}

type Change = Box<dyn Fn(&mut Disk) + Send>;

impl Injector {
    /// Watches all calls below a folder.
    pub fn new(folder: &Path) -> Result<Self> {
        let (folder, calls) = (folder.to_owned(), Vec::new());
        let start = Disk::read(&folder)?;
        watched().push(Watched { folder: folder.clone(), calls, fails: None, start });
        Ok(Self { folder })
    }

    /// Makes the call with index `at` fail with an error of the operating system, such as 5 for EIO; later ones
    /// succeed again.
    pub fn fail(&self, at: usize, error: i32) {
        self.with(|watched| watched.fails = Some((at, error)));
    }

    /// The calls so far, as text.
    pub fn calls(&self) -> Vec<String> {
        self.with(|watched| watched.calls.iter().map(|call| call.name.clone()).collect())
    }

    /// Writes into `copy` what is sure to survive a power cut after this number of calls: names only if their folder was
    /// synced, and content as of the last sync of its file.
    pub fn power_cut(&self, calls: usize, copy: &Path) -> Result<()> {
        let disk = self.with(|watched| {
            let mut disk = watched.start.clone();
            let changes = watched.calls.iter().take(calls);
            changes.filter_map(|call| call.change.as_ref()).for_each(|change| change(&mut disk));
            disk
        });
        disk.write_survivors(&self.folder, copy)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Watched) -> T) -> T {
        let mut all = watched();
        let mine = all.iter_mut().find(|watched| watched.folder == self.folder);
        act(mine.expect("watched until the injector is dropped"))
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        watched().retain(|watched| watched.folder != self.folder);
    }
}

/// The error that a test injects here, if any.
pub(crate) fn before(call: Call) -> Result<()> {
    let (act, path) = parts(call);
    for watched in watched().iter_mut().filter(|watched| path.starts_with(&watched.folder)) {
        if let Some((at, error)) = watched.fails
            && at == watched.calls.len()
        {
            let name = format!("{act} {} fails", path.display());
            watched.calls.push(Done { name, change: None });
            return Err(Error::from_raw_os_error(error));
        }
    }
    Ok(())
}

/// Records a call that succeeded.
pub(crate) fn after(call: Call) {
    let (act, path) = parts(call);
    for watched in watched().iter_mut().filter(|watched| path.starts_with(&watched.folder)) {
        let name = format!("{act} {}", path.display());
        watched.calls.push(Done { name, change: Some(change(call)) });
    }
}

/// What a call does, and to which path.
fn parts(call: Call<'_>) -> (&'static str, &Path) {
    match call {
        Call::Read(path) => ("read", path),
        Call::List(path) => ("list", path),
        Call::Create(path) => ("create", path),
        Call::Append(path, _) => ("append to", path),
        Call::Truncate(path, _) => ("truncate", path),
        Call::Sync(path) => ("sync", path),
        Call::Rename(_, path) => ("rename to", path),
        Call::Remove(path) => ("remove", path),
        Call::CreateFolder(path) => ("create folder", path),
        Call::SyncFolder(path) => ("sync folder", path),
    }
}

/// The effect of a call that succeeded.
fn change(call: Call) -> Change {
    let path = parts(call).1.to_owned();
    match call {
        Call::Read(_) | Call::List(_) => Box::new(|_| ()),
        Call::Create(_) => Box::new(move |disk| {
            disk.names.insert(path.clone(), Some(disk.contents.len()));
            disk.contents.push(Content::default());
        }),
        Call::Append(_, bytes) => {
            let bytes = bytes.to_owned();
            Box::new(move |disk| disk.content(&path).now.extend_from_slice(&bytes))
        }
        Call::Truncate(_, length) => {
            Box::new(move |disk| disk.content(&path).now.resize(length as usize, 0))
        }
        Call::Sync(_) => Box::new(move |disk| {
            let content = disk.content(&path);
            content.synced.clone_from(&content.now);
        }),
        Call::Rename(from, _) => {
            let from = from.to_owned();
            Box::new(move |disk| {
                if let Some(content) = disk.names.remove(&from) {
                    disk.names.insert(path.clone(), content);
                }
            })
        }
        Call::Remove(_) => Box::new(move |disk| _ = disk.names.remove(&path)),
        Call::CreateFolder(_) => Box::new(move |disk| _ = disk.names.insert(path.clone(), None)),
        Call::SyncFolder(_) => Box::new(move |disk| disk.sync_folder(&path)),
    }
}

/// A file's content, and the part of it that is on the disk.
#[derive(Debug, Clone, Default)]
struct Content {
    now: Vec<u8>,
    synced: Vec<u8>,
}

/// A folder as the operating system shows it, and the part of it that is on the disk.
#[derive(Debug, Clone, Default)]
struct Disk {
    contents: Vec<Content>,
    /// The index of each file's content; folders have none.
    names: BTreeMap<PathBuf, Option<usize>>,
    synced_names: BTreeMap<PathBuf, Option<usize>>,
}

impl Disk {
    /// An existing folder, which is on the disk.
    fn read(folder: &Path) -> Result<Self> {
        let mut disk = Self::default();
        let mut waiting = vec![folder.to_owned()];
        while let Some(folder) = waiting.pop() {
            for entry in fs_err::read_dir(&folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    waiting.push(path);
                } else {
                    let now = fs_err::read(&path)?;
                    disk.names.insert(path, Some(disk.contents.len()));
                    disk.contents.push(Content { synced: now.clone(), now });
                }
            }
            disk.names.insert(folder, None);
        }
        disk.synced_names = disk.names.clone();
        Ok(disk)
    }

    fn sync_folder(&mut self, folder: &Path) {
        let inside = |path: &Path| path.parent() == Some(folder);
        self.synced_names.retain(|path, _| !inside(path));
        let names = self.names.iter().filter(|(path, _)| inside(path));
        self.synced_names.extend(names.map(|(path, &content)| (path.clone(), content)));
    }

    fn content(&mut self, path: &Path) -> &mut Content {
        let index = self.names.get(path).copied().flatten();
        &mut self.contents[index.expect("a file that was opened")]
    }

    fn write_survivors(&self, root: &Path, copy: &Path) -> Result<()> {
        let place = |path: &Path| copy.join(path.strip_prefix(root).expect("below the root"));
        // A folder comes before what is in it.
        for (path, content) in &self.synced_names {
            let at = place(path);
            match content {
                _ if path != root && !at.parent().is_some_and(Path::is_dir) => {}
                None => fs_err::create_dir_all(at)?,
                Some(content) => fs_err::write(at, &self.contents[*content].synced)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Appended, create_folder, read, remove, write};

    fn survivors(injector: &Injector, calls: usize) -> Vec<(String, Vec<u8>)> {
        let copy = tempfile::tempdir().unwrap();
        injector.power_cut(calls, copy.path()).unwrap();
        let mut found = Vec::new();
        let mut waiting = vec![copy.path().to_owned()];
        while let Some(folder) = waiting.pop() {
            for path in crate::list(&folder).unwrap() {
                let name = path.strip_prefix(copy.path()).unwrap().display().to_string();
                if path.is_dir() {
                    waiting.push(path);
                } else {
                    found.push((name, fs_err::read(path).unwrap()));
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_written_file_survives_whole_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let injector = Injector::new(folder.path()).unwrap();
        let path = folder.path().join("new/file");
        create_folder(&folder.path().join("new")).unwrap();
        let before = injector.calls().len();
        write(&path, &[b"one"]).unwrap();
        write(&path, &[b"two"]).unwrap();
        let all = injector.calls().len();
        let states: Vec<_> = (0..=all).map(|calls| survivors(&injector, calls)).collect();
        assert!(states[before].is_empty());
        for state in &states {
            let expected =
                [&b"one"[..], b"two"].map(|text| vec![("new/file".to_owned(), text.to_vec())]);
            assert!(state.is_empty() || expected.contains(state), "{state:?}");
        }
        assert_eq!(states[all][0].1, b"two");
    }

    #[test]
    fn lines_survive_once_they_are_synced() {
        let folder = tempfile::tempdir().unwrap();
        let injector = Injector::new(folder.path()).unwrap();
        let file = Appended::create(&folder.path().join("lines")).unwrap();
        file.append(b"a\n").unwrap();
        file.sync().unwrap();
        file.append(b"b\n").unwrap();
        let calls = injector.calls().len();
        assert_eq!(survivors(&injector, calls), [("lines".to_owned(), b"a\n".to_vec())]);
        file.truncate(1).unwrap();
        file.sync().unwrap();
        assert_eq!(survivors(&injector, calls + 2), [("lines".to_owned(), b"a".to_vec())]);
        remove(&folder.path().join("lines")).unwrap();
        assert_eq!(survivors(&injector, calls + 3).len(), 1, "the folder was not synced");
    }

    #[test]
    fn the_call_that_is_named_fails_and_leaves_nothing_aside() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, &[b"old"]).unwrap();
        let injector = Injector::new(folder.path()).unwrap();
        write(&path, &[b"new"]).unwrap();
        let calls = injector.calls().len();
        for at in calls..2 * calls {
            injector.fail(injector.calls().len() + at - calls, 5);
            write(&other.path().join("file"), &[b"elsewhere"]).unwrap();
            let error = write(&path, &[b"newer"]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(5));
            let content = read(&path, 10).unwrap();
            assert!(content == b"new" || content == b"newer");
            assert!(!folder.path().join("file.part").exists());
        }
    }
}
