//! `fedanchor model`: layers and parameters.

use super::grouped;
use crate::cli::ModelArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::engine::model::Network;
use fedanchor::methods;
use fedanchor_data::Shape;
use serde::Serialize;

/// A model and its layers.
#[derive(Serialize)]
struct Description<'a> {
    name: &'a str,
    classes: u16,
    channels: u8,
    size: usize,
    layers: Vec<Layer<'a>>,
    /// Without the anchor head's.
    parameters: i64,
    anchor_head_parameters: i64,
}

#[derive(Serialize)]
struct Layer<'a> {
    name: &'a str,
    shape: &'a [i64],
    parameters: i64,
}

pub fn model(args: &ModelArgs, printer: &Printer) -> Result<()> {
    let mut settings = vec![format!("model.name={}", args.name)];
    settings.extend_from_slice(&args.settings);
    let experiment = fedanchor::resolve("", &settings)?;
    if experiment.model.name != args.name {
        bail!("--set model.name: differs from the argument `{}`", args.name);
    }
    let shape = Shape { side: args.size, channels: args.channels.into() };
    let heads = methods::build(&experiment.method)?.properties().heads;
    let network = Network::new(&experiment.model, heads, shape, args.classes.into())?;
    let layers = network.layout.iter().filter(|entry| !entry.statistic).map(|entry| Layer {
        name: &entry.name,
        shape: &entry.shape,
        parameters: entry.numel(),
    });
    let (parameters, anchor_head_parameters) = network.parameter_counts();
    let model = Description {
        name: &args.name,
        classes: args.classes,
        channels: args.channels,
        size: args.size,
        layers: layers.collect(),
        parameters,
        anchor_head_parameters,
    };
    args.output.print(printer, &model, || print(&model, printer));
    Ok(())
}

fn print(model: &Description, printer: &Printer) {
    let width = model.layers.iter().map(|layer| layer.name.len()).max().unwrap_or_default();
    for layer in &model.layers {
        let size: Vec<String> = layer.shape.iter().map(i64::to_string).collect();
        printer.line(format!(
            "{:width$}  {:>18}  {:>10}",
            layer.name,
            size.join(" x "),
            grouped(layer.parameters)
        ));
    }
    printer.line(format!(
        "{} parameters, and {} in the anchor head",
        grouped(model.parameters),
        grouped(model.anchor_head_parameters)
    ));
}
