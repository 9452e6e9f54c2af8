//! `fedanchor data get | check | show`.

use super::{counted, findings, grouped};
use crate::cli::{CheckArgs, GetArgs, PathArgs, ShowArgs};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_data::fetch::{self, Phase, Source};
use fedanchor_data::inspection;
use fedanchor_data::{DataSet, ImageSet, catalog, drawing, formats, sample};

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

pub fn check(args: &CheckArgs, printer: &Printer) -> Result<()> {
    if is_sample(&args.data) {
        let Read::Set(data) = read(&args.data)? else { return Ok(()) };
        printer.line(format!("{}: {}", sample::NAME, describe(&data)));
        return Ok(());
    }
    let found = inspection::inspect(&args.data.path, &options(&args.data))?;
    match args.output.json {
        true => printer.json(&found),
        false => findings::report(&found, printer),
    }
    match found.refusal {
        Some(refusal) => bail!(refusal),
        None => {
            printer.status(format!("{}: fit for a run", args.data.path.display()));
            Ok(())
        }
    }
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
    drawing::contact_sheet(&name, &images, 16, &args.out)?;
    printer.status(format!("wrote {}", args.out.display()));
    Ok(())
}

enum Read {
    Set(Box<DataSet>),
    Images(ImageSet),
}

/// A data set with training and test images, or the images of a single file or folder.
fn read(args: &PathArgs) -> Result<Read> {
    if is_sample(args) {
        anyhow::ensure!(
            args.size.is_none(),
            "--size: the embedded sample has 28 pixels per side and cannot be resized"
        );
        return Ok(Read::Set(Box::new(sample::load()?)));
    }
    let options = options(args);
    if formats::is_data_set(&args.path) {
        return Ok(Read::Set(Box::new(formats::open(&args.path, &options)?)));
    }
    Ok(Read::Images(formats::open_images(&args.path, &options)?))
}

fn is_sample(args: &PathArgs) -> bool {
    args.path.as_os_str() == sample::NAME && !args.path.exists()
}

fn options(args: &PathArgs) -> formats::Options {
    formats::Options {
        size: args.size,
        fit: args.fit,
        test_share: args.test_share,
        skip_unreadable: args.skip_unreadable,
        cache: formats::default_cache(),
    }
}

fn describe(data: &DataSet) -> String {
    let readable = match data.skipped.iter().filter(|file| file.reason.is_error()).count() {
        0 => "all readable".to_owned(),
        count => format!("{} unreadable left out", grouped(count)),
    };
    let unlabelled = match &data.unlabelled {
        Some(unlabelled) => format!(", {} unlabelled", grouped(unlabelled.images.len())),
        None => String::new(),
    };
    format!(
        "{} training{unlabelled} and {} test images of {}, {}: {readable}",
        grouped(data.train.len()),
        grouped(data.test.len()),
        shape(&data.train),
        counted(data.train.classes.len(), "class", "classes"),
    )
}

fn describe_images(images: &ImageSet) -> String {
    let labels = match images.labels {
        Some(_) => counted(images.classes.len(), "class", "classes"),
        None => "unlabelled".to_owned(),
    };
    let count = counted(images.len(), "image", "images");
    format!("{count} of {}, {labels}: all readable", shape(images))
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
