//! `fedanchor export`: a trained model as an ONNX file for other programs, and a page about it.

use super::{bytes, complete, counted, same_file, write};
use crate::cli::ExportArgs;
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::Model;
use fedanchor::engine::Device;
use fedanchor::engine::trunk::TrunkLayers;
use fedanchor::labels::LatentSource;
use fedanchor::model::Description;
use fedanchor_data::FILTER;
use fedanchor_export::{Exported, Input, Latents, Trained};
use fedanchor_record::files;
use std::path::Path;

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
    let version = about.build.to_string();
    let trained = trained(&model, trunk.as_ref(), &version);
    let input = if args.raw_input { Input::Raw } else { Input::Normalised };
    let Exported { bytes: content, left_out } = fedanchor_export::onnx(&trained, input)?;
    let card = out.with_extension("md");
    if card == *out || same_file(file, &card) {
        bail!(
            "{}: the page about the model would have the same name: choose another file with --out",
            out.display()
        );
    }
    let page = card_of(about, file, out, args.raw_input)?;
    // Overwriting the same content is harmless.
    for (path, content) in [(out, &content[..]), (&card, page.as_bytes())] {
        let existing = || fedanchor_disk::read(path, content.len() as u64).ok();
        if path.is_file() && existing().as_deref() != Some(content) && !args.force {
            bail!(
                "{}: already exists with other content: choose another file with --out, or overwrite it with --force",
                path.display()
            );
        }
    }
    fedanchor_disk::write(out, &[&content])?;
    write(&card, &page)?;
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
    printer.line(format!("{}: the page about it", card.display()));
    Ok(())
}

/// A model as it is exported.
pub fn trained<'a>(
    model: &'a Model,
    trunk: Option<&'a TrunkLayers>,
    version: &'a str,
) -> Trained<'a> {
    let about = &model.description;
    Trained {
        network: model.network(),
        params: &model.params,
        shape: about.shape,
        classes: &about.classes,
        normalisation: &about.normalisation,
        trunk: trunk.zip(about.trunk.as_ref().map(|info| &info.normalisation)),
        fit: about.fit,
        version,
        latents: match about.latents {
            LatentSource::Anchor => Latents::Anchor,
            LatentSource::Pooled => Latents::Pooled,
        },
        class_means: Some(&model.class_means),
    }
}

/// The page about the model. That of a model file in its run folder is the same as that of the run.
fn card_of(about: &Description, file: &Path, out: &Path, raw_input: bool) -> Result<String> {
    let input = match raw_input {
        true => "images, 8-bit pixels [N, H, W, C]",
        false => "input, normalised pixels in single precision [N, C, H, W]",
    };
    let mut facts = vec![
        ("Classes", about.classes.join(", ")),
        ("Network", about.model.name.to_string()),
        ("Method", about.method.clone()),
        ("Input", format!("{input}: {}", about.shape)),
        (
            "Pictures of other sizes",
            format!("fit {}, resized with {FILTER}, antialiased", about.fit),
        ),
        ("Trained by fedanchor", about.build.to_string()),
    ];
    if let Some(trunk) = &about.trunk {
        let origin =
            format!("{}; licence: {}; source: {}", trunk.name, trunk.licence, trunk.source);
        facts.push(("Trunk", format!("{origin}; blake3 hash: {}", trunk.hash)));
    }
    let folder = file.parent().filter(|folder| {
        file.file_name() == Some(files::MODEL.as_ref()) && folder.join(files::CONFIG).is_file()
    });
    let title = out.file_name().unwrap_or(out.as_os_str()).to_string_lossy();
    fedanchor_report::model_card(&title, &facts, folder, &complete).with_context(|| {
        format!("the page about the model (or export a copy of {})", file.display())
    })
}
