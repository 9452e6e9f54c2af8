//! The findings of an inspection of a data set as text, for `data check` and `init`.

use super::{counted, grouped, width};
use crate::printer::Printer;
use fedanchor_data::inspection::{Duplicates, Inspection, Location, Part, Spread};
use fedanchor_data::{Reason, Skipped};
use std::collections::BTreeMap;

/// Files and pairs of files that are named; `--json` names all.
const NAMED: usize = 10;

/// Prints the findings.
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
        let sizes = || part.by_client.iter().map(|client| client.1);
        if let (Some(least), Some(most)) = (sizes().min(), sizes().max()) {
            printer.line(format!(
                "{}: {}, {} to {} pictures each",
                part.name,
                counted(part.by_client.len(), "client", "clients"),
                grouped(least),
                grouped(most)
            ));
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
    let alike = found.alike.iter().map(|pair| pair.join(", "));
    if !found.alike.is_empty() {
        let head = "classes whose names differ only in upper and lower case; if two are one class, move the pictures \
                    into one folder";
        names(&format!("{head}: {}", grouped(found.alike.len())), alike.collect(), printer);
    }
    duplicates(&found.duplicates, printer);
}

/// Prints pictures in two places, and what to do about them.
pub(super) fn duplicates(found: &Duplicates, printer: &Printer) {
    let exact = found.exact.iter();
    let exact = exact.map(|group| group.iter().map(shown).collect::<Vec<_>>().join(" = "));
    let near = found.near.iter();
    let near = near.map(|pair| format!("{} ~ {}", shown(&pair.first), shown(&pair.second)));
    for (head, lines) in [
        ("the same file under two labels or in two parts", exact.collect::<Vec<_>>()),
        ("pictures that look the same under two labels or in two parts", near.collect()),
    ] {
        if !lines.is_empty() {
            names(&format!("{head}: {}", grouped(lines.len())), lines, printer);
        }
    }
    for advice in &found.advice {
        printer.line(format!("pictures {advice}"));
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
    let number = match least.0 == most.0 {
        true => counted(*least.0, "picture", "pictures"),
        false => {
            let [least, most] =
                [least, most].map(|(count, class)| format!("{} ({class})", grouped(*count)));
            format!("{least} to {most} pictures")
        }
    };
    printer.line(format!("{}: {number} per class", part.name));
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

/// Prints the counts per class of the parts that have labels.
pub(super) fn by_class(classes: &[String], parts: &[(&str, Vec<usize>)], printer: &Printer) {
    let labelled: Vec<_> = parts.iter().filter(|(_, counts)| !counts.is_empty()).collect();
    if labelled.is_empty() {
        return;
    }
    let width = width(classes, 5);
    let cells = |cells: Vec<String>| {
        cells.iter().map(|cell| format!("{cell:>9}")).collect::<Vec<_>>().join(" ")
    };
    let names = labelled.iter().map(|(name, _)| (*name).to_owned()).collect();
    printer.line(format!("{:width$}  {}", "class", cells(names)));
    for (class, name) in classes.iter().enumerate() {
        let counts = labelled.iter().map(|(_, counts)| grouped(counts[class])).collect();
        printer.line(format!("{name:width$}  {}", cells(counts)));
    }
}
