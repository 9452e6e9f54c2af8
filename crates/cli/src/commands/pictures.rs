//! Pictures named on the command line, and reading many of them.

use super::counted;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::model::{Description, Prediction};
use fedanchor::{Experiment, Model};
use fedanchor_data::features::{FeatureFormat, Features};
use fedanchor_data::formats::{self, Files, Options};
use fedanchor_data::pictures::{self, Found};
use fedanchor_data::skipped::FORMATS;
use fedanchor_data::{DataError, ImageSet, Progress, Reason, Shape, Skipped, paths};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What to give instead of a path that leads nowhere.
pub(super) const PICTURES: &str = "give pictures, or folders of them";

/// Pictures that are read and predicted at a time, so that memory does not grow with their number.
pub(super) const AT_ONCE: usize = 250;

/// The picture files among these paths and below these folders; notes how many files are of other types.
pub(super) fn find(paths: &[PathBuf], printer: &Printer) -> Result<Vec<PathBuf>> {
    if paths.iter().all(|path| path.try_exists().is_ok_and(|exists| !exists)) {
        let names: Vec<String> = paths.iter().map(|path| paths::in_message(path)).collect();
        bail!("{}: no such file or folder: {PICTURES}", names.join(", "));
    }
    let Found { pictures, others } = pictures::find(paths)?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for Skipped { reason, .. } in others {
        let what = match reason {
            Reason::Unsupported { format } => {
                format!("in the unsupported format {format}: convert them to {FORMATS}")
            }
            _ => "of other types".to_owned(),
        };
        *counts.entry(what).or_default() += 1;
    }
    for (what, count) in counts {
        printer.status(format!("note: skipped {} {what}", counted(count, "file", "files")));
    }
    Ok(pictures)
}

/// Reads pictures in the shape of a model; each may fail by itself.
pub(super) fn read(
    paths: &[PathBuf],
    description: &Description,
) -> Vec<fedanchor_data::Result<Vec<u8>>> {
    let read = |path: &PathBuf| {
        paths::text(path)?; // its prediction names it
        pictures::read(path, description.shape, description.fit)
    };
    paths.par_iter().map(read).collect()
}

/// A picture and what a model predicts of it.
pub(super) struct Predicted<'a> {
    pub(super) prediction: Prediction,
    pub(super) pixels: &'a [u8],
    /// What the model reads: the pixels, or the features that its trunk makes of them.
    pub(super) input: &'a [u8],
}

/// Predicts pictures, some at a time, and passes each path with its prediction, or the error of reading it, to `take`.
pub(super) fn predict(
    model: &Model,
    paths: &[PathBuf],
    printer: &Printer,
    mut take: impl FnMut(&PathBuf, Result<Predicted, &DataError>) -> Result<()>,
) -> Result<()> {
    let is_grey = model.description.shape.channels == 1;
    let mut coloured = 0;
    for paths in paths.chunks(AT_ONCE) {
        if is_grey {
            coloured += paths.par_iter().filter(|path| pictures::is_coloured(path)).count();
        }
        let read = read(paths, &model.description);
        let images: Vec<&[u8]> = read.iter().flatten().map(Vec::as_slice).collect();
        let features = model.trunk().map(|trunk| trunk.encode_each(&images)).transpose()?;
        let inputs = features.as_ref().map(|all| all.iter().map(Vec::as_slice).collect());
        let inputs: Vec<&[u8]> = inputs.unwrap_or(images);
        let mut predictions = model.predict(&inputs)?.into_iter().zip(inputs);
        for (path, picture) in paths.iter().zip(&read) {
            let predicted = |pixels| {
                let (prediction, input) =
                    predictions.next().expect("as many predictions as images");
                Predicted { prediction, pixels, input }
            };
            take(path, picture.as_deref().map(predicted))?;
        }
    }
    if coloured > 0 {
        printer.status(format!(
            "note: {} in colour, and the model was trained on grey ones: it sees only their brightness; for colours, \
             train on pictures in colour",
            counted(coloured, "picture is", "pictures are")
        ));
    }
    Ok(())
}

/// Reads images in any supported format in the shape of a model: the test part of a data set, a folder, or one file. If
/// the model has a trunk, they pass it here, once.
pub(super) fn read_set(path: &Path, model: &Model) -> Result<ImageSet> {
    let description = &model.description;
    if path != Path::new(fedanchor_data::sample::NAME) {
        super::check_exists(path, "give a folder with one folder of pictures per class")?;
    }
    let options =
        Options { size: Some(description.shape.side), fit: description.fit, ..Options::default() };
    let test = ["test", "val"].map(|name| path.join(name)).into_iter().find(|test| test.is_dir());
    let set = if path == Path::new(fedanchor_data::sample::NAME) && !path.exists() {
        fedanchor_data::sample::load()?.test
    } else if let Some(test) = test {
        formats::open_images(&test, &options)?
    } else if formats::is_data_set(path) {
        formats::open(path, &options)?.test
    } else {
        formats::open_images(path, &options)?
    };
    if set.shape.side != description.shape.side {
        let (expected, got) = (description.shape, set.shape);
        bail!("{}: the model expects {expected}, got {got}", path.display());
    }
    let mut set = set.with_channels(description.shape.channels);
    if let Some(trunk) = model.trunk() {
        let (picture, Shape { side, channels: width }) = (description.shape, trunk.output);
        let format = FeatureFormat { picture, width, side, views: 0 };
        let values = trunk.encode_each(&of_set(&set))?.concat();
        set.features = Some(Features { format, values });
    }
    Ok(set)
}

/// The files of the images that [`read_set`] reads, if they are files of pictures.
pub(super) fn files_of_set(path: &Path) -> Result<Vec<PathBuf>> {
    let test = ["test", "val"].map(|name| path.join(name)).into_iter().find(|test| test.is_dir());
    let is_data_set = test.is_none() && formats::is_data_set(path);
    let files = formats::picture_files(test.as_deref().unwrap_or(path), &Options::default())?;
    Ok(if is_data_set { files.test } else { files.train })
}

/// The files of the pictures of an experiment, if they are files of pictures.
pub(super) fn files_of_run(experiment: &Experiment) -> Result<Files> {
    let data = &experiment.data;
    let options = Options { test_share: data.test_share, ..Options::default() };
    match &data.path {
        Some(path) => Ok(formats::picture_files(Path::new(path), &options)?),
        None => Ok(Files::default()),
    }
}

/// All images of a set.
pub(super) fn of_set(set: &ImageSet) -> Vec<&[u8]> {
    (0..set.len()).map(|index| set.input(index)).collect()
}

/// Does work that reads many pictures, with a progress bar.
pub(super) fn watched<T>(
    printer: &Printer,
    what: &str,
    options: &Options,
    work: impl FnOnce(&Options) -> T,
) -> T {
    let template = format!("{what} [{{bar:30}}] {{pos}} of {{len}} pictures, {{eta}} left");
    let bar = printer.bar(0, &template);
    let shown = bar.clone();
    let progress = Progress::new(move |done, total| {
        shown.set_length(total as u64);
        shown.set_position(done as u64);
    });
    let outcome = work(&Options { progress, ..options.clone() });
    bar.finish_and_clear();
    outcome
}
