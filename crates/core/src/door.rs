//! The door through which updates come in: everything a client sends is checked before it counts, the
//! same for simulated and for real clients. What is wrong is dropped and named; who offends too often is
//! set aside. One client's NaN or wrong shape ends no run and enters no model.

use crate::config::ChecksConfig;
use crate::error::{Error, Result};
use crate::ledger::Ledger;
use crate::method::Update;
use crate::params::{Entry, Params};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tch::{Device, Kind, Tensor};

/// Why an update does not count.
#[derive(Debug, Clone, PartialEq)]
pub enum Offence {
    /// From someone who was not asked in this round.
    Unexpected,
    /// A second one from the same client.
    Duplicate,
    /// Made for another round.
    OtherRound(u32),
    /// After the round was over.
    Late,
    /// More bytes than allowed: how many, and the limit.
    Size(u64, u64),
    /// A tensor that is not there.
    Missing(String),
    /// One that does not belong there.
    Extra(String),
    /// One of another shape or number type.
    Shape(String),
    /// Infinite or no number.
    NotFinite(String),
    /// A variance below 0.
    Negative(String),
    /// Further from what was sent than allowed: its length and the limit.
    TooFar(f64, f64),
    /// Samples that cannot be: none, or more than at first contact.
    Samples(usize),
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unexpected => write!(f, "was not asked in this round"),
            Self::Duplicate => write!(f, "answered twice"),
            Self::OtherRound(round) => write!(f, "answered for round {round}"),
            Self::Late => write!(f, "answered after the round was over"),
            Self::Size(bytes, limit) => write!(f, "sent {bytes} bytes, more than {limit}"),
            Self::Missing(name) => write!(f, "`{name}` is missing"),
            Self::Extra(name) => write!(f, "`{name}` does not belong to this network"),
            Self::Shape(name) => write!(f, "`{name}` has another shape or number type"),
            Self::NotFinite(name) => write!(f, "`{name}` is not finite"),
            Self::Negative(name) => write!(f, "`{name}` is a variance below 0"),
            Self::TooFar(length, limit) => {
                write!(f, "went {length:.3e} from what was sent, more than {limit:.3e}")
            }
            Self::Samples(count) => write!(f, "claims {count} samples"),
        }
    }
}

/// How much further statistics may go than weights: they follow the client's images, not a step size.
const STATISTICS: f64 = 100.0;

/// The door of one round.
#[derive(Debug)]
pub struct Door {
    round: u32,
    asked: BTreeSet<u32>,
    answered: BTreeSet<u32>,
    /// What was sent, of the entries that come back.
    sent: Params,
    /// The furthest the weights of an update may go, and its statistics; none if anywhere.
    limit: Option<(f64, f64)>,
    /// The largest message.
    bytes: u64,
    /// Whether anything is checked.
    checked: bool,
}

impl Door {
    /// For the updates of these clients to what was sent to them. `beside` are models that are sent with it
    /// and stay as they are: what a client trains is measured by all of it.
    pub fn new(
        round: u32,
        asked: &[u32],
        sent: Params,
        beside: &[Params],
        checks: &ChecksConfig,
    ) -> Result<Self> {
        let limit = match checks.distance > 0.0 {
            true => {
                let statistics = sent.layout.iter().zip(&sent.tensors);
                let statistics = statistics.filter(|(entry, _)| entry.statistic).map(|(_, t)| t);
                let far = STATISTICS * checks.distance * (1.0 + length(statistics)?);
                let all = sent.weights().chain(beside.iter().flat_map(Params::weights));
                Some((checks.distance * length(all)?, far))
            }
            false => None,
        };
        let expected = crate::wire::message_bytes(sent.wire_tensors());
        Ok(Self {
            round,
            asked: asked.iter().copied().collect(),
            answered: BTreeSet::new(),
            bytes: (checks.size * expected as f64) as u64,
            sent,
            limit,
            checked: checks.updates,
        })
    }

    /// What was sent.
    pub fn sent(&self) -> &Params {
        &self.sent
    }

    /// The most bytes a message may have: what comes as bytes is refused before it is decoded.
    pub fn largest_message(&self) -> u64 {
        self.bytes
    }

    /// Looks at an update; `None` if nothing is wrong with it.
    pub fn look(&mut self, update: &Update, ledger: &Ledger) -> Result<Option<Offence>> {
        if !self.checked {
            return Ok(None);
        }
        if !self.asked.contains(&update.client) {
            return Ok(Some(Offence::Unexpected));
        }
        if update.round != self.round {
            return Ok(Some(Offence::OtherRound(update.round)));
        }
        if self.answered.contains(&update.client) {
            return Ok(Some(Offence::Duplicate));
        }
        if update.wire_bytes() > self.bytes {
            return Ok(Some(Offence::Size(update.wire_bytes(), self.bytes)));
        }
        if let Some(offence) = self.look_at_tensors(&update.params)? {
            return Ok(Some(offence));
        }
        let most = ledger.sizes.get(&update.client).copied().unwrap_or_default();
        if update.samples == 0 || update.samples > most {
            return Ok(Some(Offence::Samples(update.samples)));
        }
        self.answered.insert(update.client);
        Ok(None)
    }

