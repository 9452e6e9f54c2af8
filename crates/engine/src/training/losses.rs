//! Losses, each with its equation. Every function takes a cohort (`[K, batch, ...]`) and returns one
//! value per client, `[K]`: clients share no parameter, so the gradient of the sum is each client's own
//! gradient.

use crate::error::Result;
use tch::{Kind, Tensor};

/// Cross entropy of `logits` `[K, batch, C]` with hard labels `[K, batch]`, one value per sample.
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
    let [to_fix, to_mix] = [fix, mix].map(|labels| cross_entropy_each(logits, labels));
    mean_of_batch(&mixed(&to_fix?, &to_mix?, lambda)?)
}

/// lambda of the loss with the fix label, the rest of that with the mix label.
pub fn mixed(to_fix: &Tensor, to_mix: &Tensor, lambda: &Tensor) -> Result<Tensor> {
    Ok(to_mix.f_lerp_tensor(to_fix, lambda)?)
}

/// The mean over a batch, `[K, batch]` to `[K]`.
pub fn mean_of_batch(each: &Tensor) -> Result<Tensor> {
    Ok(each.f_mean_dim(&[1i64][..], false, Kind::Float)?)
}

/// Scales vectors along the last axis to length 1; a zero vector stays zero.
pub fn unit(z: &Tensor) -> Result<Tensor> {
    let length = z.f_norm_scalaropt_dim(2, [-1i64], true)?.f_clamp_min(1e-12)?;
    Ok(z.f_div(&length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
