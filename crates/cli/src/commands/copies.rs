//! Pictures that show the same in two places, as `eval` and `label` find them with a trained model.

use crate::printer::Printer;
use anyhow::Result;
use fedanchor::Model;
use fedanchor::model::{MOST_COMPARED, Signature, copies};
use fedanchor_data::inspection::{Duplicates, Location, NearPair};
use fedanchor_data::{ImageSet, Shape};
use std::collections::HashMap;
use std::path::PathBuf;

/// Pictures to compare with each other.
pub(super) struct Compared<'a> {
    model: &'a Model,
    signatures: Vec<Signature>,
    locations: Vec<Location>,
}

impl<'a> Compared<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Self { model, signatures: Vec::new(), locations: Vec::new() }
    }

    /// Adds the pictures of a part, unless their files are not known: there is nothing to be done about those.
    pub(super) fn add(
        &mut self,
        part: &'static str,
        set: &ImageSet,
        files: &[PathBuf],
    ) -> Result<()> {
        if files.len() != set.len() {
            return Ok(());
        }
        for (at, path) in files.iter().enumerate() {
            let class = set.labels.as_ref().map(|labels| &set.classes[usize::from(labels[at])]);
            let location = Location { path: path.clone(), part, class: class.cloned() };
            self.add_one(location, set.shape, set.image(at), set.input(at))?;
        }
        Ok(())
    }

    /// Adds a picture: its pixels in this shape, and what the model reads of it.
    pub(super) fn add_one(
        &mut self,
        location: Location,
        shape: Shape,
        pixels: &[u8],
        input: &[u8],
    ) -> Result<()> {
        self.locations.push(location);
        if self.locations.len() <= MOST_COMPARED {
            self.signatures.push(self.model.signature(shape, pixels, input)?);
        }
        Ok(())
    }

    /// The pairs in two places.
    pub(super) fn duplicates(self, printer: &Printer) -> Result<Duplicates> {
        let Self { signatures, locations, .. } = self;
        if locations.len() > MOST_COMPARED {
            printer.status(format!(
                "note: not compared with each other: more than {} pictures; `fedanchor data check` compares thumbnails",
                super::grouped(MOST_COMPARED)
            ));
            return Ok(Duplicates::default());
        }
        let mut numbers = HashMap::new();
        let groups: Vec<usize> = locations
            .iter()
            .map(|location| {
                let next = numbers.len();
                *numbers.entry((location.part, &location.class)).or_insert(next)
            })
            .collect();
        let location = |at: usize| locations[at].clone();
        let pairs = copies(&signatures, &groups)?.into_iter();
        let pairs = pairs
            .map(|[first, second]| NearPair { first: location(first), second: location(second) });
        // One file may be in two of the parts that are compared here, such as an anchor in the folder to be labelled.
        let same = |pair: &NearPair| super::same_file(&pair.first.path, &pair.second.path);
        Ok(Duplicates::new(Vec::new(), pairs.filter(|pair| !same(pair)).collect()))
    }
}
