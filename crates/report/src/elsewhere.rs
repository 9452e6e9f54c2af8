//! Accuracies that other papers report for the same task, under recipes of their own: named in notes, and not compared
//! with.

use crate::heading::Partition;
use crate::published::IID;
use crate::setup::Setup;
use serde::Deserialize;

/// A line of `elsewhere.csv`.
#[derive(Debug, Deserialize)]
struct Line {
    source: String,
    model: String,
    data: String,
    anchors: String,
    clients: String,
    method: String,
    rounds: Option<u32>,
    accuracy: f64,
}

const ANY: &str = "any";
const CENTRALISED: &str = "none";
/// Methods that a semi-supervised result on the same labels says nothing about.
const OTHERS: [&str; 2] = ["supervised", "server-only"];

/// What other papers report for this experiment, one sentence each.
pub(crate) fn elsewhere(setup: &Setup) -> Vec<String> {
    let reported = lines().filter(|line| line.is_for(setup));
    reported.map(|line| line.to_string()).collect()
}

fn lines() -> impl Iterator<Item = Line> {
    let text = include_str!("elsewhere.csv").as_bytes();
    let reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text);
    reader.into_deserialize().filter_map(Result::ok)
}

impl Line {
    fn is_for(&self, setup: &Setup) -> bool {
        let heading = &setup.heading;
        let is_centralised = self.clients == CENTRALISED;
        let split = match heading.partition {
            Partition::Iid | Partition::Lda { alpha: IID } => "iid".to_owned(),
            Partition::Lda { alpha } | Partition::Dirichlet { alpha } => alpha.to_string(),
            Partition::Classes { .. } => "classes".to_owned(),
        };
        let method = heading.method.as_str();
        (&self.model, &self.data) == (&heading.model, &heading.data)
            && [ANY, &heading.anchors.to_string()].contains(&self.anchors.as_str())
            && (is_centralised || self.clients == split)
            && if is_centralised { !OTHERS.contains(&method) } else { self.method == method }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let authors = match self.source.as_str() {
            "semifl" => "Diao et al. (SemiFL)",
            _ => "Lee et al. ((FL)^2)",
        };
        let accuracy = self.accuracy;
        match self.rounds {
            None => write!(
                f,
                "{authors} report {accuracy:.1} for FixMatch on one machine with as many labels"
            ),
            Some(rounds) => {
                let split =
                    if self.clients == "iid" { "even clients" } else { "clients of unequal size" };
                write!(
                    f,
                    "{authors} report {accuracy:.1} after {rounds} rounds, with their recipe and {split}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_and_is_some_experiment() {
        let text = include_str!("elsewhere.csv");
        let written = text.lines().filter(|line| !line.starts_with('#')).count() - 1;
        assert_eq!(lines().count(), written);
        for line in lines() {
            assert!(["semifl", "fl2"].contains(&line.source.as_str()), "{line:?}");
            assert!((10.0..100.0).contains(&line.accuracy), "{line:?}");
            assert_eq!(line.clients == CENTRALISED, line.rounds.is_none(), "{line:?}");
        }
    }
}
