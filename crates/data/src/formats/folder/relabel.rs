//! Labels that a person has reviewed, brought back to the pictures they belong to.

use super::listing::Listing;
use crate::picture::quoted;
use crate::{DataError, Result};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A table of pictures, some of them newly labelled.
#[derive(Debug)]
pub struct Relabelled {
    /// The table, as CSV.
    pub text: String,
    /// How many pictures have a label that they did not have before.
    pub labelled: usize,
}

/// Lists the pictures of a data set with the labels of a CSV file (columns `path` and `label`; a row without
/// label leaves its picture unlabelled). `table` is where the result will be written.
pub(crate) fn relabel(listing: &Listing, labels: &Path, table: &Path) -> Result<Relabelled> {
    let Some(unlabelled) = &listing.unlabelled else {
        let problem = format!(
            "{}: there are no unlabelled pictures that labels could be for",
            listing.root.display()
        );
        return Err(DataError::Unusable(problem));
    };
    let mut given = read(labels)?;
    let (mut text, mut count) = (String::from("path,label,client,split\n"), 0);
    let mut row = |path: &Path, label: &str, client: &str, split: &str| -> Result<()> {
        let path = from_table(path, table)?;
        let fields = [path.as_str(), label, client, split].map(quoted);
        writeln!(text, "{}", fields.join(",")).expect("writing to a string cannot fail");
        Ok(())
    };
    let class = |label: u16| listing.classes[usize::from(label)].as_str();
    for (part, split) in [(&listing.train, "train"), (&listing.test, "test")] {
        for (path, &label) in part.files.iter().zip(part.labels.iter().flatten()) {
            row(path, class(label), "", split)?;
        }
    }
    let mut client_of = vec![""; unlabelled.files.len()];
    for (images, name) in unlabelled.clients.iter().zip(&unlabelled.names) {
        images.iter().for_each(|&image| client_of[image as usize] = name);
    }
    for (path, client) in unlabelled.files.iter().zip(client_of) {
        match given.remove(&absolute(path)?) {
            Some((line, label)) if !listing.classes.contains(&label) => {
                let expected = format!("one of {}", listing.classes.join(", "));
                let place = format!("line {line}: label");
                return Err(DataError::malformed(labels, place, expected, format!("`{label}`")));
            }
            Some((_, label)) => {
                row(path, &label, "", "train")?;
                count += 1;
            }
            None => row(path, "", client, "train")?,
        }
    }
    if let Some((path, (line, _))) = given.iter().min_by_key(|(_, (line, _))| *line) {
        let place = format!("line {line}: path");
        let expected = format!("an unlabelled picture of {}", listing.root.display());
        return Err(DataError::malformed(labels, place, expected, path.display().to_string()));
    }
    Ok(Relabelled { text, labelled: count })
}

/// The labels of a CSV file by picture, with their lines.
fn read(labels: &Path) -> Result<HashMap<PathBuf, (u64, String)>> {
    let malformed =
        |place: String, found: String| DataError::malformed(labels, place, "a CSV file", found);
    let mut reader = csv::Reader::from_path(labels)
        .map_err(|error| malformed("file".to_owned(), error.to_string()))?;
    let head = reader.headers().map_err(|error| malformed("head".to_owned(), error.to_string()))?;
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
        let record = record.map_err(|error| malformed("row".to_owned(), error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let (path, label) = (&record[path], &record[label]);
        if label.is_empty() {
            continue;
        }
        let picture = folder.join(path);
        let picture = absolute(&picture)
            .map_err(|error| malformed(format!("line {line}: path"), error.to_string()))?;
        if let Some((first, _)) = found.insert(picture, (line, label.to_owned())) {
            let place = format!("line {line}: path");
            return Err(malformed(place, format!("{path}, which line {first} has too")));
        }
    }
    Ok(found)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|source| DataError::io(path, source))
}

/// A path relative to the table where it lies below its folder, otherwise absolute.
fn from_table(path: &Path, table: &Path) -> Result<String> {
    let path = absolute(path)?;
    let folder = table.parent().filter(|parent| *parent != Path::new(""));
    let folder = absolute(folder.unwrap_or(Path::new(".")))?;
    Ok(path.strip_prefix(&folder).unwrap_or(&path).to_string_lossy().into_owned())
}
