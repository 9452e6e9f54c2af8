//! A CSV file that lists pictures which lie elsewhere: `path,label,client,split`, in any order.
//!
//! A picture with a label is the server's (or a test picture, by `split`), one without is a
//! client's. If no picture is without a label, the labelled ones serve both, as in `train/CLASS`.

use super::listing::{ClientFiles, Listing, Part, superfluous_share};
use super::names::natural;
use crate::DataError;
use crate::formats::Options;
use crate::paths::{escaped, in_message};
use crate::tables::from_cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

/// Bad lines that are named; the others are counted.
const NAMED: usize = 10;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    path: PathBuf,
    label: String,
    client: String,
    test: bool,
}

impl Listing {
    /// The pictures a CSV file lists.
    pub fn table(file: &Path, options: &Options) -> Self {
        let root = file.parent().unwrap_or(Path::new("")).to_owned();
        let mut listing = Self { root, train_name: "train", ..Default::default() };
        let mut bad = Bad::default();
        match rows(file, &listing.root, &mut bad) {
            Ok(rows) => listing.sort_into_parts(file, rows, options, &mut bad),
            Err(problem) => listing.problems.push(problem),
        }
        if let Some(problem) = bad.into_problem(file) {
            // Without these lines, whatever else is missing may be there.
            listing.problems = vec![problem];
        }
        listing
    }

    fn sort_into_parts(
        &mut self,
        file: &Path,
        rows: Vec<(u64, Row)>,
        options: &Options,
        bad: &mut Bad,
    ) {
        let labelled = |row: &Row| !row.label.is_empty();
        let mut classes: Vec<&String> = rows
            .iter()
            .filter(|(_, row)| labelled(row) && !row.test)
            .map(|(_, r)| &r.label)
            .collect();
        classes.sort();
        classes.dedup();
        let mut numbers = HashMap::new();
        for (number, class) in classes.iter().enumerate() {
            let Ok(number) = u16::try_from(number) else {
                let found = classes.len().to_string();
                let expected = "at most 65536 different labels";
                return self.problems.push(DataError::malformed(file, "label", expected, found));
            };
            numbers.insert((*class).clone(), number);
        }
        self.classes = classes.into_iter().cloned().collect();
        let mut names: Vec<String> = rows
            .iter()
            .filter(|(_, row)| !labelled(row) && !row.client.is_empty())
            .map(|(_, row)| row.client.clone())
            .collect();
        names.sort_by(|a, b| natural(a, b));
        names.dedup();
        let places: HashMap<String, usize> =
            names.iter().enumerate().map(|(place, name)| (name.clone(), place)).collect();
        let mut parts = [(); 2].map(|()| Part { files: Vec::new(), labels: Some(Vec::new()) });
        let mut others =
            ClientFiles { files: Vec::new(), clients: vec![Vec::new(); names.len()], names };
        for (line, row) in rows {
            if labelled(&row) {
                let Some(&class) = numbers.get(&row.label) else {
                    let what = "expected the label of a training picture";
                    bad.add(line, format!("label `{}`: {what}", row.label));
                    continue;
                };
                let part = &mut parts[usize::from(row.test)];
                part.files.push(row.path);
                part.labels.get_or_insert_default().push(class);
                continue;
            }
            if row.test {
                bad.add(line, "split `test`: expected a label".to_owned());
            } else if let Some(&client) = places.get(&row.client) {
                others.clients[client].push(others.files.len() as u32);
            } else if !places.is_empty() {
                let what = "expected one, as other pictures without a label have it";
                bad.add(line, format!("client: {what}, found none"));
            }
            others.files.push(row.path);
        }
        let [train, test] = parts;
        if train.files.is_empty() {
            let expected = "training pictures with a label";
            self.problems.push(DataError::malformed(file, "label", expected, "none"));
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

/// The usable lines, each picture once.
fn rows(file: &Path, root: &Path, bad: &mut Bad) -> Result<Vec<(u64, Row)>, DataError> {
    let broken =
        |error: &csv::Error| DataError::malformed(file, "table", "a CSV file", error.to_string());
    let content = fedanchor_disk::open(file).map_err(|error| DataError::io(file, error))?;
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(content);
    let head = reader.headers().map_err(|error| broken(&error))?.clone();
    let column = |name: &str| head.iter().position(|field| field.eq_ignore_ascii_case(name));
    let Some(path) = column("path") else {
        let found = head.iter().collect::<Vec<_>>().join(",");
        let expected = "the columns path,label,client,split (all but the first may be absent)";
        return Err(DataError::malformed(file, "line 1", expected, format!("`{found}`")));
    };
    let [label, client, split] = ["label", "client", "split"].map(column);
    let mut rows: Vec<(u64, Row)> = Vec::new();
    let mut seen: HashMap<PathBuf, usize> = HashMap::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                match error.kind() {
                    csv::ErrorKind::Utf8 { .. } => bad.add(line, "expected UTF-8 text".to_owned()),
                    _ => return Err(broken(&error)),
                }
                continue;
            }
        };
        let line = record.position().map_or(0, csv::Position::line);
        let field = |column: Option<usize>| {
            column.and_then(|column| record.get(column)).unwrap_or_default()
        };
        let name = from_cell(field(Some(path)));
        let test = match field(split) {
            "" | "train" => false,
            "test" => true,
            other => {
                bad.add(line, format!("split: expected `train` or `test`, found `{other}`"));
                continue;
            }
        };
        if name.is_empty() {
            bad.add(line, "path: expected a file, found none".to_owned());
            continue;
        }
        let row = Row {
            path: root.join(name),
            label: from_cell(field(label)).to_owned(),
            client: from_cell(field(client)).to_owned(),
            test,
        };
        match seen.entry(row.path.clone()) {
            Entry::Vacant(vacant) if row.path.is_file() => {
                vacant.insert(rows.len());
                rows.push((line, row));
            }
            Entry::Vacant(_) => bad.add(line, format!("path: no file `{name}`")),
            Entry::Occupied(earlier) => {
                let (first, other) = &rows[*earlier.get()];
                for (what, theirs, ours) in [
                    ("label", &other.label, &row.label),
                    ("client", &other.client, &row.client),
                    ("split", &split_name(other.test), &split_name(row.test)),
                ] {
                    if theirs != ours {
                        let where_else = format!("`{name}` is on line {first} too");
                        bad.add(
                            line,
                            format!("{what}: {where_else} with `{theirs}`, here `{ours}`"),
                        );
                    }
                }
            }
        }
    }
    Ok(rows)
}

fn split_name(test: bool) -> String {
    if test { "test" } else { "train" }.to_owned()
}

/// Lines that cannot be used, and why.
#[derive(Default)]
struct Bad(Vec<(u64, String)>);

impl Bad {
    fn add(&mut self, line: u64, why: String) {
        self.0.push((line, why));
    }

    /// All of them as one problem, the first few named.
    fn into_problem(mut self, file: &Path) -> Option<DataError> {
        self.0.sort();
        let count = self.0.len();
        let count = match count {
            0 => return None,
            1 => "1 line cannot be used".to_owned(),
            _ => format!("{count} lines cannot be used"),
        };
        let mut text = format!("{}: {count}", in_message(file));
        for (line, why) in self.0.iter().take(NAMED) {
            text.push_str(&format!("\n  line {line}: {}", escaped(why)));
        }
        if self.0.len() > NAMED {
            text.push_str(&format!("\n  ... and {} more", self.0.len() - NAMED));
        }
        Some(DataError::Unusable(text))
    }
}
