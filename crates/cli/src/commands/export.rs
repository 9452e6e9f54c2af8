//! `fedanchor export`: a trained model as a file for other programs.

use super::{bytes, counted, same_file};
use crate::cli::{ExportArgs, ExportFormat};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::Model;
use fedanchor::engine::Device;
use fedanchor::labels::LatentSource;
use fedanchor_export::{Exported, Input, Latents, Trained};
use fedanchor_record::files;
use std::path::PathBuf;

pub fn export(args: &ExportArgs, printer: &Printer) -> Result<()> {
    if args.raw_input && args.format != ExportFormat::Onnx {
        bail!("--raw-input requires --format onnx: other formats contain no operations");
    }
    let inside = args.run.join(files::MODEL);
    let file = if args.run.is_dir() { &inside } else { &args.run };
    let model = Model::load(file, Device::Cpu)?;
    let name = match args.format {
        ExportFormat::Onnx => "model.onnx",
        ExportFormat::StateDict => "model.pt",
        ExportFormat::Safetensors => "model.safetensors",
    };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(name));
    if same_file(file, &out) {
        bail!("{}: this is the model itself: choose another file with --out", out.display());
    }
    let version = model.description.build.to_string();
    let Exported { bytes: content, left_out } = match args.format {
        ExportFormat::Onnx => {
            let input = if args.raw_input { Input::Raw } else { Input::Normalised };
            fedanchor_export::onnx(&trained(&model, &version), input)?
        }
        ExportFormat::StateDict => fedanchor_export::state_dict(&trained(&model, &version))?,
        ExportFormat::Safetensors => {
            let content = fedanchor_disk::read(file, u64::MAX);
            let content = content.with_context(|| file.display().to_string())?;
            Exported { bytes: content, left_out: Vec::new() }
        }
    };
    // Overwriting the same model is harmless.
    let existing = || fedanchor_disk::read(&out, content.len() as u64).ok();
    let differs = out.is_file() && existing().as_deref() != Some(&content[..]);
    if differs && !args.force {
        bail!(
            "{}: already exists with other content: choose another file with --out, or overwrite it with --force",
            out.display()
        );
    }
    fedanchor_disk::write(&out, &[&content])?;
    let size = bytes(content.len() as u64);
    let about = &model.description;
    printer.line(format!(
        "{}: {} for {} of {}, {size}",
        out.display(),
        about.model.name,
        counted(about.classes.len(), "class", "classes"),
        about.shape
    ));
    for text in left_out {
        printer.line(format!("left out: {text}"));
    }
    Ok(())
}

/// A model as the exporters take it.
fn trained<'a>(model: &'a Model, version: &'a str) -> Trained<'a> {
    let about = &model.description;
    Trained {
        network: model.network(),
        params: &model.params,
        shape: about.shape,
        classes: &about.classes,
        normalisation: &about.normalisation,
        fit: about.fit,
        version,
        latents: match about.latents {
            LatentSource::Anchor => Latents::Anchor,
            LatentSource::Pooled => Latents::Pooled,
        },
        class_means: Some(&model.class_means),
    }
}
