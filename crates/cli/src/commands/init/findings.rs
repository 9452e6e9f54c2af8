//! What there is in a folder of pictures, for a person to read.

use super::super::{counted, grouped};
use crate::printer::Printer;
use fedanchor_data::inspection::{Inspection, Part, Place, Spread};
use fedanchor_data::skipped::{Skipped, by_reason};

/// Files named of each kind; `data check --json` lists all.
const NAMED: usize = 20;

pub(super) fn show(inspection: &Inspection, test_share: Option<f64>, printer: &Printer) {
    for part in &inspection.parts {
        printer.line(of_part(part));
    }
    if let Some(share) = test_share {
        printer.line(format!(
            "no test folder: {:.0} % of the labelled pictures are set aside for testing",
            100.0 * share
        ));
    }
    by_class(inspection, printer);
    files("not read", &inspection.unreadable, printer);
    files("of other types", &inspection.others, printer);
    duplicates(inspection, printer);
}

fn of_part(part: &Part) -> String {
    let clients = match part.by_client.len() {
        0 => String::new(),
        count => format!(" of {}", counted(count, "client", "clients")),
    };
    let size = |spread: Option<Spread>| match spread {
        Some(Spread { smallest, largest, .. }) if smallest == largest => format!("{smallest}"),
        Some(Spread { smallest, median, largest }) => {
            format!("{smallest} to {largest} (median {median})")
        }
        None => "?".to_owned(),
    };
    let grey = match part.grey {
        grey if grey == part.pictures => "grey",
        0 => "colour",
        _ => "grey and colour",
    };
    format!(
        "{}: {}{clients}, {grey}, {} pixels wide, {} high, {} square",
        part.name,
        counted(part.pictures, "picture", "pictures"),
        size(part.width),
        size(part.height),
        if part.square == part.pictures { "all".to_owned() } else { grouped(part.square) },
    )
}

fn by_class(inspection: &Inspection, printer: &Printer) {
    let labelled: Vec<&Part> =
        inspection.parts.iter().filter(|part| !part.by_class.is_empty()).collect();
    let names = &inspection.classes;
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

fn files(what: &str, all: &[Skipped], printer: &Printer) {
    if all.is_empty() {
        return;
    }
    let counts: Vec<String> =
        by_reason(all).into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    printer.line(format!("{} files {what}: {}", grouped(all.len()), counts.join(", ")));
    for file in all.iter().take(NAMED) {
        printer.line(format!("  {}: {}", file.path.display(), file.reason));
    }
    rest(all.len(), printer);
}

fn duplicates(inspection: &Inspection, printer: &Printer) {
    let found = &inspection.duplicates;
    let place = |place: &Place| {
        let class = place.class.as_ref().map(|class| format!(" as `{class}`")).unwrap_or_default();
        format!("{} ({}{class})", place.path.display(), place.part)
    };
    if !found.exact.is_empty() {
        printer.line(format!(
            "{} pictures are in more than one place, which spoils labels or tests: remove all but one",
            grouped(found.exact.len())
        ));
        for same in found.exact.iter().take(NAMED) {
            let places: Vec<String> = same.iter().map(place).collect();
            printer.line(format!("  {}", places.join(" = ")));
        }
        rest(found.exact.len(), printer);
    }
    if !found.near.is_empty() {
        printer.line(format!("{} pairs of pictures look the same", grouped(found.near.len())));
        for pair in found.near.iter().take(NAMED) {
            printer.line(format!("  {} ~ {}", place(&pair.first), place(&pair.second)));
        }
        rest(found.near.len(), printer);
    }
}

fn rest(count: usize, printer: &Printer) {
    if count > NAMED {
        let more = grouped(count - NAMED);
        printer.line(format!("  ... and {more} more: `fedanchor data check --json` lists all"));
    }
}
