//! Labels from Label Studio: its JSON export, or the short form JSON-MIN.
//!
//! A task of an export has a picture in `data` and `annotations`, one per person and submission. JSON-MIN has one
//! record per annotation: the fields of `data`, and the choice in a field with the name of its control. Tasks that were
//! skipped (cancelled) or not yet annotated have no label. Annotations that contradict each other are an error: the
//! mean of two opinions is no label, and leaving the picture out would hide it.
//!
//! Label Studio names a picture as its server does, which is only in part where it is: `/data/local-files/?d=PATH` is
//! relative to a folder that the server knows, and often one inside a container; `/data/upload/7/1a2b3c4d-NAME` is a
//! copy. So a reference is looked up among the pictures of the data set: see [`Pictures::find`].

use crate::error::malformed;
use crate::{DataError, Result, pictures};
use serde_json::{Map, Value};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A picture of an export.
#[derive(Debug)]
pub(super) struct Labelled {
    /// The number of its task.
    pub task: u64,
    pub path: PathBuf,
    /// `None` if nobody chose one.
    pub label: Option<String>,
}

/// Whether a list of pictures is an export, by its name.
pub(super) fn is_export(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// The pictures of an export, each once. Tasks that cannot be used are added to `bad` with their numbers.
pub(super) fn read(
    file: &Path,
    among: &Pictures,
    bad: &mut Vec<(u64, String)>,
) -> Result<Vec<Labelled>> {
    const EXPECTED: &str = "the JSON export of a Label Studio project: a list of tasks";
    let bytes = fedanchor_disk::read(file, fedanchor_disk::limit(file));
    let bytes = bytes.map_err(|error| DataError::io(file, error))?;
    let tasks: Vec<Value> = match serde_json::from_slice(&bytes) {
        Ok(Value::Array(tasks)) => tasks,
        Ok(_) => return malformed(file, "content", EXPECTED, "other JSON"),
        Err(error) => return malformed(file, "content", EXPECTED, error),
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut found: Vec<Labelled> = Vec::new();
    let mut seen: HashMap<PathBuf, usize> = HashMap::new();
    for (position, task) in tasks.iter().enumerate() {
        let number = task["id"].as_u64().unwrap_or(position as u64 + 1);
        let (path, label) = match read_task(task)
            .and_then(|(image, label)| Ok((among.find(folder, &image)?, label)))
        {
            Ok(read) => read,
            Err(problem) => {
                bad.push((number, problem));
                continue;
            }
        };
        match seen.entry(path.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(found.len());
                found.push(Labelled { task: number, path, label });
            }
            Entry::Occupied(earlier) => {
                let earlier = &mut found[*earlier.get()];
                match (&earlier.label, label) {
                    (Some(theirs), Some(ours)) if *theirs != ours => {
                        let problem =
                            format!("found `{theirs}` in task {}, here `{ours}`", earlier.task);
                        bad.push((number, format!("label: {ONE_LABEL}, {problem}: {DECIDE}")));
                    }
                    (None, label) => earlier.label = label,
                    _ => {}
                }
            }
        }
    }
    Ok(found)
}

const ONE_LABEL: &str = "expected one for every picture";
const DECIDE: &str =
    "in Label Studio, delete the wrong annotations, or mark the right one as ground truth";

/// The picture and the label of a task.
fn read_task(task: &Value) -> Result<(String, Option<String>), String> {
    let Value::Object(fields) = task else { return Err("expected an object".to_owned()) };
    match fields.get("data") {
        Some(Value::Object(data)) => Ok((image(data)?.1.to_owned(), label(task)?)),
        Some(_) => Err("data: expected an object".to_owned()),
        None => {
            let (name, image) = image(fields)?;
            Ok((image.to_owned(), short_label(fields, name)?))
        }
    }
}

/// What Label Studio itself adds to a record of JSON-MIN.
const OWN: [&str; 7] =
    ["id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement"];

/// The field with the picture: `image`, or the only one that names a picture.
fn image(data: &Map<String, Value>) -> Result<(&str, &str), String> {
    if let Some((name, Value::String(image))) = data.get_key_value("image") {
        return Ok((name, image));
    }
    let named = data.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
    let named: Vec<_> = named.filter(|(_, text)| pictures::is_picture(Path::new(text))).collect();
    match named[..] {
        [one] => Ok(one),
        [] => Err("expected a field `image` that names a picture, found none".to_owned()),
        _ => Err(format!(
            "expected a field `image`, found pictures in {}",
            quoted(named.iter().map(|one| one.0))
        )),
    }
}

/// The label that the annotations of a task agree on.
fn label(task: &Value) -> Result<Option<String>, String> {
    let valid = |one: &&Value| one["was_cancelled"] != true;
    let mut annotations: Vec<&Value> = list(task, "annotations")?.iter().filter(valid).collect();
    let decides = |one: &&Value| one["ground_truth"] == true;
    if annotations.iter().any(decides) {
        annotations.retain(decides);
    }
    let mut labels = BTreeSet::new();
    for annotation in annotations {
        labels.extend(choice(annotation)?);
    }
    only(labels)
}

/// The choice of an annotation. Where a project has several controls, the one called `label` counts.
fn choice(annotation: &Value) -> Result<Option<String>, String> {
    let choices = list(annotation, "result")?.iter().filter(|one| one["type"] == "choices");
    let choices: Vec<(&str, &Value)> =
        choices.map(|one| (one["from_name"].as_str().unwrap_or_default(), &one["value"])).collect();
    let controls: BTreeSet<&str> = choices.iter().map(|(control, _)| *control).collect();
    if controls.len() > 1 && !controls.contains("label") {
        return Err(format!(
            "expected choices of one control, or one called `label`, found {}",
            quoted(controls.into_iter())
        ));
    }
    let mut labels = BTreeSet::new();
    for (_, value) in
        choices.iter().filter(|(control, _)| controls.len() == 1 || *control == "label")
    {
        labels.extend(texts(&value["choices"])?);
    }
    only(labels)
}

/// The label of a record of JSON-MIN, which has the name of the control.
fn short_label(fields: &Map<String, Value>, image: &str) -> Result<Option<String>, String> {
    let own = |name: &str| OWN.contains(&name) || name == image;
    let others: Vec<&str> = fields.keys().map(String::as_str).filter(|name| !own(name)).collect();
    let preferred = ["label", "choice"].into_iter().find(|name| others.contains(name));
    let name = match (preferred, &others[..]) {
        (Some(name), _) => name,
        (None, [name]) => *name,
        (None, []) => return Ok(None),
        _ => {
            let found = quoted(others.into_iter());
            return Err(format!(
                "expected the choice in a field `label` or `choice`, found {found}: export as JSON"
            ));
        }
    };
    let mut labels = BTreeSet::new();
    let value = &fields[name];
    for one in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
        labels.extend(texts(if one.is_object() { &one["choices"] } else { one })?);
    }
    only(labels)
}

