//! How far tensors are from those that were sent, as one number each for weights and statistics: all tensors as
//! one row of numbers, with one result read from the device.

use fedanchor_engine::tensors::{Entry, Params};
use tch::{Device, Kind, TchError, Tensor};

/// A tensor that came back, with its entry and the one that was sent.
pub(super) type Pair<'a> = (&'a Entry, &'a Tensor, &'a Tensor);

/// What was sent, weights and statistics as a row each.
#[derive(Debug)]
pub(super) struct SentRows {
    weights: Row,
    statistics: Row,
}

#[derive(Debug)]
struct Row {
    sent: Tensor,
    /// Where updates are written to, one after the other: new memory for each would cost as much as the rest.
    update: Tensor,
}

/// What was measured of an update.
pub(super) struct Measured {
    /// The distance of its weights.
    pub(super) weights: f64,
    /// The distance of its statistics.
    pub(super) statistics: f64,
    /// Its lowest variance.
    pub(super) lowest_variance: f64,
}

impl SentRows {
    pub(super) fn new(sent: &Params) -> Result<Self, TchError> {
        let row = |statistic: bool| {
            let entries = sent.layout.iter().zip(&sent.tensors);
            let tensors = entries.filter(|(entry, _)| entry.statistic == statistic);
            let parts = in_a_row(tensors.map(|(_, tensor)| tensor), sent.device())?;
            let sent = Tensor::f_cat(&parts, 0)?;
            Ok::<_, TchError>(Row { update: sent.f_empty_like()?, sent })
        };
        Ok(Self { weights: row(false)?, statistics: row(true)? })
    }

    /// Measures tensors that have the shapes of what was sent, in its order.
    pub(super) fn measure(&self, pairs: &[Pair]) -> Result<Measured, TchError> {
        let device = self.weights.sent.device();
        let distance = |row: &Row, statistic: bool| {
            let there = pairs.iter().filter(|(entry, ..)| entry.statistic == statistic);
            let parts = in_a_row(there.map(|&(_, tensor, _)| tensor), device)?;
            let mut change = Tensor::f_cat_out(&row.update, &parts, 0)?;
            change.f_sub_(&row.sent)?.f_norm()
        };
        let variances = pairs.iter().filter(|(entry, ..)| is_variance(entry));
        let variances = in_a_row(variances.map(|&(_, tensor, _)| tensor), device)?;
        let found = Tensor::f_stack(
            &[
                distance(&self.weights, false)?,
                distance(&self.statistics, true)?,
                Tensor::f_cat(&variances, 0)?.f_min()?,
            ],
            0,
        )?;
        let found = found.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?;
        let found = Vec::<f64>::try_from(found)?;
        Ok(Measured { weights: found[0], statistics: found[1], lowest_variance: found[2] })
    }
}

/// Whether an entry holds variances, which are never below 0.
pub(super) fn is_variance(entry: &Entry) -> bool {
    entry.statistic && entry.name.ends_with("var")
}

/// Tensors as the parts of one row of numbers, in the order of their memory: the same for tensors of one layout. It
/// starts with a 0, so that a row of no tensors has a norm and a minimum too.
fn in_a_row<'a>(
    tensors: impl Iterator<Item = &'a Tensor>,
    device: Device,
) -> Result<Vec<Tensor>, TchError> {
    let mut row = vec![Tensor::f_zeros([1], (Kind::Float, device))?];
    for tensor in tensors {
        row.push(match tensor.dim() {
            5 => tensor.f_permute([0, 1, 3, 4, 2])?.f_flatten(0, -1)?, // channels last
            _ => tensor.f_flatten(0, -1)?,
        });
    }
    Ok(row)
}
