//! Faulty clients in a simulation, to test the robustness of a setting. They are drawn from the seed for the whole run;
//! the fault happens to a client's message in transit.

use crate::aggregation::Norms;
use crate::config::{Experiment, FaultKind};
use crate::error::Result;
use crate::federation::{Arrival, statistics_limit};
use crate::messages::{Answer, ClientOutcome, Update};
use fedanchor_data::stream::SERVER;
use fedanchor_data::{Purpose, Stream};
use fedanchor_engine::tensors::{Entry, Params, norm};
use rand::RngExt;
use rand::seq::index::sample;
use std::collections::BTreeSet;
use std::sync::Arc;
use tch::{TchError, Tensor};

/// The factor of `scale` where none is given.
const SCALE: f64 = 1000.0;
/// How much of the way to the limit `inside` and `statistics` go.
const INSIDE: f64 = 0.99;
/// The length of what `drift` adds, as a share of the honest mean's.
const DRIFT: f64 = 0.2;

/// The faulty clients of a run.
#[derive(Debug)]
pub struct Faults {
    pub(super) kind: FaultKind,
    factor: f64,
    /// The largest distance that is not rejected, as a multiple of the broadcast model's norm.
    distance: f64,
    /// How many times their number of images the faulty clients claim to have.
    claim: f64,
    seed: u64,
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
        let clients = clients.into_iter().map(|client| client as u32).collect();
        let usual = if kind == FaultKind::Scale { SCALE } else { 1.0 };
        Self {
            kind,
            factor: experiment.faults.factor.unwrap_or(usual),
            distance: experiment.checks.distance,
            claim: experiment.faults.claim,
            seed: experiment.seed,
            clients,
        }
    }

    /// Whether a client is faulty.
    pub fn contains(&self, client: u32) -> bool {
        self.clients.contains(&client)
    }

    /// How many samples a client says it has.
    pub fn claimed(&self, client: u32, samples: usize) -> usize {
        if self.contains(client) { (self.claim * samples as f64) as usize } else { samples }
    }

    /// An update of a faulty client that knows the honest clients' mean.
    pub fn drift(&self, mean: &Params, sent: &Params) -> Result<Params> {
        // The same draw in every round.
        let stream = Stream::new(self.seed, Purpose::Faults, 0, 0);
        let random = random_change(mean, sent, &mut stream.rng())?;
        let mut random = random.tensors.iter();
        Ok(map_update(mean, sent, |entry, from, mean| match random.next() {
            Some(random) if !entry.statistic => {
                mean.f_add(&random.f_sub(from)?.f_mul_scalar(DRIFT)?)
            }
            _ => Ok(mean.shallow_clone()),
        })?)
    }

    /// The arrivals for a client's answer, where `sent` is the model that it started from.
    pub fn arrive(&self, mut answer: Answer, sent: &Params) -> Result<Vec<Arrival>> {
        if !self.contains(answer.client) {
            return Ok(vec![Arrival::Answer(answer)]);
        }
        match &mut answer.outcome {
            ClientOutcome::Update(update) => {
                update.kept = self.claimed(answer.client, update.kept);
                update.samples = self.claimed(answer.client, update.samples);
            }
            ClientOutcome::NothingKept { samples, .. } => {
                *samples = self.claimed(answer.client, *samples);
            }
            ClientOutcome::Failed { .. } => {}
        }
        match (self.kind, &answer.outcome) {
            (FaultKind::DropOut, _) => return Ok(vec![Arrival::Absent]),
            (FaultKind::Late, ClientOutcome::Update(_)) => return Ok(vec![Arrival::Late]),
            (FaultKind::Late, _) => return Ok(vec![Arrival::Absent]),
            (FaultKind::Stale, _) => answer.round = answer.round.saturating_sub(1),
            (FaultKind::Duplicate, _) => {
                let bytes = answer.encode()?;
                return Ok(vec![Arrival::Encoded(bytes.clone()), Arrival::Encoded(bytes)]);
            }
            _ => {}
        }
        if let ClientOutcome::Update(Update { params, .. }) = &mut answer.outcome {
            match self.kind {
                FaultKind::Conflicting => {
                    let other = stretched(params, sent, 0.5)?;
                    let first = answer.encode()?;
                    if let ClientOutcome::Update(update) = &mut answer.outcome {
                        update.params = other;
                    }
                    return Ok(vec![Arrival::Encoded(first), Arrival::Encoded(answer.encode()?)]);
                }
                FaultKind::NonFinite => {
                    *params = params.copy()?;
                    if let Some(tensor) = params.tensors.first() {
                        let _ = tensor.f_flatten(0, -1)?.f_narrow(0, 0, 1)?.f_fill_(f64::NAN)?;
                    }
                }
                FaultKind::Shape => {
                    let mut layout: Vec<Entry> = params.layout.to_vec();
                    if let (Some(tensor), Some(entry)) =
                        (params.tensors.last_mut(), layout.last_mut())
                    {
                        *tensor = tensor.f_flatten(1, -1)?.f_narrow(1, 0, 1)?;
                        entry.shape = vec![1];
                    }
                    params.layout = Arc::new(layout);
                }
                FaultKind::Scale | FaultKind::Labels | FaultKind::Backdoor => {
                    *params = stretched(params, sent, self.factor)?;
                }
                FaultKind::Sign => *params = stretched(params, sent, -self.factor)?,
                FaultKind::Noise => {
                    let stream =
                        Stream::new(self.seed, Purpose::Faults, answer.round, answer.client);
                    let random = random_change(params, sent, &mut stream.rng())?;
                    *params = stretched(&random, sent, self.factor)?;
                }
                FaultKind::Inside => {
                    let length = Norms::of(params, sent)?.weights;
                    let limit = INSIDE * self.distance * norm(sent.weights())?;
                    let factor = if length > 0.0 { limit / length } else { 0.0 };
                    *params = stretched(params, sent, -factor)?;
                }
                FaultKind::Statistics => {
                    // All larger by the same number, at that distance.
                    let limit = INSIDE * statistics_limit(sent, self.distance)?;
                    let statistics = sent.layout.iter().filter(|entry| entry.statistic);
                    let count: usize = statistics.map(|entry| entry.numel() as usize).sum();
                    *params = map_update(params, sent, |entry, from, to| match entry.statistic {
                        true => from.f_add_scalar(limit / (count as f64).sqrt()),
                        false => Ok(to.shallow_clone()),
                    })?;
                }
                _ => {}
            }
        }
        Ok(vec![Arrival::Answer(answer)])
    }
}

