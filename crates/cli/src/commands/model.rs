//! `fedanchor model`: layers and parameters.

use super::grouped;
use crate::cli::ModelArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::model::Network;
use fedanchor_data::Shape;

pub fn model(args: &ModelArgs, printer: &Printer) -> Result<()> {
    let mut settings = vec![format!("model.name={}", args.name)];
    settings.extend_from_slice(&args.settings);
    let experiment = fedanchor::config::resolve("", &settings)?;
    if experiment.model.name.to_string() != args.name {
        bail!("model.name: `{}` was asked for already", args.name);
    }
    let shape = Shape { side: args.size, channels: args.channels.into() };
    let network =
        Network::new(&experiment.model, experiment.method.heads(), shape, args.classes.into())?;
    let width = network.layout.iter().map(|entry| entry.name.len()).max().unwrap_or_default();
    for entry in network.layout.iter().filter(|entry| !entry.statistic) {
        let size: Vec<String> = entry.shape.iter().map(i64::to_string).collect();
        printer.line(format!(
            "{:width$}  {:>18}  {:>10}",
            entry.name,
            size.join(" x "),
            grouped(entry.numel())
        ));
    }
    let (parameters, anchor_head) = network.parameter_counts();
    printer.line(format!(
        "{} parameters, and {} of the anchor head",
        grouped(parameters),
        grouped(anchor_head)
    ));
    Ok(())
}
