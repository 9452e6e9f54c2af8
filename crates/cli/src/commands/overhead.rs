//! `fedanchor overhead`: what the anchors add to a broadcast. Computed from shapes, without training.

use super::grouped;
use crate::printer::Printer;
use anyhow::Result;
use fedanchor::engine::model::Network;
use fedanchor::{methods, resolve};
use fedanchor_data::Shape;

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

pub fn overhead(printer: &Printer) -> Result<()> {
    printer.line("values sent for the anchors, in percent of the model's parameters (without the anchor head)");
    printer.line("");
    printer.line(format!(
        "{:9}  {:8}  {:>7}  {:>10}  {:>12}  {:>9}  {:>11}",
        "model", "data", "anchors", "parameters", "every latent", "published", "class means"
    ));
    for model in ["resnet18", "wrn28x2"] {
        let experiment = resolve("", &[format!("model.name={model}")])?;
        let shape = Shape { side: 32, channels: 3 };
        for (data, classes, anchors, published) in COLUMNS {
            let heads = methods::build(&experiment.method)?.heads();
            let network = Network::new(&experiment.model, heads, shape, classes)?;
            let (parameters, _) = network.parameter_counts();
            let latent = experiment.model.latent_dim as f64;
            let percent = |vectors: f64| 100.0 * vectors * latent / parameters as f64;
            // The paper gives only ResNet-18's.
            let published =
                if model == "resnet18" { format!("{published:.2}") } else { "-".to_owned() };
            printer.line(format!(
                "{model:9}  {data:8}  {:>7}  {:>10}  {:>12.2}  {published:>9}  {:>11.4}",
                grouped(anchors),
                grouped(parameters),
                percent(anchors as f64),
                percent(classes as f64),
            ));
        }
    }
    printer.line("");
    printer.line("class means give the same labels as every latent; choose with method.send [default: class-means]");
    Ok(())
}
