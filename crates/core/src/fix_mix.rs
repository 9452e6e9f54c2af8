//! The loss L_fix + b L_mix (appendix B of the paper) for a batch of a cohort: what is drawn, how the
//! images are made, and the loss itself. Clients train on it with pseudo-labels; the server's
//! supervised epoch is the same loss with true labels and all anchors as the fix set.

use crate::config::{Augmentation, MixAugment, MixDraw, MixupConfig, Views};
use crate::error::Result;
use crate::loss::{cross_entropy, mix_loss};
use crate::model::Pass;
use crate::packing::{Packing, write};
use crate::schedule::{Sample, Task, mix_partner};
use crate::setting::{Mixture, Setting, View};
use fedanchor_data::{Purpose, augment};
use tch::{Kind, Tensor};

/// How fix and mix batches are made in a round.
#[derive(Debug, Clone, Copy)]
pub struct FixMix<'a> {
    /// What does not change.
    pub setting: &'a Setting,
    /// The round, from 1; 0 is pre-training.
    pub round: u32,
    /// Samples of a client in a batch.
    pub batch: usize,
    /// Augmentation of the fix view.
    pub augment: Augmentation,
    /// The mix loss, or none of it.
    pub mixup: Option<&'a MixupConfig>,
    /// Whether batch norm sees the two views apart.
    pub views: Views,
}

/// The parts of a batch, in their order; the last four only with mixup. Labels and lambda are
/// `[K, batch]`, images 8-bit `[batch, K, H, W, C]`.
const FIX_LABELS: usize = 0;
const FIX_IMAGES: usize = 1;
const MIX_LABELS: usize = 2;
const LAMBDA: usize = 3;
const WEAK_FIX: usize = 4;
const WEAK_MIX: usize = 5;

impl FixMix<'_> {
    fn packing(&self, active: usize) -> Packing {
        let samples = active * self.batch;
        let (labels, images) = (samples * 8, samples * self.setting.image_bytes());
        match self.mixup {
            None => Packing::new(&[labels, images]),
            Some(_) => Packing::new(&[labels, images, labels, samples * 4, images, images]),
        }
    }

    /// Terms of the loss.
    pub fn terms(&self) -> usize {
        1 + usize::from(self.mixup.is_some())
    }

    /// Bytes of a step in which this many clients take part.
    pub fn bytes(&self, active: usize) -> usize {
        self.packing(active).total()
    }

    /// Draws and renders one step's inputs on the host. Nothing here depends on the parameters, so
    /// it may run ahead of the training.
    pub fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
        let active = samples.len() / self.batch;
        let mut parts = self.packing(active).split(out);
        let stream = |purpose, sample: &Sample| {
            self.setting.stream(purpose, self.round, tasks[sample.task].who).epoch(sample.epoch)
        };
        // Samples come row by row, one of every client; labels are kept client by client.
        let by_client =
            || (0..active).flat_map(|slot| (0..self.batch).map(move |row| row * active + slot));
        let labels = |part: &mut [u8], of: &dyn Fn(&Sample) -> u32| {
            let label = |s: &Sample| i64::from(tasks[s.task].labels[of(s) as usize]);
            write(part, by_client().map(|at| label(&samples[at]).to_ne_bytes()));
        };
        let fix_view = samples.iter().map(|s| {
            let image = tasks[s.task].image(s.fix);
            match self.augment {
                Augmentation::None => View::Raw(image),
                Augmentation::Weak => View::Weak(image, stream(Purpose::Strong, s), s.position),
                Augmentation::Strong => View::Strong(image, stream(Purpose::Strong, s), s.position),
            }
        });
        labels(parts[FIX_LABELS], &|s| s.fix);
        self.setting.render(&fix_view.collect::<Vec<_>>(), parts[FIX_IMAGES]);
        let Some(mixup) = self.mixup else { return };

        let partner =
            |s: &Sample| mix_partner(self.setting, self.round, &tasks[s.task], s, mixup.mix_set);
        // Flip and crop only move pixels, so augmenting the mixture is augmenting both images alike.
        let mix_purpose = match mixup.augment {
            MixAugment::Before => Purpose::MixWeak,
            MixAugment::After => Purpose::Weak,
        };
        let weak = |part: &mut [u8], of: &dyn Fn(&Sample) -> u32, purpose| {
            let view = |s: &Sample| (tasks[s.task].image(of(s)), stream(purpose, s), s.position);
            let views =
                samples.iter().map(view).map(|(image, stream, at)| View::Weak(image, stream, at));
            self.setting.render(&views.collect::<Vec<_>>(), part);
        };
        labels(parts[MIX_LABELS], &partner);
        let lambda = |s: &Sample| {
            let at = match mixup.draw {
                MixDraw::Batch => s.step,
                MixDraw::Sample => s.position,
            };
            augment::mixup_lambda(mixup.alpha, &mut stream(Purpose::MixLambda, s).at(at))
        };
        write(parts[LAMBDA], by_client().map(|at| lambda(&samples[at]).to_ne_bytes()));
        weak(parts[WEAK_FIX], &|s| s.fix, Purpose::Weak);
        weak(parts[WEAK_MIX], &partner, mix_purpose);
    }

    /// The terms of the loss with their weights: L_fix (eq. 7), and b with L_mix (eq. 9-10).
    pub fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Vec<(f64, Tensor)>> {
        let setting = self.setting;
        let active = pass.tensors[0].size()[0] as usize;
        let packing = self.packing(active);
        let by_client = [active as i64, self.batch as i64];
        let images = |part| setting.view_images(bytes, &packing, part, self.batch, active);
        let logits = |x: &Tensor, pass: &Pass| {
            setting.network.logits(&setting.network.features(x, pass)?, pass)
        };
        let fix_labels = packing.view(bytes, FIX_LABELS, Kind::Int64, &by_client)?;
        let Some(mixup) = self.mixup else {
            let x = setting.network_input(&images(FIX_IMAGES)?)?;
            return Ok(vec![(1.0, cross_entropy(&logits(&x, pass)?, &fix_labels)?)]);
        };
        let mix_labels = packing.view(bytes, MIX_LABELS, Kind::Int64, &by_client)?;
        let lambda = packing.view(bytes, LAMBDA, Kind::Float, &by_client)?;
        let fix = images(FIX_IMAGES)?;
        let (first, second) = (images(WEAK_FIX)?, images(WEAK_MIX)?);
        let mixture = Mixture { first: &first, second: &second, lambda: &lambda };
        let (fix_logits, mix_logits) = match self.views {
            Views::Separate if !pass.fused => (
                logits(&setting.network_input(&fix)?, pass)?,
                logits(&setting.mixed_input(&mixture)?, pass)?,
            ),
            views => {
                let apart = if views == Views::Separate { 2 } else { 1 };
                let x = setting.both_inputs(&fix, &mixture)?;
                let both = logits(&x, &Pass { views: apart, ..*pass })?; // [K, 2 * batch, C]
                let batch = self.batch as i64;
                (both.f_narrow(1, 0, batch)?, both.f_narrow(1, batch, batch)?)
            }
        };
        let fix_loss = cross_entropy(&fix_logits, &fix_labels)?;
        let mix_loss = mix_loss(&mix_logits, &fix_labels, &mix_labels, &lambda)?;
        Ok(vec![(1.0, fix_loss), (mixup.weight, mix_loss)])
    }
}
