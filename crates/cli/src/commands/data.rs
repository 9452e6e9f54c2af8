//! `fedanchor data list | get | example | check | show`.

use super::pictures::watched;
use super::{bytes, check_exists, counted, drawings, findings, grouped, quoted_path};
use crate::cli::{ExampleArgs, GetArgs, JsonArgs, PathArgs, ShowArgs};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_data::fetch::{self, Phase, Source};
use fedanchor_data::thumbnail::write_png;
use fedanchor_data::{Cache, DataSet, Fit, ImageSet, formats, inspection, paths, sample};
use serde::Serialize;

/// Pixels per side on a contact sheet of pictures of different sizes.
const THUMBNAIL: usize = 64;
/// Digits that are often confused, so that there is something to learn.
const EXAMPLE: [(u16, &str); 5] =
    [(3, "three"), (4, "four"), (5, "five"), (8, "eight"), (9, "nine")];

/// A line of `data list`.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    /// Bytes to download; none for the embedded sample.
    bytes: Option<u64>,
    about: &'static str,
    terms: Option<&'static str>,
}

pub fn list(args: JsonArgs, printer: &Printer) -> Result<()> {
    let about = "part of MNIST, 6,000 training and 1,000 test images";
    let embedded = Listed { name: sample::NAME, bytes: None, about, terms: None };
    let listed: Vec<Listed> = std::iter::once(embedded)
        .chain(formats::PUBLISHED.iter().map(|data| Listed {
            name: data.name,
            bytes: Some(data.bytes()),
            about: data.about,
            terms: Some(data.terms),
        }))
        .collect();
    args.print(printer, &listed, || {
        for Listed { name, bytes: size, about, terms } in &listed {
            let size = size.map_or("built in".to_owned(), bytes);
            let terms = terms.map_or(String::new(), |terms| format!("; {terms}"));
            printer.line(format!("{name:14} {size:>10}  {about}{terms}"));
        }
    });
    Ok(())
}

