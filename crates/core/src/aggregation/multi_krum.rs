//! Multi-Krum: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine
//! Tolerant Gradient Descent", 2017.

use super::mean::RowMean;
use super::of_all::{Weighted, of_all};
use super::{Rule, hostile_count};
use crate::error::Result;

/// The weighted mean of the updates that are nearest to one another, without this share of them.
pub fn multi_krum(share: f64) -> Box<dyn Rule> {
    of_all(move |all, _| {
        let mut mean = RowMean::default();
        for index in nearest(all, hostile_count(share, all.len()))? {
            let (row, weight) = &all[index];
            mean.add(row, *weight)?;
        }
        Ok(mean.finish())
    })
}

/// The updates that are nearest to their neighbours, all but the hostile ones.
fn nearest(all: &Weighted, hostile: usize) -> Result<Vec<usize>> {
    let weights = all.iter().map(|(row, _)| row.weights()).collect::<Result<Vec<_>>>()?;
    let count = all.len();
    let mut distance = vec![vec![0.0; count]; count];
    for a in 0..count {
        for b in 0..a {
            let square = weights[a].f_sub(&weights[b])?.f_norm()?.f_double_value(&[])?.powi(2);
            (distance[a][b], distance[b][a]) = (square, square);
        }
    }
    let neighbours = count.saturating_sub(hostile + 2).max(1);
    let mut scores: Vec<(f64, usize)> = (0..count)
        .map(|index| {
            let mut others: Vec<f64> =
                (0..count).filter(|&other| other != index).map(|o| distance[index][o]).collect();
            others.sort_by(f64::total_cmp);
            (others.iter().take(neighbours).sum(), index)
        })
        .collect();
    scores.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut chosen: Vec<usize> =
        scores.into_iter().take(count - hostile).map(|(_, index)| index).collect();
    chosen.sort_unstable();
    Ok(chosen)
}
