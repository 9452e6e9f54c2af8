//! Faulty clients in a simulation, so that anyone can see what their setting survives. Who is faulty
//! follows from the seed and stays so for the whole run; the fault is done to the client's message,
//! behind its back.

use crate::config::{Experiment, FaultKind};
use crate::error::Result;
use crate::method::Update;
use crate::params::{Entry, Params};
use fedanchor_data::stream::SERVER;
use fedanchor_data::{Purpose, Stream};
use rand::seq::index::sample;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How far `scale` blows an update up.
const SCALE: f64 = 1000.0;

/// The faulty clients of a run.
#[derive(Debug)]
pub struct Faults {
    kind: FaultKind,
    clients: BTreeSet<u32>,
}

impl Faults {
    /// Draws who is faulty.
    pub fn new(experiment: &Experiment) -> Self {
        let kind = experiment.faults.kind;
        let count = match kind {
            FaultKind::None => 0,
            _ => (experiment.faults.share * experiment.data.clients as f64).round() as usize,
        };
        let mut rng = Stream::new(experiment.seed, Purpose::Faults, 0, SERVER).rng();
        let clients = sample(&mut rng, experiment.data.clients, count.min(experiment.data.clients));
        Self { kind, clients: clients.into_iter().map(|client| client as u32).collect() }
    }

    /// Whether what a client sends comes after the round is over.
    pub fn is_late(&self, client: u32) -> bool {
        self.kind == FaultKind::Late && self.clients.contains(&client)
    }

    /// Whether nothing of a client comes in time.
    pub fn is_away(&self, client: u32) -> bool {
        let away = matches!(self.kind, FaultKind::DropOut | FaultKind::Late);
        away && self.clients.contains(&client)
    }

    /// What arrives in time at the server of what a client sends: none, one or two messages.
    pub fn arrive(&self, update: Update, sent: &Params) -> Result<Vec<Update>> {
        if !self.clients.contains(&update.client) {
            return Ok(vec![update]);
        }
        let away = |update: &Update, share: f64| -> Result<Params> {
            let pairs = sent.tensors.iter().zip(&update.params.tensors).zip(sent.layout.iter());
            let tensors = pairs.map(|((from, to), entry)| {
                if entry.statistic { Ok(to.shallow_clone()) } else { from.f_lerp(to, share) }
            });
            let tensors = tensors.collect::<Result<_, _>>()?;
            Ok(Params { layout: update.params.layout.clone(), tensors })
        };
        Ok(match self.kind {
            FaultKind::None => vec![update],
            FaultKind::DropOut | FaultKind::Late => Vec::new(),
            FaultKind::NonFinite => {
                let params = update.params.copy()?;
                if let Some(tensor) = params.tensors.first() {
                    let _ = tensor.f_flatten(0, -1)?.f_narrow(0, 0, 1)?.f_fill_(f64::NAN)?;
                }
                vec![Update { params, ..update }]
            }
            FaultKind::Shape => {
                let mut params = update.params.copy()?;
                let mut layout: Vec<Entry> = params.layout.to_vec();
                if let (Some(tensor), Some(entry)) = (params.tensors.last_mut(), layout.last_mut())
                {
                    *tensor = tensor.f_flatten(1, -1)?.f_narrow(1, 0, 1)?;
                    entry.shape = vec![1];
                }
                params.layout = Arc::new(layout);
                vec![Update { params, ..update }]
            }
            FaultKind::Scale => vec![Update { params: away(&update, SCALE)?, ..update }],
            FaultKind::Sign => vec![Update { params: away(&update, -1.0)?, ..update }],
            FaultKind::Duplicate => {
                let again = Update { params: update.params.copy()?, ..update };
                vec![update, again]
            }
            FaultKind::Stale => vec![Update { round: update.round.saturating_sub(1), ..update }],
        })
    }
}