/// A string, or a list of strings; nothing if it is null or empty.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    let all = match value {
        Value::Null => &[],
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |one: &Value| match one.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err("choices: expected text".to_owned()),
    };
    let all: Result<Vec<String>, String> = all.iter().map(text).collect();
    Ok(all?.into_iter().filter(|text| !text.is_empty()).collect())
}

fn only(mut labels: BTreeSet<String>) -> Result<Option<String>, String> {
    match labels.len() {
        0 | 1 => Ok(labels.pop_first()),
        _ => Err(format!(
            "label: {ONE_LABEL}, found {}: {DECIDE}",
            quoted(labels.iter().map(String::as_str))
        )),
    }
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a [Value], String> {
    match &value[name] {
        Value::Null => Ok(&[]),
        Value::Array(all) => Ok(all),
        _ => Err(format!("{name}: expected a list")),
    }
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Pictures that references may lead to.
pub(super) struct Pictures {
    root: PathBuf,
    files: Vec<File>,
    by_path: HashMap<PathBuf, usize>,
    by_name: HashMap<String, Vec<usize>>,
}

struct File {
    given: PathBuf,
    absolute: PathBuf,
}

impl Pictures {
    /// The pictures of a data set in a folder.
    pub fn new<'a>(root: &Path, given: impl IntoIterator<Item = &'a PathBuf>) -> Result<Self> {
        let absolute =
            |path: &Path| path.canonicalize().map_err(|error| DataError::io(path, error));
        let root = absolute(if root == Path::new("") { Path::new(".") } else { root })?;
        let (files, by_path, by_name) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut found = Self { root, files, by_path, by_name };
        for given in given {
            let absolute = absolute(given)?;
            let at = found.files.len();
            if let Some(name) = given.file_name().and_then(OsStr::to_str) {
                found.by_name.entry(as_uploaded(name)).or_default().push(at);
            }
            found.by_path.insert(absolute.clone(), at);
            found.files.push(File { given: given.clone(), absolute });
        }
        Ok(found)
    }

    /// The picture that a task names: a path of this machine (absolute, relative to the export, or `file://`), else
    /// the only picture whose path ends like the reference, or whose path inside the data set the reference ends with,
    /// because a server may see the folder under another one. An uploaded copy is known by its name only.
    pub fn find(&self, folder: &Path, reference: &str) -> Result<PathBuf, String> {
        let expected = |found: &str| {
            format!("picture: expected one below {}, found {found}", self.root.display())
        };
        for place in places(reference) {
            let found = match &place {
                Place::Uploaded(name) => {
                    self.by_name.get(&as_uploaded(name)).cloned().unwrap_or_default()
                }
                Place::Path(path) => self.at(folder, path),
            };
            match found[..] {
                [] => {}
                [one] => return Ok(self.files[one].given.clone()),
                [one, other, ..] => {
                    let [one, other] = [one, other].map(|at| self.files[at].given.display());
                    return Err(expected(&format!("`{reference}`, which may be {one} or {other}")));
                }
            }
        }
        Err(expected(&format!("`{reference}`")))
    }

    fn at(&self, folder: &Path, path: &str) -> Vec<usize> {
        let there = folder.join(path).canonicalize().ok();
        if let Some(&at) = there.and_then(|path| self.by_path.get(&path)) {
            return vec![at];
        }
        let path = Path::new(path);
        let name = path.file_name().and_then(OsStr::to_str).map(as_uploaded);
        let alike = name.and_then(|name| self.by_name.get(&name)).into_iter().flatten().copied();
        let ends = |&at: &usize| {
            let absolute = &self.files[at].absolute;
            let inside = absolute.strip_prefix(&self.root);
            absolute.ends_with(path) || inside.is_ok_and(|inside| path.ends_with(inside))
        };
        alike.filter(ends).collect()
    }
}

/// What a reference may mean.
enum Place {
    Path(String),
    /// The name of a file before it was uploaded.
    Uploaded(String),
}

/// What a reference may mean, the likeliest first: `%20` is a space, unless a name has it.
fn places(reference: &str) -> Vec<Place> {
    let (scheme, rest) = match reference.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), &rest[rest.find('/').unwrap_or(0)..]),
        None => (None, reference),
    };
    let served = rest.trim_start_matches('/');
    let query =
        |name: &str| rest.split_once(name).map(|(_, path)| path.split('&').next().unwrap_or(path));
    let local = query("?d=").filter(|_| served.starts_with("data/local-files"));
    let stored = query("?filepath=").filter(|_| served.starts_with("storage-data/"));
    let uploaded = served.strip_prefix("data/").unwrap_or(served).starts_with("upload/");
    if let Some(path) = stored.or(uploaded.then_some(rest)) {
        return forms(path)
            .map(|path| {
                let name = path.rsplit('/').next().unwrap_or_default();
                Place::Uploaded(without_prefix(name).to_owned())
            })
            .collect();
    }
    let path = local.unwrap_or(match scheme {
        None | Some("file") => rest,
        Some(_) => rest.split(['?', '#']).next().unwrap_or(rest).trim_start_matches('/'),
    });
    match (local, scheme) {
        (None, None) => vec![Place::Path(path.to_owned())],
        _ => forms(path).map(Place::Path).collect(),
    }
}

/// A text without its percent signs, and as it is.
fn forms(text: &str) -> impl Iterator<Item = String> {
    let decoded = decoded(text).filter(|decoded| decoded != text);
    decoded.into_iter().chain([text.to_owned()])
}

/// `%20` becomes a space. `None` if that is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex =
            after.get(..2).filter(|hex| byte == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        let code = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok()
}

/// The name without the first digits of a UUID that an upload puts before it.
fn without_prefix(name: &str) -> &str {
    match name.split_once('-') {
        Some((prefix, name))
            if prefix.len() == 8 && prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            name
        }
        _ => name,
    }
}

/// A name as Django stores it: underscores for spaces, and nothing but letters, digits, `-`, `_` and `.`.
fn as_uploaded(name: &str) -> String {
    let name = name.trim().replace(' ', "_");
    name.chars().filter(|letter| letter.is_alphanumeric() || "-_.".contains(*letter)).collect()
}

#[cfg(test)]
#[path = "label_studio_tests.rs"]
mod tests;
