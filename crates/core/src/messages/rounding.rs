//! Models in fewer bytes (`messages.precision`): a broadcast in bfloat16, an update as its change in bfloat16 or in one
//! byte per weight.
//!
//! A client sends the change from what it received, so that the server adds it to its own exact model. What rounding
//! leaves out stays with the client and is added to its next update. A byte counts in steps of a power of two per tensor:
//! a step of the largest change over 127 would use a byte fully, but then numbers that are written and read once more
//! would change. Running statistics, which must not become negative, are always in bfloat16, rounded towards no change.

use super::header::undecodable;
use crate::error::Result;
use fedanchor_data::stream::Stream;
use fedanchor_engine::tensors::{Data, Params};
use fedanchor_engine::words;
use rand::Rng;
use tch::{Device, Kind, Tensor};

words! {
    /// Number format of models in messages.
    #[derive(Default)]
    MessagePrecision {
        /// Single precision: what arrives is what was sent.
        #[default]
        F32,
        /// bfloat16: half of the bytes. Updates are sent as changes; what rounding leaves out stays with the client and is
        /// added to its next update.
        Bf16,
        /// Updates in one byte per weight, broadcasts in bfloat16.
        Int8,
    }
}

/// The largest number of steps that a byte counts.
const STEPS: f64 = 127.0;
/// Exponents of steps: beyond, a step or the number of steps in 1 is not a normal number in single precision.
pub(super) const EXPONENTS: std::ops::RangeInclusive<i32> = -126..=120;

/// How the change in an update was rounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rounding {
    /// To bfloat16.
    Bf16,
    /// To whole steps of 2^exponent, one exponent per tensor of weights; statistics to bfloat16.
    Int8(Vec<i32>),
}

/// A model as clients receive it.
pub(super) fn round_model(params: &Params) -> Result<Params> {
    let rounded = params.tensors.iter().map(|tensor| {
        // A copy keeps the order in memory.
        let mut copy = tensor.f_detach_copy()?;
        copy.f_copy_(&tensor.f_to_kind(Kind::BFloat16)?)?;
        Ok(copy)
    });
    Ok(Params { tensors: rounded.collect::<Result<_>>()?, layout: params.layout.clone() })
}

/// The change from `sent` to `params`, rounded, and what rounding has left out of the weights. `left` is what it left out
/// the last time.
pub(crate) fn round_change(
    params: &Params,
    sent: &Params,
    left: Option<&Params>,
    precision: MessagePrecision,
    draws: Stream,
) -> Result<(Params, Rounding, Params)> {
    let change = params.tensors.iter().zip(&sent.tensors).map(|(to, from)| Ok(to.f_sub(from)?));
    let tensors = change.collect::<Result<_>>()?;
    let change = Params { layout: params.layout.clone(), tensors };
    let weights = change.subset(|entry| !entry.statistic);
    let mut wanted = flat(&weights)?;
    if let Some(left) = left.filter(|left| left.layout == weights.layout) {
        wanted = wanted.f_add(&flat(left)?.f_to_device(wanted.device())?)?;
    }
    let exponents = match precision {
        MessagePrecision::Int8 => exponents(&wanted, &lengths(&weights))?,
        _ => None,
    };
    let rounded = match &exponents {
        Some(exponents) => to_steps(&wanted, &lengths(&weights), exponents, &draws)?,
        None => wanted.f_to_kind(Kind::BFloat16)?.f_to_kind(Kind::Float)?,
    };
    // On the host: every client that has trained keeps its own.
    let left = shaped(&wanted.f_sub(&rounded)?.f_to_device(Device::Cpu)?, &weights)?;
    let mut rounded = shaped(&rounded, &weights)?.tensors.into_iter();
    let tensors = change.entries().map(|(entry, change)| match entry.statistic {
        true => towards_zero(change),
        false => Ok(rounded.next().expect("a tensor per entry of the weights")),
    });
    let tensors = tensors.collect::<Result<_>>()?;
    let change = Params { layout: params.layout.clone(), tensors };
    Ok((change, exponents.map_or(Rounding::Bf16, Rounding::Int8), left))
}

/// All tensors as one vector: a GPU takes longer to start an operation per tensor than to compute it.
fn flat(params: &Params) -> Result<Tensor> {
    let tensors = params.tensors.iter().map(|tensor| tensor.f_flatten(0, -1));
    match &tensors.collect::<Result<Vec<_>, _>>()?[..] {
        [] => Ok(Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?),
        tensors => Ok(Tensor::f_cat(tensors, 0)?),
    }
}

fn lengths(params: &Params) -> Vec<i64> {
    params.tensors.iter().map(|tensor| tensor.numel() as i64).collect()
}

