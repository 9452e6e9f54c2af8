//! Which picture files belong to which part, class and client: found before any of them is opened.

use super::names::natural;
use crate::formats::Options;
use crate::paths::NotUtf8;
use crate::pictures::{Found, visible};
use crate::skipped::{FORMATS, Reason, Skipped};
use crate::{DataError, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The files of one part, with class numbers or without labels.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub files: Vec<PathBuf>,
    pub labels: Option<Vec<u16>>,
}

/// The files of the clients, as in [`crate::Unlabelled`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientFiles {
    pub files: Vec<PathBuf>,
    pub clients: Vec<Vec<u32>>,
    pub names: Vec<String>,
}

/// A data set of picture files. Whatever is wrong with it is collected, so that a user can correct
/// everything at once.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// What paths are relative to.
    pub root: PathBuf,
    /// What its author calls the labelled part that is not for testing.
    pub train_name: &'static str,
    pub classes: Vec<String>,
    pub train: Part,
    pub unlabelled: Option<ClientFiles>,
    pub test: Part,
    /// Files that are not pictures by their name.
    pub skipped: Vec<Skipped>,
    pub problems: Vec<DataError>,
}

impl Listing {
    /// One picture without a label.
    pub fn picture(file: &Path) -> Self {
        let train = Part { files: vec![file.to_owned()], labels: None };
        Self { train_name: "images", train, ..Default::default() }
    }

    /// One folder: class folders, or pictures without labels. It has no test part.
    pub fn images(folder: &Path) -> Self {
        let mut listing =
            Self { root: folder.to_owned(), train_name: "images", ..Default::default() };
        match entries(folder) {
            Ok(found) if found.folders.is_empty() => {
                listing.train.files = listing.some(folder, found);
            }
            Ok(_) => listing.add_classes(folder),
            Err(problem) => listing.problems.push(problem),
        }
        listing
    }

    /// `train/CLASS` with `test/CLASS` or `val/CLASS`: labelled pictures for server and clients.
    pub fn train_and_test(root: &Path, options: &Options) -> Self {
        let mut listing = Self { root: root.to_owned(), train_name: "train", ..Default::default() };
        listing.add_classes(&root.join("train"));
        listing.add_test(options, true);
        listing
    }

    /// `labelled/CLASS` for the server, `unlabelled` or `unlabelled/CLIENT` for the clients, and
    /// `test/CLASS` or `val/CLASS`.
    pub fn labelled_and_unlabelled(root: &Path, options: &Options) -> Self {
        let mut listing =
            Self { root: root.to_owned(), train_name: "labelled", ..Default::default() };
        listing.add_classes(&root.join("labelled"));
        listing.add_unlabelled(&root.join("unlabelled"));
        listing.add_test(options, false);
        listing
    }

    fn problem(&mut self, path: &Path, place: &str, expected: &str, found: &str) {
        self.problems.push(DataError::malformed(path, place, expected, found));
    }

    /// The pictures of a folder that must have some and no folder inside.
    fn some(&mut self, folder: &Path, found: Entries) -> Vec<PathBuf> {
        for inner in &found.folders {
            self.problem(inner, "path", "pictures and no folder inside this folder", "a folder");
        }
        let Found { pictures, others } = found.files;
        if pictures.is_empty() {
            self.problem(folder, "folder", &format!("{FORMATS} pictures"), &instead(&others));
        }
        self.skipped.extend(others);
        pictures
    }

    /// The classes in a folder: the names of its subfolders and their pictures.
    fn class_folders(&mut self, folder: &Path) -> Vec<(String, Vec<PathBuf>)> {
        let found = match entries(folder) {
            Ok(found) => found,
            Err(problem) => {
                self.problems.push(problem);
                return Vec::new();
            }
        };
        if found.folders.is_empty() {
            let what =
                if found.files.pictures.is_empty() { "none" } else { "pictures without a class" };
            self.problem(folder, "folder", "one folder of pictures per class", what);
        } else if let Some(picture) = found.files.pictures.first() {
            let expected = "only class folders, since there is one next to it";
            self.problem(picture, "file", expected, "a picture");
        }
        self.skipped.extend(found.files.others);
        let mut classes = Vec::new();
        for path in found.folders {
            match name(&path).and_then(|name| Ok((name, entries(&path)?))) {
                Ok((name, found)) => classes.push((name, self.some(&path, found))),
                Err(problem) => self.problems.push(problem),
            }
        }
        classes
    }

