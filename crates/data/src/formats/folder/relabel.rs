//! Joins the labels that a person has reviewed with the pictures of a data set.

use super::label_studio::{self, Pictures, is_export};
use super::listing::{Listing, Part};
use super::table::{BadLines, unusable_lines};
use crate::error::{malformed, unusable};
use crate::formats::{Options, list_pictures};
use crate::tables::{cell, csv, from_cell};
use crate::{DataError, Result, paths};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A table of pictures with new labels.
#[derive(Debug)]
pub struct Relabelled {
    /// The table, as CSV.
    pub text: String,
    /// Number of new labels.
    pub labelled: usize,
}

/// Lists the pictures of a data set as a CSV file, with labels for unlabelled ones from another CSV file (columns `path`
/// and `label`) or an export of Label Studio; a picture without a label there stays unlabelled. Paths are relative to
/// `table`, where the result will be written. Without a test part, a share of `test_share` of the labelled pictures becomes one.
pub fn relabelled(
    path: &Path,
    labels: &Path,
    table: &Path,
    test_share: Option<f64>,
) -> Result<Relabelled> {
    let options = Options { test_share, ..Options::default() };
    let Some(listing) = list_pictures(path, &options)? else {
        let expected = "labelled and unlabelled pictures";
        return malformed(path, "folder", expected, "files of many images each");
    };
    let Some(unlabelled) = &listing.unlabelled else {
        return unusable(format!("{}: there are no unlabelled pictures", listing.root.display()));
    };
    let (mut given, what) = match is_export(labels) {
        true => (read_export(labels, &listing, unlabelled)?, "task"),
        false => (read(labels)?, "line"),
    };
    let mut rows = vec![["path", "label", "client", "split"].map(str::to_owned)];
    let (mut count, mut problems) = (0, Vec::new());
    let mut row = |path: &Path, label: &str, client: &str, split: &str| match seen_from(path, table)
    {
        Ok(path) => rows.push([path.as_str(), label, client, split].map(cell)),
        Err(problem) => problems.push(problem),
    };
    let class = |label: u16| listing.classes[usize::from(label)].as_str();
    for (part, split) in [(&listing.train, "train"), (&listing.test, "test")] {
        for (path, &label) in part.files.iter().zip(part.labels.iter().flatten()) {
            row(path, class(label), "", split);
        }
    }
    let mut client_of = vec![""; unlabelled.files.len()];
    for (images, name) in unlabelled.clients.iter().zip(&unlabelled.client_names) {
        images.iter().for_each(|&image| client_of[image as usize] = name);
    }
    for (path, client) in unlabelled.files.iter().zip(client_of) {
        match given.remove(&absolute(path)?) {
            Some((line, label)) if !listing.classes.contains(&label) => {
                let expected = format!("one of {}", listing.classes.join(", "));
                let place = format!("{what} {line}: label");
                return malformed(labels, place, expected, format!("`{label}`"));
            }
            Some((_, label)) => {
                row(path, &label, "", "train");
                count += 1;
            }
            None => row(path, "", client, "train"),
        }
    }
    DataError::all(problems)?;
    if let Some((path, (line, _))) = given.iter().min_by_key(|(_, (line, _))| *line) {
        let expected = format!("an unlabelled picture of {}", listing.root.display());
        return malformed(labels, format!("{what} {line}: picture"), expected, path.display());
    }
    if count == 0 {
        let expected = "at least one (review the proposals first, or accept the sure ones with \
                        `fedanchor label --accept`)";
        return malformed(labels, "labels", expected, "none");
    }
    if count == unlabelled.files.len() {
        let expected = "pictures that stay unlabelled, for the clients: clear labels that have not been \
                        reviewed";
        return malformed(labels, "labels", expected, "a label for every picture");
    }
    Ok(Relabelled { text: csv(rows), labelled: count })
}

/// The labels of an export by picture, with their tasks.
fn read_export(
    labels: &Path,
    listing: &Listing,
    unlabelled: &Part,
) -> Result<HashMap<PathBuf, (u64, String)>> {
    let parts = [unlabelled, &listing.train, &listing.test];
    let among = Pictures::new(&listing.root, parts.into_iter().flat_map(|part| &part.files))?;
    let mut bad = BadLines::new();
    let found = label_studio::read(labels, &among, &mut bad)?;
    if !bad.is_empty() {
        return Err(unusable_lines(labels, bad));
    }
    let labelled = found.into_iter().filter_map(|one| Some((one.path, (one.task, one.label?))));
    labelled.map(|(path, label)| Ok((absolute(&path)?, label))).collect()
}

