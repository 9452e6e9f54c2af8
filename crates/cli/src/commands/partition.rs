//! `fedanchor data partition`: which client holds what.

use super::grouped;
use crate::cli::PartitionArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::simulation;
use fedanchor_data::picture::{histogram_csv, partition_chart};

/// Clients printed one by one; the files hold all.
const PRINTED: usize = 20;

pub fn partition(args: &PartitionArgs, printer: &Printer) -> Result<()> {
    // How many clients a round draws does not change the partition.
    let mut settings = vec!["client.per_round=1".to_owned()];
    settings.extend_from_slice(&args.settings);
    let experiment = super::experiment(args.experiment.as_deref(), &settings)?;
    let data = simulation::load(&experiment)?;
    let simulation::Assigned { split, partition, experiment } =
        simulation::assign(&experiment, &data)?;
    if data.unlabelled.is_some() {
        bail!("the clients' images of {} have no labels to show by class", data.name);
    }
    let labels = data.train.require_labels("a partition")?;
    let histogram = partition.histogram(labels, data.train.classes.len());

    let sizes: Vec<usize> = partition.clients.iter().map(Vec::len).collect();
    let (least, most) = (sizes.iter().min().unwrap_or(&0), sizes.iter().max().unwrap_or(&0));
    let held_out = match split.validation.len() {
        0 => String::new(),
        count => format!("{} for validation, ", grouped(count)),
    };
    printer.line(format!(
        "{}: {} anchors, {}{} images on {} clients, {} to {} each",
        data.name,
        grouped(split.anchors.len()),
        held_out,
        grouped(split.pool.len()),
        grouped(partition.clients.len()),
        grouped(least),
        grouped(most),
    ));
    printer.line(format!("client  size  images by class ({})", data.train.classes.join(", ")));
    for (client, row) in histogram.iter().enumerate().take(PRINTED) {
        let row: Vec<String> = row.iter().map(|count| format!("{count:>4}")).collect();
        printer.line(format!("{client:>6}  {:>4}  {}", sizes[client], row.join(" ")));
    }
    if histogram.len() > PRINTED {
        printer.line(format!("... and {} more clients in the files", histogram.len() - PRINTED));
    }
    let (csv, png) = (args.out.with_added_extension("csv"), args.out.with_added_extension("png"));
    histogram_csv(&histogram, &data.train.classes, &csv)?;
    let scheme =
        toml::to_string(&experiment.partition)?.trim().replace('\n', ", ").replace('"', "");
    partition_chart(&format!("{}: {scheme}", data.name), &histogram, &data.train.classes, &png)?;
    printer.status(format!("wrote {} and {}", csv.display(), png.display()));
    Ok(())
}