/// The parts of a vector as tensors with the names and shapes of `like`.
fn shaped(flat: &Tensor, like: &Params) -> Result<Params> {
    let parts = flat.f_split_with_sizes(lengths(like), 0)?;
    let tensors = parts.iter().zip(&like.tensors).map(|(part, like)| Ok(part.f_view_as(like)?));
    Ok(Params { layout: like.layout.clone(), tensors: tensors.collect::<Result<_>>()? })
}

/// The exponent of every tensor of weights; `None` if a change is not finite, which bytes cannot express: in bfloat16 it
/// arrives, and is rejected with its name.
fn exponents(changes: &Tensor, lengths: &[i64]) -> Result<Option<Vec<i32>>> {
    if lengths.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let largest = changes.f_abs()?.f_split_with_sizes(lengths, 0)?;
    let largest = largest.iter().map(Tensor::f_max).collect::<Result<Vec<_>, _>>()?;
    let largest = Vec::<f32>::try_from(Tensor::f_stack(&largest, 0)?)?;
    let exponent = |&largest: &f32| {
        if largest == 0.0 {
            return Some(0); // nothing to count
        }
        let exponent = (f64::from(largest) / STEPS).log2().ceil();
        largest.is_finite().then(|| (exponent as i32).clamp(*EXPONENTS.start(), *EXPONENTS.end()))
    };
    Ok(largest.iter().map(exponent).collect())
}

/// Rounds to whole steps, up or down at random, so that the mean is right.
fn to_steps(
    changes: &Tensor,
    lengths: &[i64],
    exponents: &[i32],
    draws: &Stream,
) -> Result<Tensor> {
    let device = changes.device();
    let mut bytes = vec![0u8; 2 * changes.numel()];
    draws.at(0).fill_bytes(&mut bytes);
    let drawn = Tensor::f_from_data_size(&bytes, &changes.size(), Kind::Int16)?;
    // From -1/2 to 1/2, which is rounding down after half a step more.
    let drawn = drawn.f_to_device(device)?.f_to_kind(Kind::Float)?.f_div_scalar(65536.0)?;
    let steps: Vec<f32> = exponents.iter().map(|&exponent| 2f32.powi(exponent)).collect();
    let repeats = Tensor::f_from_slice(lengths)?.f_to_device(device)?;
    let step = Tensor::f_from_slice(&steps)?.f_to_device(device)?;
    let step = step.f_repeat_interleave_self_tensor(&repeats, 0, changes.numel() as i64)?;
    let counted = changes.f_div(&step)?.f_add(&drawn)?.f_add_scalar(0.5)?.f_floor()?;
    Ok(counted.f_clamp(-STEPS, STEPS)?.f_mul(&step)?)
}

/// Rounds to bfloat16, the upper half of a number's bits, by leaving out the lower half.
fn towards_zero(change: &Tensor) -> Result<Tensor> {
    let nearest = change.f_to_kind(Kind::BFloat16)?.f_to_kind(Kind::Float)?;
    let beyond = nearest.f_abs()?.f_gt_tensor(&change.f_abs()?)?;
    // The next number towards zero is less than one part in 128 away.
    let below = change.f_mul_scalar(1.0 - 1.0 / 256.0)?.f_to_kind(Kind::BFloat16)?;
    Ok(below.f_to_kind(Kind::Float)?.f_where_self(&beyond, &nearest)?)
}

impl Rounding {
    /// The tensors of a change, to be encoded.
    pub(super) fn data<'a>(&self, change: &'a Params) -> impl Iterator<Item = (String, Data<'a>)> {
        let mut exponents = match self {
            Self::Bf16 => Vec::new(),
            Self::Int8(exponents) => exponents.clone(),
        }
        .into_iter();
        change.data("model").zip(change.layout.iter()).map(move |((name, data), entry)| {
            let Data::F32(tensor, shape) = data else { return (name, data) };
            match (!entry.statistic).then(|| exponents.next()).flatten() {
                Some(exponent) => (name, Data::I8(tensor, shape, exponent)),
                None => (name, Data::Bf16(tensor, shape)),
            }
        })
    }
}

