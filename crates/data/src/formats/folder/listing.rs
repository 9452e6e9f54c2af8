//! Which picture files belong to which part, class and client: found before any of them is opened.

use crate::error::malformed;
use crate::formats::Options;
use crate::image_set::by_class;
use crate::names::{self, Alike};
use crate::paths::NotUtf8;
use crate::pictures::{Found, visible};
use crate::skipped::{FORMATS, Reason, Skipped};
use crate::stream::SERVER;
use crate::{DataError, Purpose, Result, Stream};
use rand::seq::SliceRandom;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The files of one part, with class numbers or without labels, and of its clients, as in [`crate::Unlabelled`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub files: Vec<PathBuf>,
    pub labels: Option<Vec<u16>>,
    pub clients: Vec<Vec<u32>>,
    pub client_names: Vec<String>,
}

/// A data set of picture files. All its problems are collected, so that a user can correct
/// everything at once.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The folder that paths are relative to.
    pub root: PathBuf,
    /// The name of the labelled part that is not for testing.
    pub train_name: &'static str,
    pub classes: Vec<String>,
    pub train: Part,
    pub unlabelled: Option<Part>,
    pub test: Part,
    /// Files that are not pictures by their name.
    pub skipped: Vec<Skipped>,
    pub problems: Vec<DataError>,
}

/// The names of the two folders, in British and in American spelling.
const SPELLINGS: [[&str; 2]; 2] = [["labelled", "labeled"], ["unlabelled", "unlabeled"]];

/// The names of the folders of labelled and of unlabelled pictures, as they are spelled here. A missing folder has the
/// spelling of the other.
fn spelled(root: &Path) -> [&'static str; 2] {
    let exists = |name: &str| root.join(name).is_dir();
    let is_american = SPELLINGS.iter().all(|[british, _]| !exists(british));
    SPELLINGS.map(|[british, american]| {
        if is_american || exists(american) && !exists(british) { american } else { british }
    })
}

/// Whether one of the folders of labelled and of unlabelled pictures is here.
pub(crate) fn has_labelled_or_unlabelled(root: &Path) -> bool {
    SPELLINGS.as_flattened().iter().any(|name| root.join(name).is_dir())
}

impl Listing {
    pub(super) fn new(root: &Path, train_name: &'static str) -> Self {
        Self { root: root.to_owned(), train_name, ..Self::default() }
    }

    /// One picture without a label.
    pub fn picture(file: &Path) -> Self {
        let train = Part { files: vec![file.to_owned()], ..Part::default() };
        Self { train, ..Self::new(Path::new(""), "images") }
    }

    /// One folder: class folders, or pictures without labels. It has no test part.
    pub fn images(folder: &Path) -> Self {
        let mut listing = Self::new(folder, "images");
        match listing.entries(folder) {
            Some(found) if found.folders.is_empty() => {
                listing.train.files = listing.pictures_in(folder, found.files);
            }
            Some(_) => listing.add_classes(folder),
            None => {}
        }
        listing
    }

    /// All pictures below a folder, without labels.
    pub fn all_below(folder: &Path) -> Self {
        let mut listing = Self::new(folder, "images");
        match Found::below(folder) {
            Ok(found) => listing.train.files = listing.pictures_in(folder, found),
            Err(problem) => listing.problems.push(problem),
        }
        listing
    }

    /// `train/CLASS` with `test/CLASS` or `val/CLASS`: labelled pictures for server and clients.
    pub fn train_and_test(root: &Path, options: &Options) -> Self {
        let mut listing = Self::new(root, "train");
        listing.add_classes(&root.join("train"));
        listing.add_test(options, "train", true);
        listing
    }

    /// `labelled/CLASS` for the server, `unlabelled` or `unlabelled/CLIENT` for the clients, and
    /// `test/CLASS` or `val/CLASS`.
    pub fn labelled_and_unlabelled(root: &Path, options: &Options) -> Self {
        let mut listing = Self::new(root, "labelled");
        let [labelled, unlabelled] = spelled(root);
        for [british, american] in SPELLINGS {
            if root.join(british).is_dir() && root.join(american).is_dir() {
                let expected = format!("one of `{british}` and `{american}`");
                listing.problem(root, "folders", &expected, "both: move the pictures into one");
            }
        }
        listing.add_classes(&root.join(labelled));
        listing.add_unlabelled(&root.join(unlabelled), labelled);
        listing.add_test(options, labelled, false);
        listing
    }

    pub(super) fn problem(&mut self, path: &Path, place: &str, expected: &str, found: &str) {
        self.problems.push(DataError::malformed(path, place, expected, found));
    }

