//! `fedanchor data get | check | show`.

use super::grouped;
use crate::cli::{CheckArgs, GetArgs, PathArgs, ShowArgs};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_data::fetch::{self, Phase, Source};
use fedanchor_data::inspection::{self, Inspection, Part, Place, Spread};
use fedanchor_data::skipped::Skipped;
use fedanchor_data::{DataSet, ImageSet, catalog, formats, picture, sample};
use std::collections::BTreeMap;

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

/// Files and pairs of files that a report names; `--json` names all.
const NAMED: usize = 10;

pub fn check(args: &CheckArgs, printer: &Printer) -> Result<()> {
    if is_sample(&args.data) {
        let Read::Set(data) = read(&args.data)? else { return Ok(()) };
        printer.line(format!("{}: {}", sample::NAME, describe(&data)));
        return Ok(());
    }
    let found = inspection::inspect(&args.data.path, &options(&args.data))?;
    if args.json {
        printer.line(serde_json::to_string_pretty(&found)?);
    } else {
        report(&found, printer);
    }
    match found.refusal {
        Some(refusal) => bail!(refusal),
        None => {
            printer.status(format!("{}: fit for a run", args.data.path.display()));
            Ok(())
        }
    }
}

/// What an inspection found, for a person.
fn report(found: &Inspection, printer: &Printer) {
    if found.parts.is_empty() {
        return;
    }
    printer.line(format!("{}: {}", found.path.display(), classes(found.classes.len())));
    printer.line(format!(
        "{:10}  {:>8}  {:22}  {:22}  {:24}  {:>6}  {:>4}",
        "part", "pictures", "width", "height", "width / height", "square", "grey"
    ));
    for part in &found.parts {
        let share = |count: usize| match part.pictures {
            0 => "-".to_owned(),
            all => format!("{:.0}%", 100.0 * count as f64 / all as f64),
        };
        printer.line(format!(
            "{:10}  {:>8}  {:22}  {:22}  {:24}  {:>6}  {:>4}",
            part.name,
            grouped(part.pictures),
            range(part.width, 0),
            range(part.height, 0),
            range(part.aspect, 2),
            share(part.square),
            share(part.grey),
        ));
    }
    for part in &found.parts {
        per_class(part, &found.classes, printer);
        if let (Some(least), Some(most)) = (
            part.by_client.iter().map(|client| client.1).min(),
            part.by_client.iter().map(|client| client.1).max(),
        ) {
            let count = part.by_client.len();
            let each = format!("{} to {} pictures each", grouped(least), grouped(most));
            printer.line(format!("{}: {} clients, {each}", part.name, grouped(count)));
        }
    }
    let mut groups: BTreeMap<&str, Vec<&Skipped>> = BTreeMap::new();
    for file in found.unreadable.iter().chain(&found.others) {
        groups.entry(file.reason.group()).or_default().push(file);
    }
    for (reason, files) in groups {
        let what = if files.len() == 1 { "file" } else { "files" };
        let lines = files.iter().map(|file| match file.reason.is_error() {
            true => format!("{}: {}", file.path.display(), file.reason),
            false => file.path.display().to_string(),
        });
        names(&format!("{reason}: {} {what}", grouped(files.len())), lines.collect(), printer);
    }
    let exact = &found.duplicates.exact;
    if !exact.is_empty() {
        let lines = exact.iter().map(|group| group.iter().map(place).collect::<Vec<_>>());
        let lines = lines.map(|group| group.join(" = ")).collect();
        let head = "the same file under two labels or in two parts";
        names(&format!("{head}: {}", grouped(exact.len())), lines, printer);
    }
    let near = &found.duplicates.near;
    if !near.is_empty() {
        let lines =
            near.iter().map(|pair| format!("{} ~ {}", place(&pair.first), place(&pair.second)));
        let head = "pictures that look the same under two labels or in two parts";
        names(&format!("{head}: {}", grouped(near.len())), lines.collect(), printer);
    }
}

fn classes(count: usize) -> String {
    match count {
        0 => "no classes".to_owned(),
        1 => "1 class".to_owned(),
        _ => format!("{} classes", grouped(count)),
    }
}

fn place(place: &Place) -> String {
    match &place.class {
        Some(class) => format!("{} ({class})", place.path.display()),
        None => place.path.display().to_string(),
    }
}

fn range(spread: Option<Spread>, digits: usize) -> String {
    let Some(Spread { smallest, median, largest }) = spread else { return "-".to_owned() };
    if smallest == largest {
        return format!("{smallest:.digits$}");
    }
    format!("{smallest:.digits$}-{largest:.digits$}, median {median:.digits$}")
}

fn per_class(part: &Part, classes: &[String], printer: &Printer) {
    let counts = || part.by_class.iter().zip(classes);
    let (Some(least), Some(most)) = (counts().min_by_key(|c| c.0), counts().max_by_key(|c| c.0))
    else {
        return;
    };
    if least.0 == most.0 {
        let what = if *least.0 == 1 { "picture" } else { "pictures" };
        printer.line(format!("{}: {} {what} per class", part.name, grouped(least.0)));
        return;
    }
    printer.line(format!(
        "{}: {} ({}) to {} ({}) pictures per class",
        part.name,
        grouped(least.0),
        least.1,
        grouped(most.0),
        most.1
    ));
}

fn names(head: &str, lines: Vec<String>, printer: &Printer) {
    printer.line(head);
    for line in lines.iter().take(NAMED) {
        printer.line(format!("  {line}"));
    }
    if lines.len() > NAMED {
        printer.line(format!("  ... and {} more (--json lists all)", lines.len() - NAMED));
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
    picture::contact_sheet(&name, &images, 16, &args.out)?;
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
        classes(data.train.classes.len()),
    )
}

fn describe_images(images: &ImageSet) -> String {
    let labels = match images.labels {
        Some(_) => classes(images.classes.len()),
        None => "unlabelled".to_owned(),
    };
    let what = if images.len() == 1 { "image" } else { "images" };
    format!("{} {what} of {}, {labels}: all readable", grouped(images.len()), shape(images))
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
