//! A CSV file that lists pictures in any place: `path,label,client,split`, in any order; or an export of Label Studio,
//! whose pictures are below its folder.
//!
//! A picture with a label is the server's (or a test picture, by `split`), one without is a
//! client's. If no picture is without a label, the labelled ones serve both, as in `train/CLASS`.

use super::label_studio::{self, Labelled, Pictures, is_export};
use super::listing::{Listing, Part, natural, superfluous_share};
use crate::DataError;
use crate::error::{listed, malformed};
use crate::formats::Options;
use crate::paths::{escaped, in_message};
use crate::tables::from_cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// One line of the table.
struct Row {
    path: PathBuf,
    label: String,
    client: String,
    split: String,
}

/// Lines, or tasks of Label Studio, that cannot be used, each with the problem.
pub(super) type BadLines = Vec<(u64, String)>;

impl Listing {
    /// The pictures a CSV file or an export of Label Studio lists.
    pub fn table(file: &Path, options: &Options) -> Self {
        let mut listing = Self::new(file.parent().unwrap_or(Path::new("")), "train");
        let mut bad = BadLines::new();
        let rows = match is_export(file) {
            true => tasks(file, &listing.root, &mut bad),
            false => rows(file, &listing.root, &mut bad),
        };
        match rows {
            Ok(rows) => listing.sort_into_parts(file, rows, options, &mut bad),
            Err(problem) => listing.problems.push(problem),
        }
        if !bad.is_empty() {
            // A missing part may be in these lines.
            listing.problems = vec![unusable_lines(file, bad)];
        }
        listing
    }

    fn sort_into_parts(
        &mut self,
        file: &Path,
        rows: Vec<(u64, Row)>,
        options: &Options,
        bad: &mut BadLines,
    ) {
        let (mut classes, mut clients) = (BTreeSet::new(), BTreeSet::new());
        for (_, row) in &rows {
            if row.label.is_empty() && !row.client.is_empty() {
                clients.insert(row.client.clone());
            } else if !row.label.is_empty() && row.split == "train" {
                classes.insert(row.label.clone());
            }
        }
        if classes.len() > 1 << u16::BITS {
            let found = classes.len().to_string();
            return self.problem(file, "label", "at most 65536 different labels", &found);
        }
        self.classes = classes.into_iter().collect();
        let (mut train, mut test) = (Part::labelled(), Part::labelled());
        let mut others = Part { client_names: clients.into_iter().collect(), ..Part::default() };
        others.client_names.sort_by(|a, b| natural(a, b));
        others.clients = vec![Vec::new(); others.client_names.len()];
        for (line, Row { path, label, client, split }) in rows {
            if !label.is_empty() {
                let part = if split == "test" { &mut test } else { &mut train };
                match self.classes.binary_search(&label) {
                    Ok(class) => part.add([path], class as u16),
                    Err(_) => {
                        let expected = "expected the label of a training picture";
                        bad.push((line, format!("label `{label}`: {expected}")));
                    }
                }
                continue;
            }
            if split == "test" {
                bad.push((line, "split `test`: expected a label".to_owned()));
            } else if let Ok(client) =
                others.client_names.binary_search_by(|name| natural(name, &client))
            {
                others.clients[client].push(others.files.len() as u32);
            } else if !others.client_names.is_empty() {
                let expected = "expected one, as for the other pictures without a label";
                bad.push((line, format!("client: {expected}, found none")));
            }
            others.files.push(path);
        }
        if train.files.is_empty() {
            self.problem(file, "label", "training pictures with a label", "none");
        }
        self.train = train;
        self.unlabelled = (!others.files.is_empty()).then_some(others);
        if test.files.is_empty() {
            let otherwise = format!("lines with the split `test` in {}", file.display());
            self.test_from_share(options, &otherwise);
        } else {
            self.test = test;
            if options.test_share.is_some() {
                self.problems.push(superfluous_share(file));
            }
        }
    }
}