    fn look_at_tensors(&self, params: &Params) -> Result<Option<Offence>> {
        let pairs = match self.pair_up(params) {
            Ok(pairs) => pairs,
            Err(offence) => return Ok(Some(offence)),
        };
        // All tensors at once, and one question to the device: a good update has nothing to name.
        let row = |tensors: Vec<&Tensor>| in_a_row(tensors, self.sent.device());
        let distance = |statistic: bool| {
            let chosen = pairs.iter().filter(|(entry, ..)| entry.statistic == statistic);
            let (there, sent) = chosen.map(|&(_, there, sent)| (there, sent)).unzip();
            Ok::<_, Error>(row(there)?.f_sub(&row(sent)?)?.f_norm()?)
        };
        let variances = pairs.iter().filter(|(entry, ..)| is_variance(entry));
        let lowest = row(variances.map(|&(_, there, _)| there).collect())?.f_min()?;
        let found = Tensor::f_stack(&[distance(false)?, distance(true)?, lowest], 0)?;
        let found = found.f_to_kind(Kind::Double)?.f_to_device(Device::Cpu)?;
        let found = Vec::<f64>::try_from(found)?;
        let (far, statistics, lowest) = (found[0], found[1], found[2]);
        if !(far + statistics).is_finite() {
            for &(entry, tensor, sent) in &pairs {
                // Finite numbers whose square is not are too far as well.
                if !tensor.f_sub(sent)?.f_norm()?.f_double_value(&[])?.is_finite() {
                    return Ok(Some(Offence::NotFinite(entry.name.clone())));
                }
            }
        }
        if lowest < 0.0 {
            for &(entry, tensor, _) in pairs.iter().filter(|(entry, ..)| is_variance(entry)) {
                if tensor.f_min()?.f_double_value(&[])? < 0.0 {
                    return Ok(Some(Offence::Negative(entry.name.clone())));
                }
            }
        }
        let Some((most, most_of_statistics)) = self.limit else { return Ok(None) };
        Ok(match (far > most, statistics > most_of_statistics) {
            (true, _) => Some(Offence::TooFar(far, most)),
            (_, true) => Some(Offence::TooFar(statistics, most_of_statistics)),
            _ => None,
        })
    }

    /// Every tensor that was sent with the one that came back, if they are the same ones.
    fn pair_up<'a>(&'a self, params: &'a Params) -> Result<Vec<Pair<'a>>, Offence> {
        let mut there: BTreeMap<&str, &Tensor> =
            params.layout.iter().map(|entry| entry.name.as_str()).zip(&params.tensors).collect();
        let mut pairs = Vec::new();
        for (entry, sent) in self.sent.layout.iter().zip(&self.sent.tensors) {
            let tensor = there.remove(entry.name.as_str());
            let tensor = tensor.ok_or_else(|| Offence::Missing(entry.name.clone()))?;
            if tensor.size() != sent.size() || tensor.kind() != sent.kind() {
                return Err(Offence::Shape(entry.name.clone()));
            }
            pairs.push((entry, tensor, sent));
        }
        match there.keys().next() {
            Some(extra) => Err(Offence::Extra((*extra).to_owned())),
            None => Ok(pairs),
        }
    }
}

/// What a tensor is, as it came back, as it was sent.
type Pair<'a> = (&'a Entry, &'a Tensor, &'a Tensor);

fn is_variance(entry: &Entry) -> bool {
    entry.statistic && entry.name.ends_with("var")
}

/// Tensors as one row of numbers, in the order of their memory: the same for tensors of one layout. A 0
/// stands in front, so that a row of none has a length and a lowest number too.
fn in_a_row(tensors: Vec<&Tensor>, device: Device) -> Result<Tensor> {
    let mut row = vec![Tensor::f_zeros([1], (Kind::Float, device))?];
    for tensor in tensors {
        row.push(match tensor.dim() {
            5 => tensor.f_permute([0, 1, 3, 4, 2])?.f_flatten(0, -1)?, // channels last
            _ => tensor.f_flatten(0, -1)?,
        });
    }
    Ok(Tensor::f_cat(&row, 0)?)
}

