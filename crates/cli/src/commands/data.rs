//! `fedanchor data list | get | check | show`.

use super::{bytes, grouped};
use crate::cli::{GetArgs, PathArgs, ShowArgs};
use crate::printer::Printer;
use anyhow::Result;
use fedanchor_data::fetch::{self, Phase, Source};
use fedanchor_data::{DataSet, ImageSet, catalog, formats, picture, sample};

pub fn list(printer: &Printer) {
    printer.line(format!(
        "{:14} {:>10}  {}",
        sample::NAME,
        "built in",
        "part of MNIST, 6,000 training and 1,000 test images"
    ));
    for entry in catalog::entries() {
        printer.line(format!(
            "{:14} {:>10}  {}; {}",
            entry.name,
            bytes(entry.bytes()),
            entry.about,
            entry.terms
        ));
    }
}

pub fn get(args: GetArgs, printer: &Printer) -> Result<()> {
    let entry = catalog::find(&args.name)?;
    let source = match args.mirror {
        Some(url) => Source::Mirror(url),
        None if args.from.is_empty() => Source::Official,
        None => Source::Local(args.from),
    };
    let bar = printer.bar(0, "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}");
    let path = fetch::get(entry, &args.dir, source, &mut |progress| {
        let what = match progress.phase {
            Phase::Downloading => "downloading",
            Phase::Verifying => "verifying",
            Phase::Unpacking => "unpacking",
        };
        bar.set_message(format!("{what} {}", progress.file));
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    })?;
    bar.finish_and_clear();
    let data = formats::open(&path, &formats::Options::default())?;
    printer.line(format!("{}: {}", path.display(), describe(&data)));
    Ok(())
}

pub fn check(args: &PathArgs, printer: &Printer) -> Result<()> {
    let text = match read(args)? {
        Read::Set(data) => describe(&data),
        Read::Images(images) => describe_images(&images),
    };
    printer.line(format!("{}: {text}", args.path.display()));
    Ok(())
}

pub fn show(args: &ShowArgs, printer: &Printer) -> Result<()> {
    let name = args.data.path.display().to_string();
    let images = match read(&args.data)? {
        Read::Set(data) => {
            printer.line(format!("{name}: {}", describe(&data)));
            counts(&[("train", &data.train), ("test", &data.test)], printer);
            data.train
        }
        Read::Images(images) => {
            printer.line(format!("{name}: {}", describe_images(&images)));
            counts(&[("images", &images)], printer);
            images
        }
    };
    picture::contact_sheet(&name, &images, 16, &args.out)?;
    printer.status(format!("wrote {}", args.out.display()));
    Ok(())
}

enum Read {
    Set(DataSet),
    Images(ImageSet),
}

/// A data set with training and test images, or the images of a single file or folder.
fn read(args: &PathArgs) -> Result<Read> {
    if args.path.as_os_str() == sample::NAME && !args.path.exists() {
        anyhow::ensure!(
            args.size.is_none(),
            "--size: the embedded sample has 28 pixels per side and cannot be resized"
        );
        return Ok(Read::Set(sample::load()?));
    }
    let options = formats::Options { size: args.size, ..Default::default() };
    if formats::is_data_set(&args.path) {
        return Ok(Read::Set(formats::open(&args.path, &options)?));
    }
    Ok(Read::Images(formats::open_images(&args.path, &options)?))
}

fn describe(data: &DataSet) -> String {
    format!(
        "{} training and {} test images of {}, {} classes: all readable",
        grouped(data.train.len()),
        grouped(data.test.len()),
        shape(&data.train),
        data.train.classes.len(),
    )
}

fn describe_images(images: &ImageSet) -> String {
    let classes = match images.labels {
        Some(_) => format!("{} classes", images.classes.len()),
        None => "unlabelled".to_owned(),
    };
    format!("{} images of {}, {classes}: all readable", grouped(images.len()), shape(images))
}

fn shape(images: &ImageSet) -> String {
    let colour = if images.shape.channels == 1 { "grey" } else { "colour" };
    format!("{0} x {0} {colour}", images.shape.side)
}

fn counts(parts: &[(&str, &ImageSet)], printer: &Printer) {
    let Some((_, first)) = parts.first().filter(|(_, part)| part.labels.is_some()) else { return };
    let width = first.classes.iter().map(|class| class.chars().count()).max().unwrap_or(0).max(5);
    let head: Vec<String> = parts.iter().map(|(name, _)| format!("{name:>7}")).collect();
    printer.line(format!("{:width$}  {}", "class", head.join(" ")));
    let all: Vec<Vec<usize>> = parts.iter().map(|(_, part)| part.class_counts()).collect();
    for (index, class) in first.classes.iter().enumerate() {
        let row: Vec<String> =
            all.iter().map(|counts| format!("{:>7}", grouped(counts[index]))).collect();
        printer.line(format!("{class:width$}  {}", row.join(" ")));
    }
}
