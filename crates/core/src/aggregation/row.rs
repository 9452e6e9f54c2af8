//! A model as one row of numbers: on a GPU, starting an operation per tensor takes longer than computing it.

use crate::error::Result;
use fedanchor_engine::tensors::Params;
use tch::{Device, Kind, TchError, Tensor};

/// The numbers of a model, in the order of memory: weights first, then statistics.
#[derive(Debug)]
pub struct Row {
    numbers: Tensor,
    /// How many of them are weights.
    weights: i64,
}

impl Row {
    /// Those of a model, as a copy.
    pub fn of(params: &Params) -> Result<Self> {
        let [weights, statistics] = [false, true].map(|statistic| {
            let chosen = params.entries().filter(|(entry, _)| entry.statistic == statistic);
            in_a_row(chosen.map(|(_, tensor)| tensor))
        });
        let mut all = weights?;
        let weights = all.iter().map(|part| part.numel() as i64).sum();
        all.extend(statistics?);
        let numbers = match &all[..] {
            [] => Tensor::f_zeros([0], (Kind::Float, Device::Cpu))?,
            all => Tensor::f_cat(all, 0)?,
        };
        Ok(Self { numbers, weights })
    }

    /// The same model with other numbers.
    pub(crate) fn with(&self, numbers: Tensor) -> Self {
        Self { numbers, weights: self.weights }
    }

    /// All numbers.
    pub(crate) fn numbers(&self) -> &Tensor {
        &self.numbers
    }

    /// The weights, as a view.
    pub fn weights(&self) -> Result<Tensor> {
        Ok(self.numbers.f_narrow(0, 0, self.weights)?)
    }

    /// The statistics, as a view.
    pub fn statistics(&self) -> Result<Tensor> {
        let count = self.numbers.numel() as i64 - self.weights;
        Ok(self.numbers.f_narrow(0, self.weights, count)?)
    }

    /// The change from `sent` to this.
    pub(crate) fn change(&self, sent: &Row) -> Result<Row> {
        Ok(self.with(self.numbers.f_sub(&sent.numbers)?))
    }

    /// The norms of weights and statistics, read from the device at once.
    pub(crate) fn norms(&self) -> Result<[f64; 2]> {
        let both = [self.weights()?.f_norm()?, self.statistics()?.f_norm()?];
        let both = Vec::<f32>::try_from(Tensor::f_stack(&both, 0)?)?;
        Ok([both[0].into(), both[1].into()])
    }

    /// Moves from `sent` towards this by a share of the way each for weights and statistics.
    pub(crate) fn part_of_the_way(&self, sent: &Row, shares: [f64; 2]) -> Result<Row> {
        let weights = sent.weights()?.f_lerp(&self.weights()?, shares[0])?;
        let statistics = sent.statistics()?.f_lerp(&self.statistics()?, shares[1])?;
        Ok(self.with(Tensor::f_cat(&[weights, statistics], 0)?))
    }

    /// The model with these numbers: tensors as those of `like`, which are views of the row.
    pub fn params(&self, like: &Params) -> Result<Params> {
        let (mut weights, mut statistics) = (0, self.weights);
        let tensors = like.entries().map(|(entry, tensor)| {
            let at = if entry.statistic { &mut statistics } else { &mut weights };
            let part = self.numbers.f_narrow(0, *at, tensor.numel() as i64)?;
            *at += tensor.numel() as i64;
            match tensor.size()[..] {
                [clients, to, from, height, width] => {
                    let part = part.f_view([clients, to, height, width, from])?;
                    Ok(part.f_permute([0, 1, 4, 2, 3])?)
                }
                ref size => Ok(part.f_view(size)?),
            }
        });
        Ok(Params { layout: like.layout.clone(), tensors: tensors.collect::<Result<_>>()? })
    }
}

/// Tensors as the parts of one row, in the order of their memory: the same for tensors of one layout.
pub(crate) fn in_a_row<'a>(
    tensors: impl Iterator<Item = &'a Tensor>,
) -> Result<Vec<Tensor>, TchError> {
    let flat = |tensor: &Tensor| match tensor.dim() {
        5 => tensor.f_permute([0, 1, 3, 4, 2])?.f_flatten(0, -1), // channels last
        _ => tensor.f_flatten(0, -1),
    };
    tensors.map(flat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregation::fixtures::model;
    use fedanchor_engine::tensors::{Entry, Part};
    use std::sync::Arc;

    #[test]
    fn channels_are_read_in_the_order_of_memory() {
        let contiguous = Tensor::arange(24, (Kind::Float, Device::Cpu)).view([1, 2, 3, 2, 2]);
        let last = contiguous.permute([0, 1, 3, 4, 2]).contiguous().permute([0, 1, 4, 2, 3]);
        let [first] = &in_a_row([&last].into_iter()).unwrap()[..] else { unreachable!() };
        assert_eq!(first.data_ptr(), last.data_ptr());
        let again = &in_a_row([&contiguous].into_iter()).unwrap()[0];
        assert_eq!(first, again);
    }

    /// Statistics come after the weights, wherever they are in the layout.
    #[test]
    fn a_row_becomes_the_model_that_it_was() {
        let entry = |name: &str, shape: &[i64], statistic| Entry {
            name: name.to_owned(),
            shape: shape.to_vec(),
            part: Part::Backbone,
            statistic,
        };
        let layout = vec![
            entry("mean", &[3], true),
            entry("conv", &[2, 3, 2, 2], false),
            entry("weight", &[4], false),
        ];
        let numbers = |from: f64, size: &[i64]| {
            let count: i64 = size.iter().product();
            (Tensor::arange(count, (Kind::Float, Device::Cpu)) + from).view(size)
        };
        let tensors =
            vec![numbers(0.0, &[1, 3]), numbers(10.0, &[1, 2, 3, 2, 2]), numbers(50.0, &[1, 4])];
        let params = Params { layout: Arc::new(layout), tensors };
        let row = Row::of(&params).unwrap();
        assert_eq!(row.weights().unwrap().numel(), 28);
        assert_eq!(row.statistics().unwrap(), numbers(0.0, &[3]));
        assert_eq!(row.params(&params).unwrap().tensors, params.tensors);
    }

    #[test]
    fn weights_and_statistics_have_norms_of_their_own() {
        let (sent, to) = (Row::of(&model(&[1.0, 1.0], 0.0)), Row::of(&model(&[4.0, 5.0], 10.0)));
        let (sent, to) = (sent.unwrap(), to.unwrap());
        let norms = to.change(&sent).unwrap().norms().unwrap();
        assert_eq!(norms, [5.0, 10.0]);
        let half = to.part_of_the_way(&sent, [0.5, 1.0]).unwrap();
        let half = half.params(&model(&[0.0, 0.0], 0.0)).unwrap();
        assert_eq!(half.tensors, model(&[2.5, 3.0], 10.0).tensors);
        // A model without statistics, and one without anything.
        let bare = Params { layout: Arc::new(Vec::new()), tensors: Vec::new() };
        assert_eq!(Row::of(&bare).unwrap().norms().unwrap(), [0.0, 0.0]);
    }
}