/// An update with its change of the weights multiplied by `factor`.
fn stretched(params: &Params, sent: &Params, factor: f64) -> Result<Params> {
    Ok(map_update(params, sent, |entry, from, to| match entry.statistic {
        true => Ok(to.shallow_clone()),
        false => from.f_lerp(to, factor),
    })?)
}

/// An update with a random change of the weights of the same norm.
fn random_change(params: &Params, sent: &Params, rng: &mut impl RngExt) -> Result<Params> {
    let random = map_update(params, sent, |entry, from, to| {
        if entry.statistic {
            return Ok(to.shallow_clone());
        }
        let change: Vec<f32> = (0..from.numel()).map(|_| rng.random_range(-1.0..1.0)).collect();
        let change = Tensor::f_from_slice(&change)?.f_view(&from.size()[..])?;
        from.f_add(&change.f_to_device(from.device())?)
    })?;
    let (own, drawn) = (Norms::of(params, sent)?, Norms::of(&random, sent)?);
    stretched(&random, sent, own.weights / drawn.weights)
}

/// An update with every tensor computed from its entry, the tensor that was sent and the trained one.
fn map_update(
    params: &Params,
    sent: &Params,
    mut change: impl FnMut(&Entry, &Tensor, &Tensor) -> Result<Tensor, TchError>,
) -> Result<Params, TchError> {
    let pairs = sent.layout.iter().zip(sent.tensors.iter().zip(&params.tensors));
    let tensors = pairs.map(|(entry, (from, to))| change(entry, from, to));
    Ok(Params { layout: params.layout.clone(), tensors: tensors.collect::<Result<_, _>>()? })
}
