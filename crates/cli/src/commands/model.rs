//! `fedanchor model`: layers and parameters.

use super::grouped;
use crate::cli::ModelArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::engine::model::Network;
use fedanchor::methods;
use fedanchor_data::Shape;

pub fn model(args: &ModelArgs, printer: &Printer) -> Result<()> {
    let mut settings = vec![format!("model.name={}", args.name)];
    settings.extend_from_slice(&args.settings);
    let experiment = fedanchor::resolve("", &settings)?;
    if experiment.model.name.to_string() != args.name {
        bail!("--set model.name: the model is `{}` already", args.name);
    }
    let shape = Shape { side: args.size, channels: args.channels.into() };
    let heads = methods::build(&experiment.method)?.heads();
    let network = Network::new(&experiment.model, heads, shape, args.classes.into())?;
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
        "{} parameters, and {} in the anchor head",
        grouped(parameters),
        grouped(anchor_head)
    ));
    Ok(())
}