    fn add_classes(&mut self, folder: &Path) {
        let mut part = Part { files: Vec::new(), labels: Some(Vec::new()) };
        for (name, files) in self.class_folders(folder) {
            let Ok(number) = u16::try_from(self.classes.len()) else {
                self.problem(folder, "folders", "at most 65536 classes", "more");
                break;
            };
            self.classes.push(name);
            part.add(files, number);
        }
        self.train = part;
    }

    /// The test part: a folder, or a share of the labelled pictures.
    fn add_test(&mut self, options: &Options, all_classes: bool) {
        let folders = ["test", "val"].map(|name| self.root.join(name));
        let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
            return self
                .test_from_share(options, "a folder `test` or `val` with one folder per class");
        };
        if options.test_share.is_some() {
            self.problems.push(superfluous_share(&folder));
        }
        let mut part = Part { files: Vec::new(), labels: Some(Vec::new()) };
        let found = self.class_folders(&folder);
        for (name, files) in &found {
            match self.classes.iter().position(|class| class == name) {
                Some(class) => part.add(files.clone(), class as u16),
                None => {
                    let expected = format!("the classes of `{}`", self.train_name);
                    let what = format!("an additional class `{name}`");
                    self.problem(&folder, "test part", &expected, &what);
                }
            }
        }
        let missing = |class: &&String| found.iter().all(|(name, _)| name != *class);
        if all_classes && let Some(class) = self.classes.iter().find(missing).cloned() {
            let expected = format!("the classes of `{}`", self.train_name);
            self.problem(&folder, "test part", &expected, &format!("no class `{class}`"));
        }
        self.test = part;
    }

    fn add_unlabelled(&mut self, folder: &Path) {
        let found = if folder.is_dir() { entries(folder) } else { Ok(Entries::default()) };
        let found = match found {
            Ok(found) => found,
            Err(problem) => return self.problems.push(problem),
        };
        let mut part = ClientFiles::default();
        if found.folders.is_empty() && found.files.pictures.is_empty() {
            let expected = "the clients' pictures in it, or in one folder per client (to simulate \
                            clients with labelled pictures, rename `labelled` to `train`)";
            self.problem(folder, "folder", expected, &instead(&found.files.others));
        } else if !found.folders.is_empty()
            && let Some(picture) = found.files.pictures.first()
        {
            let expected = "only folders of clients, since there is one next to it";
            self.problem(picture, "file", expected, "a picture");
        }
        self.skipped.extend(found.files.others);
        part.files = found.files.pictures;
        let mut folders = Vec::new();
        for path in found.folders {
            match name(&path) {
                Ok(name) => folders.push((name, path)),
                Err(problem) => self.problems.push(problem),
            }
        }
        folders.sort_by(|(a, _), (b, _)| natural(a, b));
        for (name, path) in folders {
            match entries(&path) {
                Ok(found) => {
                    let files = self.some(&path, found);
                    let start = part.files.len() as u32;
                    part.clients.push((start..start + files.len() as u32).collect());
                    part.names.push(name);
                    part.files.extend(files);
                }
                Err(problem) => self.problems.push(problem),
            }
        }
        self.unlabelled = Some(part);
    }
}

impl Part {
    /// Adds pictures of a class.
    fn add(&mut self, files: Vec<PathBuf>, class: u16) {
        let labels = self.labels.get_or_insert_default();
        labels.resize(labels.len() + files.len(), class);
        self.files.extend(files);
    }
}

/// The problem of a share although there is a test part.
pub(crate) fn superfluous_share(test: &Path) -> DataError {
    DataError::Unusable(format!(
        "data.test_share is for data sets without a test part, but {} has one: remove the key",
        test.display()
    ))
}

/// What is in a folder, each sorted by name; hidden files and folders do not count.
#[derive(Default)]
struct Entries {
    folders: Vec<PathBuf>,
    files: Found,
}

fn entries(folder: &Path) -> Result<Entries> {
    let mut found = Entries::default();
    for path in visible(folder)? {
        if path.is_dir() {
            found.folders.push(path);
        } else {
            found.files.add(path);
        }
    }
    Ok(found)
}

/// What was found where pictures were expected.
fn instead(others: &[Skipped]) -> String {
    let unsupported = |file: &Skipped| match &file.reason {
        Reason::Unsupported { format } => Some(format.clone()),
        _ => None,
    };
    let formats: BTreeSet<String> = others.iter().filter_map(unsupported).collect();
    match formats.is_empty() {
        true => "none".to_owned(),
        false => {
            let formats: Vec<String> = formats.into_iter().collect();
            format!("only {} pictures: convert them", formats.join(" and "))
        }
    }
}

/// The name of a class or a client: that of its folder.
fn name(folder: &Path) -> Result<String> {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| DataError::NotUtf8(NotUtf8(folder.to_owned())))
}
