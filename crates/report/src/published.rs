//! The accuracies the paper reports in its tables 1 to 3.
//!
//! `published.csv` holds the numbers as printed, including those that appear in two tables. Where
//! the tables disagree (FedAnchor (mix) on SVHN, table 2 and table 3) the first is shown and a note
//! gives the other, since it is not known which is right. A switch that decides between two printed
//! numbers must be set in the config: no default is assumed for a missing one.

use crate::heading::Partition;
use crate::setup::Setup;
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::{Table, Value};

/// Rounds after which the paper reports accuracies.
pub(crate) const ROUNDS: u32 = 500;

/// The settings that decide between two numbers of one method and task.
pub(crate) const SWITCHES: [&str; 3] =
    ["method.client_mixup", "method.server_mixup", "method.contrastive.epochs"];

/// The concentration the paper calls IID.
pub(crate) const IID: f64 = 1000.0;

/// An accuracy as printed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    pub table: u32,
    /// Mean over the paper's seeds, in percent.
    pub mean: f64,
    pub std: f64,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:.2} ± {:.2}", self.mean, self.std)
    }
}

/// The distinct numbers printed for this experiment, in the order of the tables.
pub(crate) fn published(setup: &Setup) -> Vec<Published> {
    let mut found: Vec<Published> = Vec::new();
    for line in lines().filter(|line| line.is_for(setup)) {
        let Line { table, mean, std, .. } = line;
        if !found.iter().any(|other| (other.mean, other.std) == (mean, std)) {
            found.push(Published { table, mean, std });
        }
    }
    found
}

/// A line of `published.csv`.
#[derive(Deserialize)]
struct Line {
    table: u32,
    model: String,
    data: String,
    anchors: usize,
    alpha: f64,
    method: String,
    #[serde(deserialize_with = "csv::invalid_option")]
    client_mixup: Option<bool>,
    #[serde(deserialize_with = "csv::invalid_option")]
    server_mixup: Option<bool>,
    #[serde(deserialize_with = "csv::invalid_option")]
    contrastive: Option<bool>,
    mean: f64,
    std: f64,
}

fn lines() -> impl Iterator<Item = Line> {
    let text = include_str!("published.csv").as_bytes();
    let reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text);
    reader.into_deserialize().filter_map(Result::ok)
}

impl Line {
    fn is_for(&self, setup: &Setup) -> bool {
        let heading = &setup.heading;
        let alpha = match heading.partition {
            Partition::Iid => Some(IID),
            Partition::Lda { alpha } => Some(alpha),
            Partition::Dirichlet { .. } | Partition::Classes { .. } => None,
        };
        let method = setup.config.get("method").and_then(Value::as_table);
        let is = |wanted: Option<bool>, found: fn(&Table) -> Option<bool>| {
            wanted.is_none() || wanted == method.and_then(found)
        };
        (&self.model, &self.data, self.anchors, &self.method)
            == (&heading.model, &heading.data, heading.anchors, &heading.method)
            && alpha == Some(self.alpha)
            && is(self.client_mixup, |method| method.get("client_mixup")?.as_bool())
            && is(self.server_mixup, |method| method.get("server_mixup")?.as_bool())
            && is(self.contrastive, |method| {
                Some(method.get("contrastive")?.get("epochs")?.as_integer()? > 0)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_tables_is_read() {
        // Two tables of 7 columns and 12 rows; the third has 10 rows and 2 columns.
        assert_eq!(lines().count(), 2 * 7 * 12 + 10 * 2);
        let of_table = |table| lines().filter(move |line| line.table == table);
        assert_eq!([1, 2, 3].map(|table| of_table(table).count()), [84, 84, 20]);
        assert!(lines().all(|line| (0.0..=100.0).contains(&line.mean)));
        // Sums over the printed tables, to catch a number changed by mistake.
        let cents = |number: f64| (number * 100.0).round() as u64;
        let means = |table| cents(of_table(table).map(|line| line.mean).sum());
        let stds = |table| cents(of_table(table).map(|line| line.std).sum());
        assert_eq!([1, 2, 3].map(means), [564604, 548584, 151043]);
        assert_eq!([1, 2, 3].map(stds), [8978, 6248, 1263]);
    }

    #[test]
    fn lines_have_exactly_the_switches_of_their_method() {
        for line in lines() {
            let switches = [line.client_mixup, line.server_mixup, line.contrastive];
            let given = switches.map(|switch| switch.is_some());
            let wanted = match line.method.as_str() {
                "fedanchor" => [true; 3],
                "semifl" => [true, false, false],
                _ => [false; 3],
            };
            assert_eq!(given, wanted, "{}", line.method);
        }
    }
}
