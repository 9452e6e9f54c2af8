//! `fedanchor data example`: pictures to try everything with.

use super::{grouped, quoted_path};
use crate::cli::ExampleArgs;
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor_data::thumbnail::write_png;
use fedanchor_data::{ImageSet, sample};
use std::path::Path;

/// The digits that are most often taken for each other, so that there is something to learn.
const CLASSES: [(u16, &str); 5] =
    [(3, "three"), (4, "four"), (5, "five"), (8, "eight"), (9, "nine")];

pub fn example(args: &ExampleArgs, printer: &Printer) -> Result<()> {
    let out = &args.out;
    if out.exists() {
        bail!("{}: exists already: choose another name", out.display());
    }
    let data = sample::load()?;
    let (mut labelled, mut unlabelled) = (0, 0);
    let mut seen = [0; CLASSES.len()];
    each(&data.train, |index, class, pixels| {
        seen[class] += 1;
        if seen[class] <= args.labelled {
            labelled += 1;
            write(&data.train, pixels, &out.join("labelled").join(CLASSES[class].1), index)
        } else {
            let mut folder = out.join("unlabelled");
            if let Some(clients) = args.clients {
                folder.push(format!("client-{}", unlabelled % usize::from(clients)));
            }
            unlabelled += 1;
            write(&data.train, pixels, &folder, index)
        }
    })?;
    let mut test = 0;
    each(&data.test, |index, class, pixels| {
        test += 1;
        write(&data.test, pixels, &out.join("test").join(CLASSES[class].1), index)
    })?;
    printer.line(format!(
        "wrote {}: {} labelled pictures of {} classes, {} unlabelled, {} to test on",
        out.display(),
        grouped(labelled),
        CLASSES.len(),
        grouped(unlabelled),
        grouped(test),
    ));
    printer.status(format!("next: fedanchor init {}", quoted_path(out)));
    Ok(())
}

/// Every image of the classes in question.
fn each(images: &ImageSet, mut take: impl FnMut(usize, usize, &[u8]) -> Result<()>) -> Result<()> {
    for (index, &label) in images.labels.iter().flatten().enumerate() {
        if let Some(class) = CLASSES.iter().position(|(digit, _)| *digit == label) {
            take(index, class, images.image(index))?;
        }
    }
    Ok(())
}

fn write(images: &ImageSet, pixels: &[u8], folder: &Path, index: usize) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    Ok(write_png(images.shape, pixels, &folder.join(format!("{index:04}.png")))?)
}
