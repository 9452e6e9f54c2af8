//! The paper's losses, each with its equation. Every function takes a cohort (`[K, batch, ...]`)
//! and returns one value a client, `[K]`: clients share no parameter, so the gradient of the sum is
//! each client's own gradient.

use crate::config::{ContrastiveConfig, Denominator, DivideBy};
use crate::error::Result;
use tch::{Kind, Tensor};

/// Stands for log 0 inside log-sum-exp: small enough to vanish beside any cosine over a
/// temperature, and finite, so that a class without pairs has a zero gradient instead of NaN.
const LOG_ZERO: f64 = -1e9;

/// Cross entropy of `logits` `[K, batch, C]` with hard labels `[K, batch]`, one value a sample.
pub fn cross_entropy_each(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let log_probability = logits.f_log_softmax(-1, Kind::Float)?;
    let chosen = log_probability.f_gather(-1, &labels.f_unsqueeze(-1)?, false)?;
    Ok(chosen.f_squeeze_dim(-1)?.f_neg()?) // [K, batch]
}

/// Mean cross entropy of a batch, `[K]`: L_fix (eq. 7) and L_s.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    mean_of_batch(&cross_entropy_each(logits, labels)?)
}

/// L_mix (eq. 9): `lambda` `[K, batch]` weighs the fix label, 1 - lambda the mix label.
pub fn mix_loss(logits: &Tensor, fix: &Tensor, mix: &Tensor, lambda: &Tensor) -> Result<Tensor> {
    let to_fix = cross_entropy_each(logits, fix)?;
    let to_mix = cross_entropy_each(logits, mix)?;
    mean_of_batch(&mixed(&to_fix, &to_mix, lambda)?)
}

/// lambda of the loss with the fix label, the rest of that with the mix label.
pub(crate) fn mixed(to_fix: &Tensor, to_mix: &Tensor, lambda: &Tensor) -> Result<Tensor> {
    Ok(to_mix.f_lerp_tensor(to_fix, lambda)?)
}

/// The mean over a batch, `[K, batch]` to `[K]`.
pub(crate) fn mean_of_batch(each: &Tensor) -> Result<Tensor> {
    Ok(each.f_mean_dim(&[1i64][..], false, Kind::Float)?)
}

/// Scales vectors along the last axis to length 1; a zero vector stays zero.
pub fn unit(z: &Tensor) -> Result<Tensor> {
    let length = z.f_norm_scalaropt_dim(2, [-1i64], true)?.f_clamp_min(1e-12)?;
    Ok(z.f_div(&length)?)
}

