//! Pictures named on the command line, read as a model wants them.

use super::counted;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::Model;
use fedanchor::model::{Description, Prediction};
use fedanchor_data::formats::{self, Options};
use fedanchor_data::pictures::{self, Found};
use fedanchor_data::skipped::FORMATS;
use fedanchor_data::{DataError, ImageSet, Reason, Skipped, paths};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Pictures read and predicted at a time: memory does not grow with their number.
pub(super) const AT_ONCE: usize = 250;

/// The picture files among these paths, and everything below folders; files of other types are noted.
pub(super) fn find(paths: &[PathBuf], printer: &Printer) -> Result<Vec<PathBuf>> {
    let Found { pictures, others } = pictures::find(paths)?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for Skipped { reason, .. } in others {
        let what = match reason {
            Reason::Unsupported { format } => {
                format!("in a format that is not supported ({format}): convert them to {FORMATS}")
            }
            _ => "of other types".to_owned(),
        };
        *counts.entry(what).or_default() += 1;
    }
    for (what, count) in counts {
        printer.status(format!("note: not read: {} {what}", counted(count, "file", "files")));
    }
    Ok(pictures)
}

/// Reads some pictures in the shape of a model; each may fail by itself.
pub(super) fn read(
    paths: &[PathBuf],
    description: &Description,
) -> Vec<fedanchor_data::Result<Vec<u8>>> {
    let read = |path: &PathBuf| {
        paths::text(path)?; // it could not be named beside its prediction
        pictures::read(path, description.shape, description.fit)
    };
    paths.par_iter().map(read).collect()
}

/// Predicts pictures, some at a time, and hands each path with its prediction, or with why there is none, to
/// `take`.
pub(super) fn predict(
    model: &Model,
    paths: &[PathBuf],
    mut take: impl FnMut(&PathBuf, Result<Prediction, &DataError>) -> Result<()>,
) -> Result<()> {
    for paths in paths.chunks(AT_ONCE) {
        let read = read(paths, &model.description);
        let images: Vec<&[u8]> = read.iter().flatten().map(Vec::as_slice).collect();
        let mut predictions = model.predict(&images)?.into_iter();
        for (path, picture) in paths.iter().zip(&read) {
            let mut next = || predictions.next().expect("as many predictions as images");
            take(path, picture.as_ref().map(|_| next()))?;
        }
    }
    Ok(())
}

/// Reads labelled or unlabelled images of any supported format in the shape of a model: the test part of a
/// data set, a folder, or one file.
pub(super) fn read_set(path: &Path, description: &Description) -> Result<ImageSet> {
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
        let (there, wanted) = (set.shape, description.shape);
        bail!("{}: the model reads {wanted}, these are {there}", path.display());
    }
    Ok(set.with_channels(description.shape.channels))
}
