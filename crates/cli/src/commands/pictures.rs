//! Pictures named on the command line, read as a model wants them.

use anyhow::{Result, bail};
use fedanchor::Model;
use fedanchor::model::{Description, Prediction};
use fedanchor_data::formats::{self, Options};
use fedanchor_data::{DataError, ImageSet, pictures};
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// Pictures read and predicted at a time: memory does not grow with their number.
pub(super) const AT_ONCE: usize = 250;

/// The picture files among these paths: files as they are, and everything below folders, in order of their
/// names. Files of other types in folders are counted.
pub(super) fn find(paths: &[PathBuf]) -> Result<(Vec<PathBuf>, usize)> {
    let (mut found, mut others) = (Vec::new(), 0);
    for path in paths {
        if path.is_dir() {
            walk(path, &mut found, &mut others)?;
        } else {
            found.push(path.clone());
        }
    }
    if found.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        bail!("{}: no pictures ({})", names.join(", "), pictures::FORMATS);
    }
    Ok((found, others))
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>, others: &mut usize) -> Result<()> {
    let io = |error| DataError::io(folder, error);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        entries.push(entry.map_err(io)?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            walk(&path, found, others)?;
        } else if pictures::is_picture(&path) {
            found.push(path);
        } else {
            *others += 1;
        }
    }
    Ok(())
}

/// Reads some pictures in the shape of a model; each may fail by itself.
pub(super) fn read(
    paths: &[PathBuf],
    description: &Description,
) -> Vec<fedanchor_data::Result<Vec<u8>>> {
    let read = |path: &PathBuf| pictures::read(path, description.shape, description.fit);
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
