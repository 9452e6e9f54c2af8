//! `fedanchor overhead`: the part of a broadcast that is for the anchors, computed from shapes without training.

use super::grouped;
use crate::cli::JsonArgs;
use crate::printer::Printer;
use anyhow::Result;
use fedanchor::engine::model::Network;
use fedanchor::{methods, resolve};
use fedanchor_data::Shape;
use serde::Serialize;

/// The paper's columns: data set, classes, number of anchors, published percentage.
const COLUMNS: [(&str, usize, u64, f64); 7] = [
    ("cifar10", 10, 250, 0.29),
    ("cifar10", 10, 500, 0.57),
    ("cifar10", 10, 5000, 5.73),
    ("cifar100", 100, 2500, 2.85),
    ("cifar100", 100, 10_000, 11.41),
    ("svhn", 10, 250, 0.29),
    ("svhn", 10, 1000, 1.15),
];

/// The cost of a data set's anchors, in percent of a model's parameters.
#[derive(Serialize)]
struct Cost {
    model: &'static str,
    data: &'static str,
    classes: usize,
    anchors: u64,
    parameters: i64,
    /// With the latents of all anchors sent.
    latents_percent: f64,
    /// The paper's value, for ResNet-18 only.
    published_percent: Option<f64>,
    class_means_percent: f64,
}

pub fn overhead(args: JsonArgs, printer: &Printer) -> Result<()> {
    let costs = costs()?;
    args.print(printer, &costs, || print(&costs, printer));
    Ok(())
}

fn print(costs: &[Cost], printer: &Printer) {
    printer.line("values sent for the anchors, in percent of the model's parameters (without the anchor head)");
    printer.line("");
    printer.line(format!(
        "{:9}  {:8}  {:>7}  {:>10}  {:>12}  {:>9}  {:>11}",
        "model", "data", "anchors", "parameters", "all latents", "published", "class means"
    ));
    for cost in costs {
        let published = cost.published_percent;
        printer.line(format!(
            "{:9}  {:8}  {:>7}  {:>10}  {:>12.2}  {:>9}  {:>11.4}",
            cost.model,
            cost.data,
            grouped(cost.anchors),
            grouped(cost.parameters),
            cost.latents_percent,
            published.map_or("-".to_owned(), |percent| format!("{percent:.2}")),
            cost.class_means_percent,
        ));
    }
    printer.line("");
    printer.line("class means give the same labels as all latents; choose with method.send [default: class-means]");
}

fn costs() -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for model in ["resnet18", "wrn28x2"] {
        let experiment = resolve("", &[format!("model.name={model}")])?;
        let shape = Shape { side: 32, channels: 3 };
        for (data, classes, anchors, published) in COLUMNS {
            let heads = methods::build(&experiment.method)?.properties().heads;
            let network = Network::new(&experiment.model, heads, shape, classes)?;
            let (parameters, _) = network.parameter_counts();
            let latent = experiment.model.latent_dim as f64;
            let percent = |vectors: f64| 100.0 * vectors * latent / parameters as f64;
            costs.push(Cost {
                model,
                data,
                classes,
                anchors,
                parameters,
                latents_percent: percent(anchors as f64),
                published_percent: (model == "resnet18").then_some(published),
                class_means_percent: percent(classes as f64),
            });
        }
    }
    Ok(costs)
}