/// The length of some tensors taken together.
pub(crate) fn length<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<f64> {
    let norms = tensors.map(|tensor| tensor.f_norm()?.f_to_kind(Kind::Double));
    let norms = norms.collect::<Result<Vec<_>, _>>()?;
    Ok(if norms.is_empty() {
        0.0
    } else {
        Tensor::f_stack(&norms, 0)?.f_norm()?.f_double_value(&[])?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve;
    use crate::params::Part;
    use std::sync::Arc;

    fn params(values: &[(&str, &[f32])]) -> Params {
        let entry = |(name, values): &(&str, &[f32])| Entry {
            name: (*name).to_owned(),
            shape: vec![values.len() as i64],
            part: Part::Backbone,
            statistic: name.ends_with("mean") || name.ends_with("var"),
        };
        let tensors = values.iter().map(|(_, v)| Tensor::from_slice(v).unsqueeze(0)).collect();
        Params { layout: Arc::new(values.iter().map(entry).collect()), tensors }
    }

    fn update(client: u32, values: &[(&str, &[f32])]) -> Update {
        Update { client, round: 3, params: params(values), samples: 10, kept: 5 }
    }

    // Weights of length 5, statistics of length 5^0.5.
    const SENT: &[(&str, &[f32])] = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[2.0])];
    const GOOD: &[(&str, &[f32])] = &[("a", &[3.0, 5.0]), ("mean", &[600.0]), ("var", &[0.0])];

    #[test]
    fn every_offence_is_seen() {
        let checks = resolve("", &["checks.distance=2".to_owned()]).unwrap().checks;
        let mut ledger = Ledger::default();
        (1..=2).for_each(|client| ledger.meet(client, 10));
        let mut door = Door::new(3, &[1, 2, 4], params(SENT), &[], &checks).unwrap();
        let mut look = |update: &Update| door.look(update, &ledger).unwrap();
        let far: &[(&str, &[f32])] =
            &[("a", &[3.0, 4.0 + 10.5]), ("mean", &[1.0]), ("var", &[2.0])];
        let infinite: &[(&str, &[f32])] =
            &[("a", &[3.0, f32::NAN]), ("mean", &[1.0]), ("var", &[2.0])];
        let shape: &[(&str, &[f32])] = &[("a", &[3.0]), ("mean", &[1.0]), ("var", &[2.0])];
        let extra: &[(&str, &[f32])] =
            &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[2.0]), ("b", &[0.0])];
        assert_eq!(look(&update(3, GOOD)), Some(Offence::Unexpected));
        assert_eq!(look(&Update { round: 2, ..update(1, GOOD) }), Some(Offence::OtherRound(2)));
        assert_eq!(look(&update(1, &GOOD[..1])), Some(Offence::Missing("mean".into())));
        assert_eq!(look(&update(1, extra)), Some(Offence::Extra("b".into())));
        assert_eq!(look(&update(1, shape)), Some(Offence::Shape("a".into())));
        let blown_up = [0.0; 1000];
        let large: &[(&str, &[f32])] = &[("a", &blown_up), ("mean", &[1.0]), ("var", &[2.0])];
        let (bytes, most) = (update(1, large).wire_bytes(), 2 * update(1, GOOD).wire_bytes());
        assert_eq!(look(&update(1, large)), Some(Offence::Size(bytes, most)));
        assert_eq!(look(&update(1, infinite)), Some(Offence::NotFinite("a".into())));
        assert_eq!(look(&update(1, far)), Some(Offence::TooFar(10.5, 10.0)));
        assert_eq!(look(&Update { samples: 0, ..update(1, GOOD) }), Some(Offence::Samples(0)));
        assert_eq!(look(&Update { samples: 11, ..update(1, GOOD) }), Some(Offence::Samples(11)));
        // Nobody has met this one.
        assert_eq!(look(&update(4, GOOD)), Some(Offence::Samples(10)));
        // Statistics may go further than weights, but not anywhere, and no variance is below 0.
        assert_eq!(look(&update(2, GOOD)), None);
        assert_eq!(look(&update(2, GOOD)), Some(Offence::Duplicate));
        let mean: &[(&str, &[f32])] = &[("a", &[3.0, 4.0]), ("mean", &[1e10]), ("var", &[2.0])];
        let most = 100.0 * 2.0 * (1.0 + 5.0f64.sqrt());
        assert_eq!(look(&update(1, mean)), Some(Offence::TooFar(1e10, most)));
        let below: &[(&str, &[f32])] = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[-0.1])];
        assert_eq!(look(&update(1, below)), Some(Offence::Negative("var".into())));
    }

    /// FedMatch's psi is 0 at first; its clients train the sum of it and sigma.
    #[test]
    fn the_way_is_measured_by_all_that_was_sent() {
        let checks = resolve("", &["checks.distance=1".to_owned()]).unwrap().checks;
        let mut ledger = Ledger::default();
        ledger.meet(1, 10);
        let nothing: &[(&str, &[f32])] = &[("a", &[0.0, 0.0])];
        let near: &[(&str, &[f32])] = &[("a", &[3.0, 3.9])];
        let look = |beside: &[Params]| {
            let mut door = Door::new(3, &[1], params(nothing), beside, &checks).unwrap();
            door.look(&update(1, near), &ledger).unwrap()
        };
        assert!(matches!(look(&[]), Some(Offence::TooFar(..))));
        assert_eq!(look(&[params(&SENT[..1])]), None);
    }

    #[test]
    fn an_open_door_lets_everything_in() {
        let checks = resolve("", &["checks.updates=false".to_owned()]).unwrap().checks;
        let mut door = Door::new(3, &[1], params(SENT), &[], &checks).unwrap();
        let nothing: &[(&str, &[f32])] = &[("a", &[f32::NAN])];
        assert_eq!(door.look(&update(9, nothing), &Ledger::default()).unwrap(), None);
    }
}