pub fn get(args: GetArgs, printer: &Printer) -> Result<()> {
    let published = formats::published(&args.name)?;
    let source = match args.mirror {
        Some(url) => Source::Mirror(url),
        None if args.from.is_empty() => Source::Official,
        None => Source::Local(args.from),
    };
    let bar = printer.bar(0, "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}");
    let path = fetch::get(published, &args.dir, source, &mut |progress| {
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

pub fn example(args: &ExampleArgs, printer: &Printer) -> Result<()> {
    let out = &args.out;
    if out.exists() {
        bail!("{}: already exists: choose another name", out.display());
    }
    let data = sample::load()?;
    let (mut labelled, mut unlabelled, mut test) = ([0; EXAMPLE.len()], 0, 0);
    for (images, is_test) in [(&data.train, false), (&data.test, true)] {
        for (index, label) in images.labels.iter().flatten().enumerate() {
            let Some(class) = EXAMPLE.iter().position(|(digit, _)| digit == label) else {
                continue;
            };
            let name = EXAMPLE[class].1;
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
        EXAMPLE.len(),
        grouped(unlabelled),
        grouped(test),
    ));
    printer.status(format!("next: fedanchor init {}", quoted_path(out)));
    Ok(())
}

pub fn check(args: &PathArgs, printer: &Printer) -> Result<()> {
    check_there(args)?;
    let printer = &printer.for_json(args.output.json);
    let found = if is_sample(args) {
        inspection::of_images(&args.path, &embedded(args)?)
    } else {
        let options = options(args)?;
        watched(printer, "looking at", &options, |options| {
            inspection::inspect(&args.path, options)
        })?
    };
    args.output.print(printer, &found, || findings::report(&found, printer));
    match found.refusal {
        Some(refusal) => bail!(refusal),
        None => {
            printer.status(format!("{}: ready for a run", args.path.display()));
            Ok(())
        }
    }
}

/// The result of `data show`.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    /// Pixels per side, as drawn.
    size: usize,
    channels: usize,
    classes: &'a [String],
    parts: Vec<ShownPart>,
    unreadable: usize,
    contact_sheet: String,
}

#[derive(Serialize)]
struct ShownPart {
    name: &'static str,
    images: usize,
    /// Images per class; empty without labels.
    by_class: Vec<usize>,
}

pub fn show(args: &ShowArgs, printer: &Printer) -> Result<()> {
    check_there(&args.data)?;
    let output = args.data.output;
    let printer = &printer.for_json(output.json);
    let name = args.data.path.display().to_string();
    let mut options = options(&args.data)?;
    if options.size.is_none() && !is_sample(&args.data) && !formats::has_one_size(&args.data.path)?
    {
        options.size = Some(THUMBNAIL);
        options.fit = args.data.fit.unwrap_or(Fit::Pad);
        let fitted = match options.fit {
            Fit::Stretch => "stretched",
            Fit::Crop => "cropped",
            Fit::Pad => "padded",
        };
        printer.status(format!(
            "note: the pictures are not all square and of one size: {fitted} to {THUMBNAIL} x {THUMBNAIL} pixels \
             (change this with --size and --fit)"
        ));
    }
    let (about, parts, unreadable) =
        watched(printer, "decoding", &options, |options| read(&args.data, options))?;
    let (_, images) = &parts[0];
    let counted = parts.iter().map(|(name, images)| {
        let by_class = images.labels.as_ref().map_or(Vec::new(), |_| images.class_counts());
        ShownPart { name, images: images.len(), by_class }
    });
    let shown = Shown {
        name: &name,
        size: images.shape.side,
        channels: images.shape.channels,
        classes: &images.classes,
        parts: counted.collect(),
        unreadable,
        contact_sheet: paths::shown(&args.out),
    };
    output.print(printer, &shown, || {
        printer.line(format!("{name}: {about}"));
        let parts = shown.parts.iter().map(|part| (part.name, part.by_class.clone()));
        findings::by_class(shown.classes, &parts.collect::<Vec<_>>(), printer);
    });
    drawings::contact_sheet(&name, images, 16, &args.out)?;
    printer.status(format!("wrote {}", args.out.display()));
    Ok(())
}

/// A data set in words, its parts and the number of unreadable files, or the same of a single file or folder.
type Read = (String, Vec<(&'static str, ImageSet)>, usize);

fn read(args: &PathArgs, options: &formats::Options) -> Result<Read> {
    let data = if is_sample(args) {
        embedded(args)?
    } else if formats::is_data_set(&args.path) {
        formats::open(&args.path, options)?
    } else {
        let images = formats::open_images(&args.path, options)?;
        return Ok((describe_images(&images), vec![("images", images)], 0));
    };
    let (about, unreadable) = (describe(&data), unreadable(&data));
    let mut parts = vec![("train", data.train), ("test", data.test)];
    parts.extend(data.unlabelled.map(|unlabelled| ("unlabelled", unlabelled.images)));
    Ok((about, parts, unreadable))
}

fn check_there(args: &PathArgs) -> Result<()> {
    if is_sample(args) {
        return Ok(());
    }
    check_exists(&args.path, "give a data set, a folder of pictures, or a file of images")
}

fn is_sample(args: &PathArgs) -> bool {
    args.path.as_os_str() == sample::NAME && !args.path.exists()
}

fn embedded(args: &PathArgs) -> Result<DataSet> {
    anyhow::ensure!(
        args.size.is_none(),
        "--size: the embedded sample has 28 pixels per side and cannot be resized"
    );
    Ok(sample::load()?)
}

fn options(args: &PathArgs) -> Result<formats::Options> {
    Ok(formats::Options {
        size: args.size,
        fit: args.fit.unwrap_or_default(),
        test_share: args.test_share,
        skip_unreadable: args.skip_unreadable,
        cache: Cache::of_user()?,
        ..formats::Options::default()
    })
}

fn unreadable(data: &DataSet) -> usize {
    data.skipped.iter().filter(|file| file.reason.is_error()).count()
}

fn describe(data: &DataSet) -> String {
    let readable = match unreadable(data) {
        0 => "all readable".to_owned(),
        count => format!("{} unreadable skipped", grouped(count)),
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