/// The label contrastive loss L_c (eq. 1-2) of one batch of anchors: latents `[1, batch, D]`,
/// labels `[1, batch]`, result `[1]`.
///
/// l(c) = -log( sum over pairs with both labels c of exp(s/tau) / sum over pairs of different
/// labels of exp(s/tau) ), averaged over the classes. Read literally the numerator holds the pairs
/// (i, i), whose constant exp(1/tau) drowns the others and first pushes a class apart; they are
/// left out unless `self_pairs`. Classes without a pair in the batch have no l(c); the mean is over
/// the others unless `divide_by = "all"`.
pub fn label_contrastive(
    latents: &Tensor,
    labels: &Tensor,
    classes: usize,
    config: &ContrastiveConfig,
) -> Result<Tensor> {
    let z = unit(&latents.f_squeeze_dim(0)?)?; // [batch, D]
    let labels = labels.f_squeeze_dim(0)?; // [batch]
    let batch = labels.size1()?;
    let s = z.f_matmul(&z.f_tr()?)?.f_div_scalar(config.temperature)?; // [batch, batch]
    let same = labels.f_unsqueeze(1)?.f_eq_tensor(&labels.f_unsqueeze(0)?)?;
    let different = same.f_logical_not()?;
    let positive = if config.self_pairs {
        same
    } else {
        let diagonal = Tensor::f_eye(batch, (Kind::Bool, s.device()))?;
        same.f_logical_and(&diagonal.f_logical_not()?)?
    };
    let member = Tensor::f_arange(classes as i64, (Kind::Int64, s.device()))?
        .f_unsqueeze(1)?
        .f_eq_tensor(&labels)?; // [C, batch]

    // log of the sum of exp(s) over the pairs (i, j) of one kind: first over j, then over i.
    let over_j = |pairs: &Tensor| -> Result<Tensor> {
        Ok(s.f_masked_fill(&pairs.f_logical_not()?, LOG_ZERO)?.f_logsumexp([1], false)?) // [batch]
    };
    let by_class = |rows: &Tensor| -> Result<Tensor> {
        let rows = rows.f_unsqueeze(0)?.f_expand([classes as i64, batch], false)?;
        Ok(rows.f_masked_fill(&member.f_logical_not()?, LOG_ZERO)?.f_logsumexp([1], false)?) // [C]
    };
    let numerator = by_class(&over_j(&positive)?)?; // [C]
    let denominator = match config.denominator {
        Denominator::Batch => over_j(&different)?.f_logsumexp([0], true)?, // [1], shared by all classes
        Denominator::Class => by_class(&over_j(&different)?)?,             // [C]
    };
    let needed = if config.self_pairs { 1 } else { 2 };
    let present = member.f_sum_dim_intlist(&[1i64][..], false, Kind::Int64)?.f_ge(needed)?;
    let present = present.f_to_kind(Kind::Float)?; // [C]
    let each = denominator.f_sub(&numerator)?.f_mul(&present)?; // l(c), 0 where class c has no pair
    let sum = each.f_sum_dim_intlist(&[0i64][..], true, Kind::Float)?; // [1]
    Ok(match config.divide_by {
        DivideBy::All => sum.f_div_scalar(classes as f64)?,
        DivideBy::Present => {
            sum.f_div(&present.f_sum_dim_intlist(&[0i64][..], true, Kind::Float)?.f_clamp_min(1)?)?
        }
    })
}

