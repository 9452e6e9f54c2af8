//! The accuracies the paper reports in its tables 1 to 3.
//!
//! `published.csv` holds the numbers as printed, including those that appear in two tables. Where
//! the tables disagree (FedAnchor (mix) on SVHN, table 2 and table 3) the first is shown and a note
//! gives the other, since it is not known which is right. A switch that decides between two printed
//! numbers must be set in the config: no default is assumed for a missing one.

use crate::heading::Partition;
use crate::setup::Setup;
use serde::Serialize;
use std::fmt;
use toml::{Table, Value};

/// Rounds after which the paper reports accuracies.
pub(crate) const ROUNDS: u32 = 500;

/// The settings that decide between two numbers of one method and task.
pub(crate) const SWITCHES: [&str; 3] =
    ["method.client_mixup", "method.server_mixup", "method.contrastive.epochs"];

/// The concentration the paper calls IID.
const IID: f64 = 1000.0;

/// An accuracy as printed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// The number of its table.
    pub table: u32,
    /// Mean over the paper's seeds, in percent.
    pub mean: f64,
    /// Standard deviation over those seeds.
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
        let known =
            |other: &Published| (other.mean, other.std) == (line.number.mean, line.number.std);
        if !found.iter().any(known) {
            found.push(line.number);
        }
    }
    found
}

/// A line of `published.csv`.
struct Line {
    model: &'static str,
    data: &'static str,
    anchors: usize,
    alpha: f64,
    method: &'static str,
    client_mixup: Option<bool>,
    server_mixup: Option<bool>,
    contrastive: Option<bool>,
    number: Published,
}

fn lines() -> impl Iterator<Item = Line> {
    let text = include_str!("published.csv");
    text.lines().filter(|line| !line.starts_with('#')).skip(1).filter_map(Line::parse)
}

impl Line {
    fn parse(line: &'static str) -> Option<Self> {
        let cells: Vec<&str> = line.split(',').collect();
        let [table, model, data, anchors, alpha, method, client, server, contrastive, mean, std] =
            cells[..]
        else {
            return None;
        };
        let number = Published {
            table: table.parse().ok()?,
            mean: mean.parse().ok()?,
            std: std.parse().ok()?,
        };
        Some(Self {
            model,
            data,
            anchors: anchors.parse().ok()?,
            alpha: alpha.parse().ok()?,
            method,
            client_mixup: client.parse().ok(),
            server_mixup: server.parse().ok(),
            contrastive: contrastive.parse().ok(),
            number,
        })
    }

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
        (self.model, self.data, self.anchors, self.method)
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
        let of_table = |table| lines().filter(move |line| line.number.table == table);
        assert_eq!([1, 2, 3].map(|table| of_table(table).count()), [84, 84, 20]);
        assert!(lines().all(|line| (0.0..=100.0).contains(&line.number.mean)));
        // Sums over the printed tables, to catch a number changed by mistake.
        let cents = |number: f64| (number * 100.0).round() as u64;
        let means = |table| cents(of_table(table).map(|line| line.number.mean).sum());
        let stds = |table| cents(of_table(table).map(|line| line.number.std).sum());
        assert_eq!([1, 2, 3].map(means), [564604, 548584, 151043]);
        assert_eq!([1, 2, 3].map(stds), [8978, 6248, 1263]);
    }

    #[test]
    fn lines_have_exactly_the_switches_of_their_method() {
        for line in lines() {
            let switches = [line.client_mixup, line.server_mixup, line.contrastive];
            let given = switches.map(|switch| switch.is_some());
            let wanted = match line.method {
                "fedanchor" => [true; 3],
                "semifl" => [true, false, false],
                _ => [false; 3],
            };
            assert_eq!(given, wanted, "{}", line.method);
        }
    }
}
