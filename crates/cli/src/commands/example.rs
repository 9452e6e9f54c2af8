//! `fedanchor data example`: pictures to try the commands with.

use super::{grouped, quoted_path};
use crate::cli::ExampleArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_data::sample;
use fedanchor_data::thumbnail::write_png;

/// Digits that are often confused, so that there is something to learn.
const CLASSES: [(u16, &str); 5] =
    [(3, "three"), (4, "four"), (5, "five"), (8, "eight"), (9, "nine")];

pub fn example(args: &ExampleArgs, printer: &Printer) -> Result<()> {
    let out = &args.out;
    if out.exists() {
        bail!("{}: already exists: choose another name", out.display());
    }
    let data = sample::load()?;
    let (mut labelled, mut unlabelled, mut test) = ([0; CLASSES.len()], 0, 0);
    for (images, is_test) in [(&data.train, false), (&data.test, true)] {
        for (index, label) in images.labels.iter().flatten().enumerate() {
            let Some(class) = CLASSES.iter().position(|(digit, _)| digit == label) else {
                continue;
            };
            let name = CLASSES[class].1;
            let folder = if is_test {
                test += 1;
                out.join("test").join(name)
            } else if labelled[class] < args.labelled {
                labelled[class] += 1;
                out.join("labelled").join(name)
            } else {
                let client = args.clients.map(|clients| unlabelled % usize::from(clients));
                unlabelled += 1;
                let client = client.map_or(String::new(), |client| format!("client-{client}"));
                out.join("unlabelled").join(client)
            };
            fs_err::create_dir_all(&folder)?;
            let path = folder.join(format!("{index:04}.png"));
            write_png(images.shape, images.image(index), &path)?;
        }
    }
    printer.line(format!(
        "wrote {}: {} labelled pictures of {} classes, {} unlabelled, {} to test on",
        out.display(),
        grouped(labelled.iter().sum::<usize>()),
        CLASSES.len(),
        grouped(unlabelled),
        grouped(test),
    ));
    printer.status(format!("next: fedanchor init {}", quoted_path(out)));
    Ok(())
}