    /// The content of a folder, or a problem.
    fn entries(&mut self, folder: &Path) -> Option<Entries> {
        entries(folder).map_err(|problem| self.problems.push(problem)).ok()
    }

    /// The pictures of a folder that must have some.
    fn pictures_in(&mut self, folder: &Path, found: Found) -> Vec<PathBuf> {
        let Found { pictures, others } = found;
        if pictures.is_empty() {
            self.problem(folder, "folder", &format!("{FORMATS} pictures"), &instead(&others));
        }
        self.skipped.extend(others);
        pictures
    }

    /// The names of these folders, and the pictures that a function finds in them.
    fn by_name(
        &mut self,
        folders: Vec<PathBuf>,
        find: fn(&Path) -> Result<Found>,
    ) -> Vec<(String, Vec<PathBuf>)> {
        let mut named = Vec::with_capacity(folders.len());
        for path in folders {
            match name(&path).and_then(|name| Ok((name, find(&path)?))) {
                Ok((name, found)) => named.push((name, self.pictures_in(&path, found))),
                Err(problem) => self.problems.push(problem),
            }
        }
        named
    }

    /// The classes in a folder: the names of its subfolders and their pictures.
    fn class_folders(&mut self, folder: &Path) -> Vec<(String, Vec<PathBuf>)> {
        let Some(Entries { folders, files }) = self.entries(folder) else { return Vec::new() };
        let picture = files.pictures.first();
        if folders.is_empty() {
            let found = if picture.is_none() { "none" } else { "pictures without a class" };
            self.problem(folder, "folder", "one folder of pictures per class", found);
        } else if let Some(picture) = picture {
            let expected = "only class folders, since there is one next to it";
            self.problem(picture, "file", expected, "a picture");
        }
        self.skipped.extend(files.others);
        let named = self.by_name(folders, only_files);
        let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
        for ([one, other], how) in names::alike_among(&names) {
            if how == Alike::Form {
                let found = format!(
                    "`{one}` and `{other}`, which differ only {how}: move the pictures into one"
                );
                self.problem(folder, "folders", "one folder per class", &found);
            }
        }
        named
    }

    fn add_classes(&mut self, folder: &Path) {
        self.train = Part::labelled();
        for (name, files) in self.class_folders(folder) {
            let Ok(number) = u16::try_from(self.classes.len()) else {
                return self.problem(folder, "folders", "at most 65536 classes", "more");
            };
            self.classes.push(name);
            self.train.add(files, number);
        }
    }

