//! The distance of tensors from those that were sent, one number each for weights and statistics: all tensors as one
//! row of numbers, with one result read from the device.

use crate::aggregation::{Norms, in_a_row};
use fedanchor_engine::tensors::{Entry, Params};
use tch::{TchError, Tensor};

/// A tensor that came back, with its entry and the one that was sent.
pub(super) type Pair<'a> = (&'a Entry, &'a Tensor, &'a Tensor);

/// The model that was sent, weights and statistics as a row each; `None` where the model has no such tensors.
#[derive(Debug)]
pub(super) struct SentRows {
    weights: Option<Row>,
    statistics: Option<Row>,
}

#[derive(Debug)]
struct Row {
    sent: Tensor,
    /// Where updates are written to, one after the other: new memory for each would cost as much as the rest.
    update: Tensor,
}

/// Measurements of an update: 0 where the model has no such tensors.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub(super) norms: Norms,
    pub(super) lowest_variance: f64,
}

impl SentRows {
    pub(super) fn new(sent: &Params) -> Result<Self, TchError> {
        let row = |statistic: bool| {
            let tensors = sent.entries().filter(|(entry, _)| entry.statistic == statistic);
            let parts = in_a_row(tensors.map(|(_, tensor)| tensor))?;
            if parts.is_empty() {
                return Ok(None);
            }
            let sent = Tensor::f_cat(&parts, 0)?;
            Ok::<_, TchError>(Some(Row { update: sent.f_empty_like()?, sent }))
        };
        Ok(Self { weights: row(false)?, statistics: row(true)? })
    }

    /// Measures tensors in the shapes and the order of the sent ones. Every operation counts here: on a GPU
    /// starting one takes longer than running it.
    pub(super) fn measure(&self, pairs: &[Pair]) -> Result<Measured, TchError> {
        let distance = |row: &Row, statistic: bool| {
            let there = pairs.iter().filter(|(entry, ..)| entry.statistic == statistic);
            let parts = in_a_row(there.map(|&(_, tensor, _)| tensor))?;
            let mut change = Tensor::f_cat_out(&row.update, &parts, 0)?;
            change.f_sub_(&row.sent)?.f_norm()
        };
        let variances = pairs.iter().filter(|(entry, ..)| is_variance(entry));
        let variances = in_a_row(variances.map(|&(_, tensor, _)| tensor))?;
        let (mut found, mut measured) = (Vec::new(), Measured::default());
        if let Some(row) = &self.weights {
            found.push((&mut measured.norms.weights, distance(row, false)?));
        }
        if let Some(row) = &self.statistics {
            found.push((&mut measured.norms.statistics, distance(row, true)?));
        }
        if !variances.is_empty() {
            let lowest = Tensor::f_cat(&variances, 0)?.f_min()?;
            found.push((&mut measured.lowest_variance, lowest));
        }
        let (places, numbers): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if !numbers.is_empty() {
            let numbers = Vec::<f32>::try_from(Tensor::f_stack(&numbers, 0)?)?;
            places.into_iter().zip(numbers).for_each(|(place, number)| *place = number.into());
        }
        Ok(measured)
    }
}

/// Whether an entry holds variances, which are never below 0.
pub(super) fn is_variance(entry: &Entry) -> bool {
    entry.statistic && entry.name.ends_with("var")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_engine::tensors::Part;
    use std::sync::Arc;

    /// A model of one weight and, if asked for, a norm's statistics.
    fn model(weight: [f32; 2], statistics: Option<(f32, f32)>) -> Params {
        let entry = |name: &str, size: i64, statistic| Entry {
            name: name.to_owned(),
            shape: vec![size],
            part: Part::Backbone,
            statistic,
        };
        let row = |values: &[f32]| Tensor::from_slice(values).unsqueeze(0);
        let (mut layout, mut tensors) = (vec![entry("weight", 2, false)], vec![row(&weight)]);
        if let Some((mean, variance)) = statistics {
            layout.extend([entry("running_mean", 1, true), entry("running_var", 1, true)]);
            tensors.extend([row(&[mean]), row(&[variance])]);
        }
        Params { layout: Arc::new(layout), tensors }
    }

    fn measured(sent: &Params, update: &Params) -> Measured {
        let pairs = sent.layout.iter().zip(&update.tensors).zip(&sent.tensors);
        let pairs: Vec<Pair> = pairs.map(|((entry, tensor), sent)| (entry, tensor, sent)).collect();
        SentRows::new(sent).unwrap().measure(&pairs).unwrap()
    }

    #[test]
    fn weights_and_statistics_are_measured_apart() {
        let sent = model([1.0, 1.0], Some((0.0, 1.0)));
        let found = measured(&sent, &model([4.0, 5.0], Some((6.0, 9.0))));
        let norms = Norms { weights: 5.0, statistics: 10.0 };
        assert_eq!(found, Measured { norms, lowest_variance: 9.0 });
        let found = measured(&sent, &model([1.0, f32::NAN], Some((0.0, -0.5))));
        assert!(found.norms.weights.is_nan() && found.lowest_variance == -0.5, "{found:?}");
    }

    #[test]
    fn a_model_without_norms_has_no_statistics() {
        let found = measured(&model([0.0, 0.0], None), &model([3.0, -4.0], None));
        let norms = Norms { weights: 5.0, statistics: 0.0 };
        assert_eq!(found, Measured { norms, lowest_variance: 0.0 });
        let nothing = Params { layout: Arc::new(Vec::new()), tensors: Vec::new() };
        assert_eq!(measured(&nothing, &nothing), Measured::default());
    }
}
