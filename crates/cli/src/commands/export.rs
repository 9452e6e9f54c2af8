//! `fedanchor export`: a trained model as an ONNX file for other programs.

use super::{bytes, counted, same_file};
use crate::cli::ExportArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::Model;
use fedanchor::engine::Device;
use fedanchor::labels::LatentSource;
use fedanchor_export::{Exported, Input, Latents, Trained};
use fedanchor_record::files;

pub fn export(args: &ExportArgs, printer: &Printer) -> Result<()> {
    let (inside, out) = (args.run.join(files::MODEL), &args.out);
    let file = if args.run.is_dir() { &inside } else { &args.run };
    let model = Model::load_with(file, args.trunk.as_deref(), Device::Cpu)?;
    let trunk = model.trunk().map(|trunk| trunk.layers()).transpose()?;
    if let Some(None) = trunk {
        bail!(
            "the trunk of this model is TorchScript, whose layers are not known: export that with PyTorch"
        );
    }
    let trunk = trunk.flatten();
    if same_file(file, out) {
        bail!("{}: this is the model itself: choose another file with --out", out.display());
    }
    let about = &model.description;
    let trained = Trained {
        network: model.network(),
        params: &model.params,
        shape: about.shape,
        classes: &about.classes,
        normalisation: &about.normalisation,
        trunk: trunk.as_ref().zip(about.trunk.as_ref().map(|info| &info.normalisation)),
        fit: about.fit,
        version: &about.build.to_string(),
        latents: match about.latents {
            LatentSource::Anchor => Latents::Anchor,
            LatentSource::Pooled => Latents::Pooled,
        },
        class_means: Some(&model.class_means),
    };
    let input = if args.raw_input { Input::Raw } else { Input::Normalised };
    let Exported { bytes: content, left_out } = fedanchor_export::onnx(&trained, input)?;
    // Overwriting the same model is harmless.
    let existing = || fedanchor_disk::read(out, content.len() as u64).ok();
    let differs = out.is_file() && existing().as_deref() != Some(&content[..]);
    if differs && !args.force {
        bail!(
            "{}: already exists with other content: choose another file with --out, or overwrite it with --force",
            out.display()
        );
    }
    fedanchor_disk::write(out, &[&content])?;
    let size = bytes(content.len() as u64);
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