    /// The test part: a folder with classes of the folder `train`, or a share of the pictures there.
    fn add_test(&mut self, options: &Options, train: &str, all_classes: bool) {
        let folders = ["test", "val"].map(|name| self.root.join(name));
        let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
            return self
                .test_from_share(options, "a folder `test` or `val` with one folder per class");
        };
        if options.test_share.is_some() {
            self.problems.push(superfluous_share(&folder));
        }
        self.test = Part::labelled();
        let expected = format!("the classes of `{train}`");
        let mut missing = self.classes.clone();
        for (name, files) in self.class_folders(&folder) {
            missing.retain(|class| *class != name);
            match self.classes.iter().position(|class| *class == name) {
                Some(class) => self.test.add(files, class as u16),
                None => {
                    let mut found = format!("an additional class `{name}`");
                    if let Some((like, how)) = names::like(&name, &self.classes) {
                        missing.retain(|class| class != like);
                        found += &format!(
                            ", which differs from `{like}` only {how}: rename one of them"
                        );
                    }
                    self.problem(&folder, "test part", &expected, &found);
                }
            }
        }
        if all_classes && let Some(class) = missing.first() {
            self.problem(&folder, "test part", &expected, &format!("no class `{class}`"));
        }
    }

    /// Moves the share of the options of every class to the test part: at least one picture of those classes that
    /// have two or more, and never the last one. Without a share, the problem names the alternatives.
    ///
    /// The draw has its own stream, which no seed changes: no experiment ever trains on these pictures, and all
    /// experiments on the data set are tested on the same ones.
    pub(super) fn test_from_share(&mut self, options: &Options, otherwise: &str) {
        let root = self.root.clone();
        let Some(share) = options.test_share else {
            let expected = format!(
                "{otherwise}, or a share of the labelled pictures (set data.test_share, for example to 0.2)"
            );
            return self.problem(&root, "test part", &expected, "none of them");
        };
        if !(share > 0.0 && share < 1.0) {
            let problem = format!("data.test_share must be between 0 and 1, got {share}");
            return self.problems.push(DataError::Unusable(problem));
        }
        let Part { files, labels, .. } = std::mem::replace(&mut self.train, Part::labelled());
        let labels = labels.unwrap_or_default();
        let stream = Stream::new(0, Purpose::TestShare, 0, SERVER);
        let mut tested = vec![false; files.len()];
        for (class, mut members) in by_class(&labels, self.classes.len()).into_iter().enumerate() {
            members.shuffle(&mut stream.at(class as u64));
            let max = members.len().saturating_sub(1);
            let count = ((members.len() as f64 * share).round() as usize).max(1).min(max);
            members[..count].iter().for_each(|&file| tested[file as usize] = true);
        }
        self.test = Part::labelled();
        for ((file, label), tested) in files.into_iter().zip(labels).zip(tested) {
            let part = if tested { &mut self.test } else { &mut self.train };
            part.add([file], label);
        }
        if self.test.files.is_empty() && !self.train.files.is_empty() {
            let expected = "a class with two or more labelled pictures, to test on one of them";
            self.problem(&root, "test part", expected, "none");
        }
    }

    fn add_unlabelled(&mut self, folder: &Path, labelled: &str) {
        let found = if folder.is_dir() { self.entries(folder) } else { Some(Entries::default()) };
        let Some(Entries { mut folders, files: Found { pictures, others } }) = found else {
            return;
        };
        match pictures.first() {
            None if folders.is_empty() => {
                let expected = format!(
                    "the clients' pictures in it, or in one folder per client (to simulate clients with labelled \
                     pictures, rename `{labelled}` to `train`)"
                );
                self.problem(folder, "folder", &expected, &instead(&others));
            }
            Some(picture) if !folders.is_empty() => {
                let expected = "only folders of clients, since there is one next to it";
                self.problem(picture, "file", expected, "a picture");
            }
            _ => {}
        }
        self.skipped.extend(others);
        folders.sort_by(|a, b| natural(&a.to_string_lossy(), &b.to_string_lossy()));
        let mut part = Part { files: pictures, ..Part::default() };
        for (name, files) in self.by_name(folders, Found::below) {
            let start = part.files.len() as u32;
            part.clients.push((start..start + files.len() as u32).collect());
            part.client_names.push(name);
            part.files.extend(files);
        }
        self.unlabelled = Some(part);
    }
}

impl Part {
    /// An empty part with labels.
    pub fn labelled() -> Self {
        Self { labels: Some(Vec::new()), ..Self::default() }
    }

    /// Adds pictures of a class.
    pub fn add(&mut self, files: impl IntoIterator<Item = PathBuf>, class: u16) {
        self.files.extend(files);
        self.labels.get_or_insert_default().resize(self.files.len(), class);
    }
}

/// The problem of a share in addition to a test part.
pub(crate) fn superfluous_share(test: &Path) -> DataError {
    DataError::Unusable(format!(
        "data.test_share is for data sets without a test part, but {} has one: remove the key",
        test.display()
    ))
}

/// The content of a folder, sorted by name, without hidden files and folders.
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

/// The files in a folder that must have no folder inside.
fn only_files(folder: &Path) -> Result<Found> {
    let Entries { folders, files } = entries(folder)?;
    match folders.first() {
        Some(inner) => {
            malformed(inner, "path", "pictures and no folder inside this folder", "a folder")
        }
        None => Ok(files),
    }
}

/// A description of the files that were found instead of pictures.
fn instead(others: &[Skipped]) -> String {
    let unsupported = |file: &Skipped| match &file.reason {
        Reason::Unsupported { format } => Some(format.clone()),
        _ => None,
    };
    let formats: BTreeSet<String> = others.iter().filter_map(unsupported).collect();
    if formats.is_empty() {
        return "none".to_owned();
    }
    let formats: Vec<String> = formats.into_iter().collect();
    format!("only {} pictures: convert them", formats.join(" and "))
}

/// The name of a class or a client: that of its folder.
fn name(folder: &Path) -> Result<String> {
    let name = folder.file_name().and_then(|name| name.to_str());
    Ok(name.ok_or_else(|| NotUtf8(folder.to_owned()))?.to_owned())
}

/// Compares names as people do: `client 9` before `client 10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.chars().next(), right.chars().next()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let ((x, after_x), (y, after_y)) = (number(left), number(right));
            (left, right) = (after_x, after_y);
            x.len().cmp(&y.len()).then(x.cmp(y))
        } else {
            (left, right) = (&left[x.len_utf8()..], &right[y.len_utf8()..]);
            x.cmp(&y)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then(a.cmp(b))
}

/// The number a text begins with, without leading zeros, and what follows.
fn number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].trim_start_matches('0'), &text[end..])
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
