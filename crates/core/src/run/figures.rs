//! What a run saves for figures, where `[record]` asks for it.
//!
//! The files of a round are written once its checkpoint is complete, and before its lines: a round on record
//! has them, and they can be written again from the checkpoint after a kill in between.

use super::folder::{RoundFile, json};
use super::{Observer, Run};
use crate::error::{Error, Result};
use crate::federation::{Coordinator, Picked};
use fedanchor_engine::guard;
use fedanchor_record::files;

impl Run<'_> {
    /// The files of a round that has just finished.
    pub(super) fn figures(
        &self,
        coordinator: &Coordinator,
        round: u32,
        picked: Option<&Picked>,
    ) -> Result<Vec<RoundFile>> {
        let mut files = Vec::new();
        if let Some(picked) = picked {
            files.push(self.samples(picked)?);
        }
        if self.simulation.experiment.record.latents.contains(&round) {
            files.push(latents(coordinator, round)?);
        }
        Ok(files)
    }

    /// Brings the files to where the run starts or resumes: after round `last`, with these samples.
    pub(super) fn open_figures(
        &self,
        coordinator: &Coordinator,
        last: Option<u32>,
        picked: Option<&Picked>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let asked = &self.simulation.experiment.record.latents;
        let there = self.folder.keep_latents(last)?;
        match picked {
            Some(picked) => self.samples(picked)?.write(self.out)?,
            None => self.folder.remove_samples()?,
        }
        let mut missing: Vec<u32> =
            asked.iter().copied().filter(|round| Some(*round) <= last).collect();
        missing.retain(|round| !there.contains(round));
        if let Some(round) = missing.pop_if(|round| Some(*round) == last) {
            latents(coordinator, round)?.write(self.out)?; // of the model that was just restored
        }
        if !missing.is_empty() {
            let rounds: Vec<String> = missing.iter().map(u32::to_string).collect();
            observer.notice(&format!(
                "record.latents: none are saved for rounds that were over before it named them: {}",
                rounds.join(", ")
            ));
        }
        Ok(())
    }

    fn samples(&self, picked: &Picked) -> Result<RoundFile> {
        let text = json(&self.simulation.samples(picked)?)? + "\n";
        Ok(RoundFile { name: files::SAMPLES.to_owned(), bytes: text.into_bytes() })
    }
}

fn latents(coordinator: &Coordinator, round: u32) -> Result<RoundFile> {
    let (name, latents) = (files::latents(round), guard(|| coordinator.test_latents())?);
    let bytes = latents.encode().map_err(|error| Error::file(&name, error))?;
    Ok(RoundFile { name, bytes })
}
