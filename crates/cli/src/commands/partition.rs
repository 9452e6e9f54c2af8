//! `fedanchor data partition`: which client holds what.

use super::{drawings, grouped};
use crate::cli::PartitionArgs;
use crate::printer::Printer;
use anyhow::{Result, ensure};
use fedanchor::simulation;
use fedanchor_data::tables::histogram_table;
use fedanchor_report::chart::{Chart, Heat, Scale};
use serde::Serialize;

/// Clients that are printed; the files have all.
const PRINTED: usize = 20;
/// Clients that are drawn.
const DRAWN: usize = 200;
/// Classes that are printed; the files have all.
const PRINTED_CLASSES: usize = 16;
/// Characters of the names of classes that are printed.
const NAMES: usize = 80;

/// A partition as JSON.
#[derive(Serialize)]
struct Dealt<'a> {
    data: &'a str,
    anchors: usize,
    validation: usize,
    classes: &'a [String],
    clients: Vec<Client<'a>>,
}

#[derive(Serialize)]
struct Client<'a> {
    size: usize,
    by_class: &'a [u32],
}

pub fn partition(args: &PartitionArgs, printer: &Printer) -> Result<()> {
    // The number of clients per round does not change the partition, and might not fit it.
    let mut settings = vec!["client.per_round=1".to_owned()];
    settings.extend_from_slice(&args.settings);
    let experiment = super::experiment(args.experiment.as_deref(), &settings, printer)?;
    let data = simulation::load(&experiment)?;
    ensure!(
        data.unlabelled.is_none(),
        "the clients' pictures have no labels, so their classes cannot be counted; `fedanchor data \
         check` counts them by client"
    );
    let simulation::Assigned { split, partition, experiment } =
        simulation::assign(&experiment, &data)?;
    let (labels, classes) = (data.train.require_labels("a partition")?, &data.train.classes);
    let histogram = partition.histogram(labels, classes.len());
    let clients = partition.clients.iter().zip(&histogram);
    let dealt = Dealt {
        data: &data.name,
        anchors: split.anchors.len(),
        validation: split.validation.len(),
        classes,
        clients: clients.map(|(all, by_class)| Client { size: all.len(), by_class }).collect(),
    };
    args.output.print(printer, &dealt, || print(&dealt, &histogram, printer));
    let (csv, svg) = (args.out.with_added_extension("csv"), args.out.with_added_extension("svg"));
    fedanchor_disk::write(&csv, &[histogram_table(&histogram, classes, &[]).as_bytes()])?;
    let scheme =
        toml::to_string(&experiment.partition)?.trim().replace('\n', ", ").replace('"', "");
    drawings::write(&drawn(&dealt), &format!("{}: {scheme}", data.name), &svg)?;
    printer.status(format!("wrote {} and {}", csv.display(), svg.display()));
    Ok(())
}

/// How many samples of each class every client holds.
fn drawn(dealt: &Dealt) -> Chart {
    let every = dealt.clients.len().div_ceil(DRAWN);
    let shown = || dealt.clients.iter().enumerate().step_by(every);
    let values = |client: &Client| client.by_class.iter().map(|&count| count.into()).collect();
    Chart::Heat(Heat {
        x: "class".to_owned(),
        y: match every {
            1 => "client: samples".to_owned(),
            _ => format!("client: samples (1 client in {every} shown)"),
        },
        columns: dealt.classes.to_vec(),
        rows: shown().map(|(number, client)| format!("{number}: {}", client.size)).collect(),
        values: shown().map(|(_, client)| values(client)).collect(),
        label: "samples".to_owned(),
        scale: Scale::Sequential,
    })
}

fn print(dealt: &Dealt, histogram: &[Vec<u32>], printer: &Printer) {
    let Dealt { data, anchors, validation, classes, clients } = dealt;
    let sizes = || clients.iter().map(|client| client.size);
    let held_out = match validation {
        0 => String::new(),
        count => format!("{} for validation, ", grouped(*count)),
    };
    printer.line(format!(
        "{data}: {} anchors, {held_out}{} images on {} clients, {} to {} each",
        grouped(*anchors),
        grouped(sizes().sum::<usize>()),
        grouped(clients.len()),
        grouped(sizes().min().unwrap_or(0)),
        grouped(sizes().max().unwrap_or(0)),
    ));
    let columns = columns(histogram, classes.len());
    printer.line(heading(&columns, classes));
    for (number, Client { size, by_class }) in clients.iter().enumerate().take(PRINTED) {
        let mut shown: Vec<u32> = columns.iter().map(|&class| by_class[class]).collect();
        if columns.len() < by_class.len() {
            shown.push(by_class.iter().sum::<u32>() - shown.iter().sum::<u32>());
        }
        let row: Vec<String> = shown.iter().map(|count| format!("{count:>4}")).collect();
        printer.line(format!("{number:>6}  {size:>4}  {}", row.join(" ")));
    }
    if clients.len() > PRINTED {
        printer.line(format!("... and {} more clients in the files", clients.len() - PRINTED));
    }
}

/// The classes that have a column: all, or the largest.
fn columns(histogram: &[Vec<u32>], classes: usize) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..classes).collect();
    if classes > PRINTED_CLASSES {
        let total = |class: usize| histogram.iter().map(|row| u64::from(row[class])).sum::<u64>();
        columns.sort_by_key(|&class| std::cmp::Reverse(total(class)));
        columns.truncate(PRINTED_CLASSES);
        columns.sort_unstable();
    }
    columns
}

/// The heading of the columns, with as many names as fit.
fn heading(columns: &[usize], classes: &[String]) -> String {
    let (which, others) = match classes.len() - columns.len() {
        0 => ("by class".to_owned(), String::new()),
        others => {
            (format!("of the {} largest classes", columns.len()), format!(", {others} others"))
        }
    };
    let names = columns.iter().map(|&class| classes[class].as_str()).collect::<Vec<_>>().join(", ");
    let names = match names.char_indices().nth(NAMES) {
        Some((end, _)) => format!("{}...", &names[..end]),
        None => names,
    };
    format!("client  size  images {which} ({names}){others}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_clients_a_subset_is_drawn() {
        let clients = (0..100_000).map(|_| Client { size: 1, by_class: &[1] }).collect();
        let classes = ["only".to_owned()];
        let dealt = Dealt { data: "Many", anchors: 1, validation: 0, classes: &classes, clients };
        let svg = drawn(&dealt).svg("Many");
        roxmltree::Document::parse(&svg).unwrap();
        assert_eq!(svg.matches("M0 ").count(), 200);
    }

    #[test]
    fn tables_of_many_classes_fit_a_terminal() {
        let classes: Vec<String> = (0..43).map(|class| format!("traffic sign {class}")).collect();
        let mut row = vec![1; 43];
        row[40] = 7;
        row[2] = 5;
        let columns = columns(&[row], 43);
        assert_eq!((columns.len(), columns[2], columns[15]), (16, 2, 40));
        let line = heading(&columns, &classes);
        assert!(line.chars().count() <= 150, "{line}");
        assert!(
            line.starts_with("client  size  images of the 16 largest classes (traffic sign 0,")
        );
        assert!(line.ends_with("...), 27 others"), "{line}");
        let few: Vec<String> = ["cat", "dog"].map(str::to_owned).into();
        let columns = super::columns(&[vec![1, 2]], 2);
        assert_eq!(heading(&columns, &few), "client  size  images by class (cat, dog)");
    }
}