/// The labels of a CSV file by picture, with their lines.
fn read(labels: &Path) -> Result<HashMap<PathBuf, (u64, String)>> {
    let broken =
        |place: String, found: String| DataError::malformed(labels, place, "a CSV file", found);
    let text = fedanchor_disk::read(labels, fedanchor_disk::limit(labels));
    let text = text.map_err(|error| DataError::io(labels, error))?;
    let mut reader = csv::Reader::from_reader(text.as_slice());
    let head = reader.headers().map_err(|error| broken("head".to_owned(), error.to_string()))?;
    let column = |name: &str| {
        head.iter().position(|field| field == name).ok_or_else(|| {
            let found = head.iter().collect::<Vec<_>>().join(", ");
            DataError::malformed(labels, "head", format!("a column `{name}`"), found)
        })
    };
    let (path, label) = (column("path")?, column("label")?);
    let folder = labels.parent().unwrap_or(Path::new(""));
    let mut found = HashMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| broken("row".to_owned(), error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let (path, label) = (from_cell(&record[path]), from_cell(&record[label]));
        if label.is_empty() {
            continue;
        }
        let picture = folder.join(path);
        let picture = absolute(&picture)
            .map_err(|error| broken(format!("line {line}: path"), error.to_string()))?;
        if let Some((first, _)) = found.insert(picture, (line, label.to_owned())) {
            let found = format!("{path}, which line {first} has too");
            return malformed(labels, format!("line {line}: path"), "every picture once", found);
        }
    }
    Ok(found)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|source| DataError::io(path, source))
}

/// A path for a table or config file: relative to the file's folder if it is below it, otherwise absolute.
pub fn seen_from(path: &Path, file: &Path) -> Result<String> {
    let path = absolute(path)?;
    let folder = file.parent().filter(|parent| *parent != Path::new(""));
    let folder = absolute(folder.unwrap_or(Path::new(".")))?;
    let seen = path.strip_prefix(&folder).unwrap_or(&path);
    let seen = if seen == Path::new("") { Path::new(".") } else { seen };
    Ok(paths::text(seen)?.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::formats::{Options, open, relabelled};
    use crate::thumbnail::write_png;
    use crate::{DataError, Shape};
    use std::path::Path;

    fn picture(path: &Path, value: u8) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_png(Shape { side: 2, channels: 1 }, &[value; 4], path).unwrap();
    }

    /// Two classes with a picture each, three unlabelled pictures of two clients, a test picture per class.
    fn pictures(root: &Path) {
        for (at, name) in
            ["labelled/cat/1", "labelled/dog/2", "test/cat/3", "test/dog/4"].iter().enumerate()
        {
            picture(&root.join(format!("{name}.png")), at as u8);
        }
        for (at, name) in ["anna/5", "anna/6", "bert/7"].iter().enumerate() {
            picture(&root.join(format!("unlabelled/{name}.png")), 100 + at as u8);
        }
    }

    fn relabel(root: &Path, labels: &str) -> Result<super::Relabelled, DataError> {
        std::fs::write(root.join("labels.csv"), labels).unwrap();
        relabelled(root, &root.join("labels.csv"), &root.join("all.csv"), None)
    }

    #[test]
    fn reviewed_labels_join_the_labelled_pictures() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        pictures(root);
        let labels =
            "label,score,path\ndog,0.9,unlabelled/anna/6.png\n,0.1,unlabelled/bert/7.png\n";
        let found = relabel(root, labels).unwrap();
        assert_eq!(found.labelled, 1);
        std::fs::write(root.join("all.csv"), &found.text).unwrap();
        let data = open(&root.join("all.csv"), &Options::default()).unwrap();
        assert_eq!(data.train.labels, Some(vec![0, 1, 1]));
        assert_eq!(data.train.pixels.iter().step_by(4).copied().collect::<Vec<_>>(), [0, 1, 101]);
        let unlabelled = data.unlabelled.unwrap();
        assert_eq!(unlabelled.client_names, ["anna", "bert"]);
        assert_eq!((unlabelled.clients, data.test.len()), (vec![vec![0], vec![1]], 2));
    }

    /// A CSV file cannot hold them: all are named, and no picture is lost without a word.
    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf_8_are_refused() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        pictures(root);
        for name in [&b"unlabelled/anna/caf\xe9.png"[..], b"test/cat/\xff.png"] {
            picture(&root.join(std::ffi::OsStr::from_bytes(name)), 9);
        }
        // Reading them is no problem.
        let data = open(root, &Options::default()).unwrap();
        assert_eq!((data.test.len(), data.unlabelled.unwrap().images.len()), (3, 4));
        let error =
            relabel(root, "path,label\nunlabelled/anna/5.png,cat\n").unwrap_err().to_string();
        assert!(error.starts_with("2 problems:"), "{error}");
        assert!(error.contains("test/cat/\\xFF.png: the path is not UTF-8"), "{error}");
        assert!(error.contains("unlabelled/anna/caf\\xE9.png: the path is not UTF-8"), "{error}");
    }

    #[test]
    fn labels_that_fit_nothing_are_named_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        pictures(root);
        for (labels, expected) in [
            ("path,label\nunlabelled/anna/5.png,cow\n", "line 2: label: expected one of cat, dog"),
            ("path,label\nunlabelled/anna/9.png,cat\n", "line 2: path"),
            ("path,label\nlabelled/cat/1.png,cat\n", "expected an unlabelled picture"),
            ("path,class\nunlabelled/anna/5.png,cat\n", "expected a column `label`"),
            ("path,label\nunlabelled/anna/5.png,\n", "labels: expected at least one"),
            (
                "path,label\nunlabelled/anna/5.png,cat\nunlabelled/anna/6.png,cat\nunlabelled/bert/7.png,dog\n",
                "clear labels that have not been reviewed",
            ),
            (
                "path,label\nunlabelled/anna/5.png,cat\nunlabelled/anna/5.png,dog\n",
                "line 3: path: expected every picture once, found unlabelled/anna/5.png, which line 2 has too",
            ),
        ] {
            let error = relabel(root, labels).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