/// Whether a batch with these labels has a contrastive loss at all: a pair of one label and a pair
/// of different ones.
pub fn has_pairs(labels: &[u16], self_pairs: bool) -> bool {
    let mut sorted = labels.to_vec();
    sorted.sort_unstable();
    let positive = self_pairs || sorted.windows(2).any(|pair| pair[0] == pair[1]);
    positive && sorted.first() != sorted.last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FedAnchorConfig, MethodConfig, resolve};

    fn contrastive(settings: &[&str]) -> ContrastiveConfig {
        let settings: Vec<String> =
            settings.iter().map(|s| format!("method.contrastive.{s}")).collect();
        let MethodConfig::Fedanchor(FedAnchorConfig { contrastive, .. }) =
            resolve("", &settings).unwrap().method
        else {
            panic!()
        };
        contrastive
    }

    /// Five unit vectors in the plane with cosines that can be read off: two of class 0 at a right
    /// angle, two of class 2 that coincide, one of class 1 alone.
    fn example() -> (Tensor, Tensor) {
        let latents: [f32; 10] = [2.0, 0.0, 0.0, 3.0, -1.0, 0.0, 0.0, -1.0, 0.0, -4.0];
        let labels = Tensor::from_slice(&[0i64, 0, 1, 2, 2]).reshape([1, 5]);
        (Tensor::from_slice(&latents).reshape([1, 5, 2]), labels)
    }

    fn value(settings: &[&str]) -> f64 {
        let (latents, labels) = example();
        label_contrastive(&latents, &labels, 4, &contrastive(settings)).unwrap().double_value(&[0])
    }

    #[test]
    fn the_contrastive_loss_by_hand() {
        // Cosines: a=(1,0) b=(0,1) | c=(-1,0) | d=e=(0,-1). tau = 0.5, so exp(s/tau) is e^2, 1, e^-2.
        // Ordered pairs of one label: class 0: ab, ba: 2 * 1; class 2: de, ed: 2 e^2; class 1: none.
        // Different: ac -1, ad 0, ae 0, bc 0, bd -1, be -1, cd 0, ce 0, each twice: 6 e^-2 + 10.
        let e2 = 2f64.exp();
        let different = 6.0 / e2 + 10.0;
        let (l0, l2) = ((different / 2.0).ln(), (different / (2.0 * e2)).ln());
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}")
        };
        close(value(&["temperature=0.5"]), (l0 + l2) / 2.0);
        close(value(&["temperature=0.5", "divide_by=all"]), (l0 + l2) / 4.0);
        // With the pairs (i, i): class 0 has 2 + 2 e^2, class 1 has e^2, class 2 has 4 e^2.
        let with_self = [2.0 + 2.0 * e2, e2, 4.0 * e2].map(|n| (different / n).ln());
        close(value(&["temperature=0.5", "self_pairs=true"]), with_self.iter().sum::<f64>() / 3.0);
        // Class 0's own pairs: ac, ad, ae, bc, bd, be once: 3 e^-2 + 3. Class 2's: ad ae bd be cd ce.
        let (d0, d2) = (3.0 / e2 + 3.0, 2.0 / e2 + 4.0);
        let own = ((d0 / 2.0).ln() + (d2 / (2.0 * e2)).ln()) / 2.0;
        close(value(&["temperature=0.5", "denominator=class"]), own);
    }

    #[test]
    fn batches_without_pairs_are_recognised_and_harmless() {
        assert!(has_pairs(&[0, 1, 0], false));
        assert!(!has_pairs(&[0, 0], false)); // no different pair
        assert!(!has_pairs(&[0, 1], false)); // no pair of one label
        assert!(has_pairs(&[0, 1], true));
        let latents =
            Tensor::from_slice(&[1f32, 0.0, 0.0, 1.0]).reshape([1, 2, 2]).set_requires_grad(true);
        let labels = Tensor::from_slice(&[0i64, 1]).reshape([1, 2]);
        let loss = label_contrastive(&latents, &labels, 3, &contrastive(&[])).unwrap();
        loss.sum(Kind::Float).backward();
        assert_eq!(loss.double_value(&[0]), 0.0);
        assert_eq!(latents.grad().abs().max().double_value(&[]), 0.0);
    }

    #[test]
    fn cross_entropy_and_mix_loss_by_hand() {
        // Two clients, two samples, two classes; logits (0, ln 3): probabilities 1/4, 3/4.
        let ln3 = 3f32.ln();
        let logits =
            Tensor::from_slice(&[0.0, ln3, 0.0, ln3, 0.0, 0.0, ln3, 0.0]).reshape([2, 2, 2]);
        let fix = Tensor::from_slice(&[1i64, 0, 0, 0]).reshape([2, 2]);
        let mix = Tensor::from_slice(&[0i64, 0, 1, 1]).reshape([2, 2]);
        let (quarter, three, half) = (4f64.ln(), (4.0f64 / 3.0).ln(), 2f64.ln());
        let loss = Vec::<f64>::try_from(cross_entropy(&logits, &fix).unwrap()).unwrap();
        let expected = [(three + quarter) / 2.0, (half + three) / 2.0];
        assert!(loss.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{loss:?}");
        let lambda = Tensor::from_slice(&[0.25f32, 0.25, 0.5, 1.0]).reshape([2, 2]);
        let loss = Vec::<f64>::try_from(mix_loss(&logits, &fix, &mix, &lambda).unwrap()).unwrap();
        let expected = [
            (0.25 * three + 0.75 * quarter + quarter) / 2.0,
            (0.5 * half + 0.5 * half + three) / 2.0,
        ];
        assert!(loss.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{loss:?}");
    }
}
