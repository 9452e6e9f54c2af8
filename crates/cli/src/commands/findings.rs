//! What an inspection of a data set found, for a person: `data check` and `init`.

use super::{counted, grouped};
use crate::printer::Printer;
use fedanchor_data::inspection::{Inspection, Location, Part, Spread};
use fedanchor_data::{Reason, Skipped};
use std::collections::BTreeMap;

/// Files and pairs of files that a report names; `--json` names all.
const NAMED: usize = 10;

/// What an inspection found, for a person.
pub(super) fn report(found: &Inspection, printer: &Printer) {
    if found.parts.is_empty() {
        return;
    }
    printer.line(format!(
        "{}: {}",
        found.path.display(),
        counted(found.classes.len(), "class", "classes")
    ));
    printer.line(format!(
        "{:10}  {:>8}  {:22}  {:22}  {:24}  {:>6}  {:>4}",
        "part", "pictures", "width", "height", "width / height", "square", "grey"
    ));
    for part in &found.parts {
        let share = |count: usize| match part.pictures {
            0 => "-".to_owned(),
            all => format!("{:.0}%", 100.0 * count as f64 / all as f64),
        };
        printer.line(format!(
            "{:10}  {:>8}  {:22}  {:22}  {:24}  {:>6}  {:>4}",
            part.name,
            grouped(part.pictures),
            range(part.width, 0),
            range(part.height, 0),
            range(part.aspect, 2),
            share(part.square),
            share(part.grey),
        ));
    }
    for part in &found.parts {
        per_class(part, &found.classes, printer);
        if let (Some(least), Some(most)) = (
            part.by_client.iter().map(|client| client.1).min(),
            part.by_client.iter().map(|client| client.1).max(),
        ) {
            let count = part.by_client.len();
            let each = format!("{} to {} pictures each", grouped(least), grouped(most));
            printer.line(format!("{}: {} clients, {each}", part.name, grouped(count)));
        }
    }
    let mut groups: BTreeMap<&str, Vec<&Skipped>> = BTreeMap::new();
    for file in found.unreadable.iter().chain(&found.others) {
        groups.entry(file.reason.group()).or_default().push(file);
    }
    for (reason, files) in groups {
        let lines = files.iter().map(|file| match file.reason {
            Reason::NotAPicture => file.path.display().to_string(),
            _ => format!("{}: {}", file.path.display(), file.reason),
        });
        let head = format!("{reason}: {}", counted(files.len(), "file", "files"));
        names(&head, lines.collect(), printer);
    }
    let exact = &found.duplicates.exact;
    if !exact.is_empty() {
        let lines = exact.iter().map(|group| group.iter().map(shown).collect::<Vec<_>>());
        let lines = lines.map(|group| group.join(" = ")).collect();
        let head = "the same file under two labels or in two parts";
        names(&format!("{head}: {}", grouped(exact.len())), lines, printer);
    }
    let near = &found.duplicates.near;
    if !near.is_empty() {
        let lines =
            near.iter().map(|pair| format!("{} ~ {}", shown(&pair.first), shown(&pair.second)));
        let head = "pictures that look the same under two labels or in two parts";
        names(&format!("{head}: {}", grouped(near.len())), lines.collect(), printer);
    }
}

fn shown(location: &Location) -> String {
    match &location.class {
        Some(class) => format!("{} ({class})", location.path.display()),
        None => location.path.display().to_string(),
    }
}

fn range(spread: Option<Spread>, digits: usize) -> String {
    let Some(Spread { smallest, median, largest }) = spread else { return "-".to_owned() };
    if smallest == largest {
        return format!("{smallest:.digits$}");
    }
    format!("{smallest:.digits$}-{largest:.digits$}, median {median:.digits$}")
}

fn per_class(part: &Part, classes: &[String], printer: &Printer) {
    let counts = || part.by_class.iter().zip(classes);
    let (Some(least), Some(most)) = (counts().min_by_key(|c| c.0), counts().max_by_key(|c| c.0))
    else {
        return;
    };
    if least.0 == most.0 {
        let count = counted(least.0, "picture", "pictures");
        printer.line(format!("{}: {count} per class", part.name));
        return;
    }
    printer.line(format!(
        "{}: {} ({}) to {} ({}) pictures per class",
        part.name,
        grouped(least.0),
        least.1,
        grouped(most.0),
        most.1
    ));
}

fn names(head: &str, lines: Vec<String>, printer: &Printer) {
    printer.line(head);
    for line in lines.iter().take(NAMED) {
        printer.line(format!("  {line}"));
    }
    if lines.len() > NAMED {
        printer.line(format!("  ... and {} more (--json lists all)", lines.len() - NAMED));
    }
}

/// Pictures of every class in the parts with labels.
pub(super) fn by_class(found: &Inspection, printer: &Printer) {
    let labelled: Vec<&Part> =
        found.parts.iter().filter(|part| !part.by_class.is_empty()).collect();
    let names = &found.classes;
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(5);
    let head: Vec<String> = labelled.iter().map(|part| format!("{:>9}", part.name)).collect();
    if head.is_empty() {
        return;
    }
    printer.line(format!("{:width$}  {}", "class", head.join(" ")));
    for (class, name) in names.iter().enumerate() {
        let counts: Vec<String> =
            labelled.iter().map(|part| format!("{:>9}", grouped(part.by_class[class]))).collect();
        printer.line(format!("{name:width$}  {}", counts.join(" ")));
    }
}
