//! Data sets of arrays, which a program has in memory.

use fedanchor_data::{DataError, DataSet, ImageSet, Result, Shape, Unlabelled, formats};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::path::Path;

/// The name of such a data set in an experiment.
const NAME: &str = "arrays";

thread_local! {
    /// The data of the run that this thread starts.
    static DATA: RefCell<Option<DataSet>> = const { RefCell::new(None) };
}

/// Makes the name known.
pub(crate) fn register() -> Result<()> {
    formats::register(NAME, load)
}

fn load(_path: Option<&Path>) -> Result<DataSet> {
    DATA.with_borrow(Clone::clone).ok_or_else(|| {
        DataError::Unusable(format!(
            "the data set `{NAME}` was in the memory of a Python program: pass it again (`data=...`)"
        ))
    })
}

/// Runs `what` with this data set.
pub(crate) fn with<T>(data: Option<DataSet>, what: impl FnOnce() -> T) -> T {
    let before = DATA.replace(data);
    let result = what();
    DATA.set(before);
    result
}

/// Images `[count, side, side, channels]` as bytes; labels are empty for unlabelled ones.
#[derive(FromPyObject)]
pub(crate) struct Images {
    pixels: Vec<u8>,
    side: usize,
    channels: usize,
    labels: Option<Vec<u16>>,
}

impl Images {
    fn set(self, classes: &[String]) -> ImageSet {
        let Self { pixels, side, channels, labels } = self;
        let classes = labels.as_ref().map_or(Vec::new(), |_| classes.to_vec());
        ImageSet::new(Shape { side, channels }, pixels, labels, classes)
    }
}

/// A data set.
#[derive(FromPyObject)]
pub(crate) struct Arrays {
    train: Images,
    test: Images,
    unlabelled: Option<Images>,
    clients: Vec<Vec<u32>>,
    client_names: Vec<String>,
    classes: Vec<String>,
    flip: bool,
}

impl Arrays {
    /// The package has checked shapes and types; a run checks the rest.
    pub(crate) fn data_set(self) -> DataSet {
        let Self { train, test, unlabelled, clients, client_names, classes, flip } = self;
        let data = DataSet::new(NAME, train.set(&classes), test.set(&classes));
        let unlabelled =
            unlabelled.map(|images| Unlabelled { images: images.set(&[]), clients, client_names });
        DataSet { unlabelled, flip, ..data }
    }
}
