//! The loss L_fix + b L_mix (appendix B of the paper) for a batch of a cohort: what is drawn, how the
//! images are made, and the loss itself. Clients train on it with pseudo-labels; the server's
//! supervised epoch is the same loss with true labels and all anchors as the fix set.

use crate::config::{Augmentation, MixAugment, MixDraw, MixupConfig, Views};
use crate::error::Result;
use crate::loss::{cross_entropy, mix_loss};
use crate::model::Pass;
use crate::setting::{Setting, View};
use crate::training::{Sample, Task, mix_partner};
use fedanchor_data::{Purpose, augment};
use tch::Tensor;

/// How fix and mix batches are made in a round.
#[derive(Debug, Clone, Copy)]
pub struct FixMix<'a> {
    /// What does not change.
    pub setting: &'a Setting,
    /// The round, from 1; 0 is pre-training.
    pub round: u32,
    /// Augmentation of the fix view.
    pub augment: Augmentation,
    /// The mix loss, or none of it.
    pub mixup: Option<&'a MixupConfig>,
    /// Whether batch norm sees the two views apart.
    pub views: Views,
}

/// One batch on the device; images are 8-bit `[batch, K, H, W, C]`, labels `[K, batch]`.
#[derive(Debug)]
pub struct Batch {
    fix_images: Tensor,
    fix_labels: Tensor,
    mix: Option<Mix>,
}

/// The mix view of a batch: x_mix = lambda x_fix + (1 - lambda) x_mixset (eq. 8).
#[derive(Debug)]
struct Mix {
    weak_fix: Tensor,
    weak_mix: Tensor,
    labels: Tensor,
    lambda: Tensor, // [K, batch]
}

impl FixMix<'_> {
    /// Draws and renders one step's inputs on the host. Nothing here depends on the parameters, so
    /// it may run ahead of the training.
    pub fn inputs(&self, tasks: &[Task], samples: &[Sample], active: usize) -> Result<Batch> {
        let stream = |purpose, sample: &Sample| {
            self.setting.stream(purpose, self.round, tasks[sample.task].who).epoch(sample.epoch)
        };
        let labels = |of: &dyn Fn(&Sample) -> u32| {
            let label = |s: &Sample| i64::from(tasks[s.task].labels[of(s) as usize]);
            let labels: Vec<i64> = samples.iter().map(label).collect();
            self.by_client(&Tensor::f_from_slice(&labels)?, active)
        };
        let fix_view = samples.iter().map(|s| {
            let image = tasks[s.task].image(s.fix);
            match self.augment {
                Augmentation::None => View::Raw(image),
                Augmentation::Weak => View::Weak(image, stream(Purpose::Strong, s), s.position),
                Augmentation::Strong => View::Strong(image, stream(Purpose::Strong, s), s.position),
            }
        });
        let fix_images = self.setting.render(&fix_view.collect::<Vec<_>>(), active)?;
        let fix_labels = labels(&|s| s.fix)?;
        let Some(mixup) = self.mixup else {
            return Ok(Batch { fix_images, fix_labels, mix: None });
        };

        let partner =
            |s: &Sample| mix_partner(self.setting, self.round, &tasks[s.task], s, mixup.mix_set);
        // Flip and crop only move pixels, so augmenting the mixture is augmenting both images alike.
        let mix_purpose = match mixup.augment {
            MixAugment::Before => Purpose::MixWeak,
            MixAugment::After => Purpose::Weak,
        };
        let weak = |of: &dyn Fn(&Sample) -> u32, purpose| {
            let view = |s: &Sample| (tasks[s.task].image(of(s)), stream(purpose, s), s.position);
            let views =
                samples.iter().map(view).map(|(image, stream, at)| View::Weak(image, stream, at));
            self.setting.render(&views.collect::<Vec<_>>(), active)
        };
        let (weak_fix, weak_mix) = (weak(&|s| s.fix, Purpose::Weak)?, weak(&partner, mix_purpose)?);
        let lambda: Vec<f32> = samples
            .iter()
            .map(|s| {
                let at = match mixup.draw {
                    MixDraw::Batch => s.step,
                    MixDraw::Sample => s.position,
                };
                augment::mixup_lambda(mixup.alpha, &mut stream(Purpose::MixLambda, s).at(at))
            })
            .collect();
        let lambda = self.by_client(&Tensor::f_from_slice(&lambda)?, active)?;
        let mix = Mix { weak_fix, weak_mix, labels: labels(&partner)?, lambda };
        Ok(Batch { fix_images, fix_labels, mix: Some(mix) })
    }

    /// The terms of the loss with their weights: L_fix (eq. 7), and b with L_mix (eq. 9-10).
    pub fn loss(&self, batch: &Batch, pass: &Pass) -> Result<Vec<(f64, Tensor)>> {
        let setting = self.setting;
        let fix = setting.to_input(&setting.normalise(&batch.fix_images)?)?;
        let logits = |x: &Tensor| setting.network.logits(&setting.network.features(x, pass)?, pass);
        let (Some(mix), Some(mixup)) = (&batch.mix, self.mixup) else {
            return Ok(vec![(1.0, cross_entropy(&logits(&fix)?, &batch.fix_labels)?)]);
        };
        let lambda = mix.lambda.f_tr()?.f_unsqueeze(-1)?.f_unsqueeze(-1)?.f_unsqueeze(-1)?; // [batch, K, 1, 1, 1]
        let (x_fix, x_mix) = (setting.normalise(&mix.weak_fix)?, setting.normalise(&mix.weak_mix)?);
        let mixed = setting.to_input(&x_mix.f_lerp_tensor(&x_fix, &lambda)?)?;
        let (fix_logits, mix_logits) = match self.views {
            Views::Separate => (logits(&fix)?, logits(&mixed)?),
            Views::Joint => {
                let both = logits(&Tensor::f_cat(&[fix, mixed], 0)?)?; // [K, 2 * batch, C]
                let batch = both.size()[1] / 2;
                (both.f_narrow(1, 0, batch)?, both.f_narrow(1, batch, batch)?)
            }
        };
        let fix_loss = cross_entropy(&fix_logits, &batch.fix_labels)?;
        let mix_loss = mix_loss(&mix_logits, &batch.fix_labels, &mix.labels, &mix.lambda)?;
        Ok(vec![(1.0, fix_loss), (mixup.weight, mix_loss)])
    }

    /// Values in sample order to `[K, batch]` on the device.
    fn by_client(&self, values: &Tensor, active: usize) -> Result<Tensor> {
        let rows = values.f_view([-1, active as i64])?; // [batch, K]
        Ok(rows.f_tr()?.f_contiguous()?.f_to_device(self.setting.device)?)
    }
}