/// Turns steps into numbers, in place.
pub(super) fn scale(change: &Params, exponents: &[i32]) -> Result<()> {
    let weights: Vec<&Tensor> = change.weights().collect();
    let count = weights.len();
    if count != exponents.len() || !exponents.iter().all(|one| EXPONENTS.contains(one)) {
        let problem =
            format!("{} exponents for {count} tensors, or one out of range", exponents.len());
        return Err(undecodable(problem));
    }
    for (tensor, &exponent) in weights.into_iter().zip(exponents) {
        let _ = tensor.shallow_clone().f_mul_scalar_(2f64.powi(exponent))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::fixtures::model;
    use fedanchor_data::Purpose;

    fn values(params: &Params, at: usize) -> Vec<f32> {
        Vec::try_from(params.tensors[at].flatten(0, -1)).unwrap()
    }

    fn draws(round: u32) -> Stream {
        Stream::new(1, Purpose::Rounding, round, 0)
    }

    #[test]
    fn a_byte_counts_steps_of_a_power_of_two() {
        let (sent, to) = (model(&[0.0; 4], 1.0), model(&[127.0, -3.0, 0.5, 0.0], 1.0));
        let (change, rounding, left) =
            round_change(&to, &sent, None, MessagePrecision::Int8, draws(1)).unwrap();
        assert_eq!(rounding, Rounding::Int8(vec![0]));
        let found = values(&change, 0);
        assert!(found[..2] == [127.0, -3.0] && found[3] == 0.0, "{found:?}");
        assert_eq!(values(&left, 0), [0.0, 0.0, 0.5 - found[2], 0.0]);
        // Twice as large: the step is twice as large.
        let to = model(&[254.0, 127.5, 0.0, 0.0], 1.0);
        let (_, rounding, _) =
            round_change(&to, &sent, None, MessagePrecision::Int8, draws(1)).unwrap();
        assert_eq!(rounding, Rounding::Int8(vec![1]));
    }

    #[test]
    fn what_does_not_change_is_zero() {
        let same = model(&[0.3, -7.0], 1.0);
        for precision in [MessagePrecision::Int8, MessagePrecision::Bf16] {
            let (change, _, left) = round_change(&same, &same, None, precision, draws(1)).unwrap();
            assert_eq!((values(&change, 0), values(&left, 0)), (vec![0.0; 2], vec![0.0; 2]));
        }
        // The smallest numbers there are.
        let tiny = f32::from_bits(1);
        let (sent, to) = (model(&[0.0; 2], 1.0), model(&[tiny, 0.0], 1.0));
        let (change, ..) =
            round_change(&to, &sent, None, MessagePrecision::Int8, draws(1)).unwrap();
        assert!(values(&change, 0).iter().all(|value| value.is_finite()));
    }

    /// What is left out is added to the next update, so that the sum over rounds is right up to one step.
    #[test]
    fn nothing_is_lost_over_rounds() {
        let (sent, to) = (model(&[0.0; 3], 1.0), model(&[100.0, 0.3, -0.01], 1.0));
        for (precision, tolerance) in [(MessagePrecision::Int8, 1.0), (MessagePrecision::Bf16, 0.5)]
        {
            let (mut sum, mut left) = ([0.0f64; 3], None);
            for round in 0..50 {
                let (change, _, rest) =
                    round_change(&to, &sent, left.as_ref(), precision, draws(round)).unwrap();
                sum.iter_mut().zip(values(&change, 0)).for_each(|(sum, x)| *sum += f64::from(x));
                left = Some(rest);
            }
            for (sum, expected) in sum.iter().zip([100.0f64, 0.3, -0.01]) {
                assert!(
                    (sum - 50.0 * expected).abs() <= tolerance,
                    "{precision:?} {sum} {expected}"
                );
            }
        }
    }

    #[test]
    fn steps_are_right_on_average() {
        let (sent, to) = (model(&[0.0; 2], 1.0), model(&[127.0, 0.25], 1.0));
        let up = (0..1000).filter(|&round| {
            let rounded = round_change(&to, &sent, None, MessagePrecision::Int8, draws(round));
            values(&rounded.unwrap().0, 0)[1] == 1.0
        });
        let up = up.count();
        assert!((200..300).contains(&up), "{up}");
    }

    #[test]
    fn a_variance_never_becomes_negative() {
        for (from, to) in [(1.0f32, 1e-6f32), (3.0, 0.0), (0.1, 0.3), (1e-3, 1e3)] {
            let (sent, to) = (model(&[0.0], from), model(&[1.0], to));
            for precision in [MessagePrecision::Int8, MessagePrecision::Bf16] {
                let (change, ..) = round_change(&to, &sent, None, precision, draws(1)).unwrap();
                let found = from + values(&change, 1)[0];
                assert!(found >= 0.0 && (found - values(&to, 1)[0]).abs() < 0.01 * from.max(found));
            }
        }
    }

    #[test]
    fn what_is_not_finite_arrives() {
        let (sent, to) = (model(&[0.0; 2], 1.0), model(&[f32::NAN, 1.0], 1.0));
        let (change, rounding, left) =
            round_change(&to, &sent, None, MessagePrecision::Int8, draws(1)).unwrap();
        assert_eq!(rounding, Rounding::Bf16);
        assert!(values(&change, 0)[0].is_nan());
        // Which says so, and is not kept.
        assert_eq!(left.first_not_finite().unwrap(), [Some("weight".to_owned())]);
    }

    #[test]
    fn exponents_that_do_not_fit_are_refused() {
        let change = model(&[1.0], 1.0);
        assert!(scale(&change, &[]).is_err() && scale(&change, &[500]).is_err());
        scale(&change, &[3]).unwrap();
        assert_eq!((values(&change, 0), values(&change, 1)), (vec![8.0], vec![1.0]));
    }
}