/// The usable tasks of an export, each picture once. Those without a label are clients' pictures.
fn tasks(file: &Path, root: &Path, bad: &mut BadLines) -> Result<Vec<(u64, Row)>, DataError> {
    let folder = if root == Path::new("") { Path::new(".") } else { root };
    let below = Listing::all_below(folder);
    let tasks = label_studio::read(file, &Pictures::new(root, &below.train.files)?, bad)?;
    let row = |Labelled { task, path, label }| {
        let (client, split) = (String::new(), "train".to_owned());
        (task, Row { path, label: label.unwrap_or_default(), client, split })
    };
    Ok(tasks.into_iter().map(row).collect())
}

/// The usable lines, each picture once.
fn rows(file: &Path, root: &Path, bad: &mut BadLines) -> Result<Vec<(u64, Row)>, DataError> {
    let broken = |error: &csv::Error| DataError::malformed(file, "table", "a CSV file", error);
    let content = fedanchor_disk::open(file).map_err(|error| DataError::io(file, error))?;
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(content);
    let head = reader.headers().map_err(|error| broken(&error))?.clone();
    let column = |name: &str| head.iter().position(|field| field.eq_ignore_ascii_case(name));
    let Some(path) = column("path") else {
        let found = head.iter().collect::<Vec<_>>().join(",");
        let expected = "the columns path,label,client,split (all but the first may be absent)";
        return malformed(file, "line 1", expected, format!("`{found}`"));
    };
    let [label, client, split] = ["label", "client", "split"].map(column);
    let mut rows: Vec<(u64, Row)> = Vec::new();
    let mut seen: HashMap<PathBuf, usize> = HashMap::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
                let line = error.position().map_or(0, csv::Position::line);
                bad.push((line, "expected UTF-8 text".to_owned()));
                continue;
            }
            Err(error) => return Err(broken(&error)),
        };
        let line = record.position().map_or(0, csv::Position::line);
        let field = |column: Option<usize>| {
            column.and_then(|column| record.get(column)).unwrap_or_default()
        };
        let name = from_cell(field(Some(path)));
        let split = match field(split) {
            "" => "train",
            split @ ("train" | "test") => split,
            other => {
                bad.push((line, format!("split: expected `train` or `test`, found `{other}`")));
                continue;
            }
        };
        if name.is_empty() {
            bad.push((line, "path: expected a file, found none".to_owned()));
            continue;
        }
        let row = Row {
            path: root.join(name),
            label: from_cell(field(label)).to_owned(),
            client: from_cell(field(client)).to_owned(),
            split: split.to_owned(),
        };
        match seen.entry(row.path.clone()) {
            Entry::Vacant(vacant) if row.path.is_file() => {
                vacant.insert(rows.len());
                rows.push((line, row));
            }
            Entry::Vacant(_) => bad.push((line, format!("path: no file `{name}`"))),
            Entry::Occupied(earlier) => {
                let (first, other) = &rows[*earlier.get()];
                let fields = [
                    ("label", &other.label, &row.label),
                    ("client", &other.client, &row.client),
                    ("split", &other.split, &row.split),
                ];
                let contradictions = fields.into_iter().filter(|(_, theirs, ours)| theirs != ours);
                bad.extend(contradictions.map(|(field, theirs, ours)| {
                    let problem = format!("`{name}` is on line {first} too with `{theirs}`");
                    (line, format!("{field}: {problem}, here `{ours}`"))
                }));
            }
        }
    }
    Ok(rows)
}

/// All bad lines, or tasks, as one problem.
pub(super) fn unusable_lines(file: &Path, mut bad: BadLines) -> DataError {
    bad.sort();
    let what = if is_export(file) { "task" } else { "line" };
    let count = match bad.len() {
        1 => format!("1 {what} cannot be used"),
        count => format!("{count} {what}s cannot be used"),
    };
    let lines =
        bad.iter().map(|(number, problem)| format!("{what} {number}: {}", escaped(problem)));
    DataError::Unusable(format!("{}: {count}{}", in_message(file), listed(lines)))
}
