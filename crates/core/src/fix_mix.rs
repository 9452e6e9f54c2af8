//! The loss L_fix + b L_mix (appendix B of the paper) for a batch of a cohort: what is drawn, how the
//! images are made, and the loss itself. Clients train on it with pseudo-labels; the server's
//! supervised epoch is the same loss with true labels and all anchors as the fix set.

use crate::config::{Augmentation, MixAugment, MixDraw, MixupConfig, Views};
use crate::error::Result;
use crate::loss::{cross_entropy_each, mean_of_batch, mixed};
use crate::model::Pass;
use crate::packing::{Packing, write};
use crate::schedule::{Sample, Task, mix_partner};
use crate::setting::{Mixture, Setting, View};
use crate::training::{StepLoss, Terms};
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
    /// Whether samples have weights.
    pub weighed: bool,
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
        let mut parts = vec![labels, images];
        if self.mixup.is_some() {
            parts.extend([labels, samples * 4, images, images]);
        }
        if self.weighed {
            parts.extend(vec![samples * 4; self.terms()]);
        }
        Packing::new(&parts)
    }

    /// The parts with weights stand behind all others.
    fn fix_weights(&self) -> usize {
        if self.mixup.is_some() { WEAK_MIX + 1 } else { FIX_IMAGES + 1 }
    }

    fn mix_weights(&self) -> usize {
        self.fix_weights() + 1
    }
}

impl StepLoss for FixMix<'_> {
    fn batch(&self) -> usize {
        self.batch
    }

    fn terms(&self) -> usize {
        1 + usize::from(self.mixup.is_some())
    }

    fn bytes(&self, active: usize) -> usize {
        self.packing(active).total()
    }

    fn fill(&self, tasks: &[Task], samples: &[Sample], out: &mut [u8]) {
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
        let weights = |part: &mut [u8], of: &dyn Fn(&Sample) -> u32| {
            let weight = |s: &Sample| tasks[s.task].weights[of(s) as usize];
            write(part, by_client().map(|at| weight(&samples[at]).to_ne_bytes()));
        };
        labels(parts[FIX_LABELS], &|s| s.fix);
        if self.weighed {
            weights(parts[self.fix_weights()], &|s| s.fix);
        }
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
        if self.weighed {
            weights(parts[self.mix_weights()], &partner);
        }
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

    /// L_fix (eq. 7), and b with L_mix (eq. 9-10). A sample that has a weight counts by it, in the
    /// mixture each of the two by its own.
    fn loss(&self, bytes: &Tensor, pass: &Pass) -> Result<Terms> {
        let setting = self.setting;
        let active = pass.tensors[0].size()[0] as usize;
        let packing = self.packing(active);
        let by_client = [active as i64, self.batch as i64];
        let images = |part| setting.view_images(bytes, &packing, part, self.batch, active);
        let logits = |x: &Tensor, pass: &Pass| {
            setting.network.logits(&setting.network.features(x, pass)?, pass)
        };
        let fix_labels = packing.view(bytes, FIX_LABELS, Kind::Int64, &by_client)?;
        let weights = |part: usize| -> Result<Option<Tensor>> {
            let view = || packing.view(bytes, part, Kind::Float, &by_client);
            self.weighed.then(view).transpose()
        };
        let fix_weights = weights(self.fix_weights())?;
        let Some(mixup) = self.mixup else {
            let x = setting.network_input(&images(FIX_IMAGES)?)?;
            let each = cross_entropy_each(&logits(&x, pass)?, &fix_labels)?;
            return Ok(vec![(1.0, mean_of_batch(&weighed(each, &fix_weights)?)?)].into());
        };
        let mix_weights = weights(self.mix_weights())?;
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
        let fix = weighed(cross_entropy_each(&fix_logits, &fix_labels)?, &fix_weights)?;
        let to_fix = weighed(cross_entropy_each(&mix_logits, &fix_labels)?, &fix_weights)?;
        let to_mix = weighed(cross_entropy_each(&mix_logits, &mix_labels)?, &mix_weights)?;
        let fix_loss = mean_of_batch(&fix)?;
        let mix_loss = mean_of_batch(&mixed(&to_fix, &to_mix, &lambda)?)?;
        Ok(vec![(1.0, fix_loss), (mixup.weight, mix_loss)].into())
    }
}

/// Losses `[K, batch]` times the samples' weights, where they have any.
fn weighed(each: Tensor, weights: &Option<Tensor>) -> Result<Tensor> {
    Ok(match weights {
        Some(weights) => each.f_mul(weights)?,
        None => each,
    })
}
