//! Which picture files belong to which part, class and client: found before any of them is opened.

use crate::formats::Options;
use crate::image_set::by_class;
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
                listing.train.files = listing.pictures_in(folder, found);
            }
            Some(_) => listing.add_classes(folder),
            None => {}
        }
        listing
    }

    /// `train/CLASS` with `test/CLASS` or `val/CLASS`: labelled pictures for server and clients.
    pub fn train_and_test(root: &Path, options: &Options) -> Self {
        let mut listing = Self::new(root, "train");
        listing.add_classes(&root.join("train"));
        listing.add_test(options, true);
        listing
    }

    /// `labelled/CLASS` for the server, `unlabelled` or `unlabelled/CLIENT` for the clients, and
    /// `test/CLASS` or `val/CLASS`.
    pub fn labelled_and_unlabelled(root: &Path, options: &Options) -> Self {
        let mut listing = Self::new(root, "labelled");
        listing.add_classes(&root.join("labelled"));
        listing.add_unlabelled(&root.join("unlabelled"));
        listing.add_test(options, false);
        listing
    }

    pub(super) fn problem(&mut self, path: &Path, place: &str, expected: &str, found: &str) {
        self.problems.push(DataError::malformed(path, place, expected, found));
    }

    /// The content of a folder, or a problem.
    fn entries(&mut self, folder: &Path) -> Option<Entries> {
        entries(folder).map_err(|problem| self.problems.push(problem)).ok()
    }

    /// The pictures of a folder that must have some and no folder inside.
    fn pictures_in(&mut self, folder: &Path, found: Entries) -> Vec<PathBuf> {
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

    fn by_name(&mut self, folders: Vec<PathBuf>) -> Vec<(String, Vec<PathBuf>)> {
        let mut named = Vec::with_capacity(folders.len());
        for path in folders {
            match name(&path).and_then(|name| Ok((name, entries(&path)?))) {
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
        self.by_name(folders)
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
        self.test = Part::labelled();
        let expected = format!("the classes of `{}`", self.train_name);
        let mut missing = self.classes.clone();
        for (name, files) in self.class_folders(&folder) {
            missing.retain(|class| *class != name);
            match self.classes.iter().position(|class| *class == name) {
                Some(class) => self.test.add(files, class as u16),
                None => {
                    let found = format!("an additional class `{name}`");
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

    fn add_unlabelled(&mut self, folder: &Path) {
        let found = if folder.is_dir() { self.entries(folder) } else { Some(Entries::default()) };
        let Some(Entries { mut folders, files: Found { pictures, others } }) = found else {
            return;
        };
        match pictures.first() {
            None if folders.is_empty() => {
                let expected = "the clients' pictures in it, or in one folder per client (to \
                                simulate clients with labelled pictures, rename `labelled` to \
                                `train`)";
                self.problem(folder, "folder", expected, &instead(&others));
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
        for (name, files) in self.by_name(folders) {
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
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_value() {
        let sorted = ["", "a", "a2", "a02", "a2b", "a10", "a10b1", "b", "b1.9", "b1.10", "é2"];
        let mut names = sorted;
        names.reverse();
        names.sort_by(|a, b| natural(a, b));
        // "a02" and "a2" are the same number: then the text decides.
        let expected = ["", "a", "a02", "a2", "a2b", "a10", "a10b1", "b", "b1.9", "b1.10", "é2"];
        assert_eq!(names, expected);
    }

    fn listing(counts: &[usize]) -> Listing {
        let mut listing = Listing::default();
        let (mut files, mut labels) = (Vec::new(), Vec::new());
        for (class, &count) in counts.iter().enumerate() {
            listing.classes.push(format!("c{class}"));
            for number in 0..count {
                files.push(format!("c{class}/{number}.png").into());
                labels.push(class as u16);
            }
        }
        listing.train = Part { files, labels: Some(labels), ..Part::default() };
        listing
    }

    fn draw(listing: &mut Listing, share: f64) {
        let options = Options { test_share: Some(share), ..Options::default() };
        listing.test_from_share(&options, "");
    }

    fn counts(part: &Part, classes: u16) -> Vec<usize> {
        let labels = part.labels.as_ref().unwrap();
        (0..classes).map(|class| labels.iter().filter(|&&label| label == class).count()).collect()
    }

    #[test]
    fn every_class_gives_its_share_but_never_its_last_picture() {
        let mut parts = listing(&[100, 1, 2, 3]);
        draw(&mut parts, 0.2);
        assert_eq!(counts(&parts.test, 4), [20, 0, 1, 1]);
        assert_eq!(counts(&parts.train, 4), [80, 1, 1, 2]);
        assert!(parts.problems.is_empty());
        let mut all = [parts.train.files.clone(), parts.test.files.clone()].concat();
        all.sort();
        let mut expected = listing(&[100, 1, 2, 3]).train.files;
        expected.sort();
        assert_eq!(all, expected);
        let mut again = listing(&[100, 1, 2, 3]);
        draw(&mut again, 0.2);
        assert_eq!((again.test, again.train), (parts.test, parts.train));
        let mut most = listing(&[10]);
        draw(&mut most, 0.99);
        assert_eq!(counts(&most.test, 1), [9]);
    }

    #[test]
    fn impossible_shares_are_problems() {
        for share in [0.0, 1.0, -0.1, f64::NAN] {
            let mut parts = listing(&[5]);
            draw(&mut parts, share);
            let problem = parts.problems[0].to_string();
            assert!(problem.starts_with("data.test_share must be between 0 and 1"), "{problem}");
        }
        let mut parts = listing(&[1, 1]);
        draw(&mut parts, 0.5);
        assert!(parts.problems[0].to_string().contains("two or more labelled pictures"));
    }
}
