//! What a run saves for figures, where `[record]` asks for it.
//!
//! The files of a round are written once its checkpoint is complete, and before its lines: a round on record
//! has them, and they can be written again from the checkpoint after a kill in between.

use super::folder::{RoundFile, json};
use super::results::Progress;
use super::{Observer, Run};
use crate::disk;
use crate::error::{Error, Result};
use crate::federation::Coordinator;
use crate::simulation::Picked;
use fedanchor_engine::guard;
use fedanchor_record::{Manifest, files};

impl Run<'_> {
    pub(super) fn figures(
        &self,
        coordinator: &Coordinator,
        round: u32,
        picked: Option<&Picked>,
    ) -> Result<Vec<RoundFile>> {
        let mut files = Vec::new();
        files.extend(picked.map(|picked| self.samples(picked)).transpose()?.flatten());
        if self.prepared.federation().experiment.record.latents.contains(&round) {
            files.push(latents(coordinator, round)?);
        }
        Ok(files)
    }

    /// Brings the files to where the run starts or resumes: after round `last`.
    pub(super) fn open_figures(
        &self,
        coordinator: &Coordinator,
        last: Option<u32>,
        progress: &mut Progress,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let asked = &self.prepared.federation().experiment.record.latents;
        let (mut there, written) = (Vec::new(), &mut progress.files);
        for round in self.folder.keep_latents(last)? {
            let name = files::latents(round);
            let content = disk::read(&self.options.out.join(&name))?;
            match written.check(&name, &content) {
                Ok(()) => written.add(&name, &content), // those of an earlier version have no checksum
                Err(_) if Some(round) == last => continue, // written again below
                Err(mismatch) => observer.notice(&format!("{name} {mismatch}")),
            }
            there.push(round);
        }
        let samples = progress.picked.as_ref().map(|picked| self.samples(picked)).transpose()?;
        match samples.flatten() {
            Some(samples) => self.write_figure(&samples, written)?,
            None => {
                self.folder.remove(files::SAMPLES)?;
                written.remove(files::SAMPLES);
            }
        }
        let mut missing: Vec<u32> =
            asked.iter().copied().filter(|round| Some(*round) <= last).collect();
        missing.retain(|round| !there.contains(round));
        if let Some(round) = missing.pop_if(|round| Some(*round) == last) {
            // Of the model that was just restored.
            self.write_figure(&latents(coordinator, round)?, written)?;
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

    fn write_figure(&self, file: &RoundFile, written: &mut Manifest) -> Result<()> {
        written.add(&file.name, &file.bytes);
        file.write(self.options.out)
    }

    fn samples(&self, picked: &Picked) -> Result<Option<RoundFile>> {
        let Some(simulation) = self.prepared.simulation() else { return Ok(None) };
        let text = json(&simulation.samples(picked)?)? + "\n";
        Ok(Some(RoundFile { name: files::SAMPLES.to_owned(), bytes: text.into_bytes() }))
    }
}

fn latents(coordinator: &Coordinator, round: u32) -> Result<RoundFile> {
    let (name, latents) = (files::latents(round), guard(|| coordinator.test_latents())?);
    let bytes = latents.encode().map_err(|error| Error::file(&name, error))?;
    Ok(RoundFile { name, bytes })
}
