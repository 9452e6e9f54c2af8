//! Admission of answers: everything a client sends is checked before it counts, the same for simulated
//! and for real clients. What is wrong is rejected and named; too many rejections exclude a client. One
//! client's NaN or wrong shape ends no run and enters no model.

use super::fleet::ClientKey;
use super::lengths::Lengths;
use super::registry::Registry;
use super::rejection::Rejection;
use crate::config::ChecksConfig;
use crate::error::Result;
use crate::messages::{Answer, Broadcast, ClientLosses, ClientOutcome, Update};
use fedanchor_engine::tensors::{Entry, Layout, Params, norm};
use fedanchor_engine::training::Context;
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Kind, Tensor};

/// An answer that counts.
#[derive(Debug)]
pub enum Admitted {
    /// An update.
    Update(AdmittedUpdate),
    /// The client kept no sample.
    NothingKept {
        /// Its samples.
        samples: usize,
    },
    /// The client could not train.
    Failed {
        /// Why.
        reason: String,
    },
    /// The same answer once more: a message delivered twice.
    Repeated,
}

/// An update that passed every check. Only [`Admission`] makes one.
#[derive(Debug)]
pub struct AdmittedUpdate {
    client: u32,
    update: Update,
    /// How far it moves, where that was measured.
    lengths: Option<Lengths>,
    shortened: bool,
}

impl AdmittedUpdate {
    /// Whose it is.
    pub fn client(&self) -> u32 {
        self.client
    }

    /// The update.
    pub fn update(&self) -> &Update {
        &self.update
    }

    /// How far it moves, where that was measured.
    pub(super) fn lengths(&self) -> Option<Lengths> {
        self.lengths
    }

    /// Whether it moved further than is usual and was shortened.
    pub(super) fn is_shortened(&self) -> bool {
        self.shortened
    }

    /// With tensors of its own.
    pub(super) fn into_owned(mut self) -> Result<Self> {
        self.update.params = self.update.params.copy()?;
        Ok(self)
    }
}

/// How much further statistics may move than weights: they follow the client's images, not a step size.
const STATISTICS: f64 = 100.0;

/// A digest of an encoded answer.
pub(super) type Digest = blake3::Hash;

/// Admission to one round.
#[derive(Debug)]
pub struct Admission {
    method: String,
    round: u32,
    asked: BTreeSet<u32>,
    /// Who has answered, with a digest of the answer where it came as bytes.
    answered: BTreeMap<u32, Option<Digest>>,
    /// What was broadcast, of the entries that come back.
    sent: Params,
    /// All entries of the network, to decode by.
    layout: Layout,
    device: Device,
    /// The largest distance of the weights of an update, and of its statistics; none if unlimited.
    limit: Option<(f64, f64)>,
    /// How far an update may move without being shortened; none if that is not known yet.
    usual: Option<Lengths>,
    /// The largest message.
    bytes: u64,
    /// Whether anything is checked.
    checked: bool,
}

impl Admission {
    /// For the answers of these clients to a broadcast; `sent` are the entries that come back. Distances
    /// are relative to these and to the model that they are added to, if there is any. `usual` is how far
    /// updates usually move.
    pub fn new(
        broadcast: &Broadcast,
        clients: &[(u32, ClientKey)],
        sent: Params,
        summand: Option<&Params>,
        context: &Context,
        checks: &ChecksConfig,
        usual: Option<Lengths>,
    ) -> Result<Self> {
        let limit = match checks.distance > 0.0 {
            true => {
                let statistics = sent.layout.iter().zip(&sent.tensors);
                let statistics = statistics.filter(|(entry, _)| entry.statistic).map(|(_, t)| t);
                let far = STATISTICS * checks.distance * (1.0 + norm(statistics)?);
                // Of the summand only what a client can send: the same entries.
                let names: BTreeSet<&str> = sent.layout.iter().map(|e| e.name.as_str()).collect();
                let beside = summand.map(|model| model.subset(|e| names.contains(e.name.as_str())));
                let all = sent.weights().chain(beside.iter().flat_map(Params::weights));
                Some((checks.distance * norm(all)?, far))
            }
            false => None,
        };
        let update = Update {
            params: sent.shallow_copy(),
            samples: usize::MAX,
            kept: usize::MAX,
            losses: ClientLosses { fix: Some(-f64::MAX), mix: Some(-f64::MAX) },
        };
        let (method, round) = (broadcast.method.clone(), broadcast.round);
        let outcome = ClientOutcome::Update(update);
        let expected = Answer { method: method.clone(), round, client: u32::MAX, outcome };
        Ok(Self {
            bytes: (checks.size * expected.encoded_len()? as f64) as u64,
            method,
            round,
            asked: clients.iter().map(|(number, _)| *number).collect(),
            answered: BTreeMap::new(),
            sent,
            layout: context.network.layout.clone(),
            device: context.device,
            limit,
            usual: usual.filter(|_| checks.length > 0.0).map(|usual| usual.times(checks.length)),
            checked: checks.updates,
        })
    }

    /// What was broadcast, of the entries that come back.
    pub fn sent(&self) -> &Params {
        &self.sent
    }

    /// The update of a client that counts as unchanged.
    pub(super) fn unchanged(&self, client: u32, samples: usize) -> Result<AdmittedUpdate> {
        let (params, losses) = (self.sent.copy()?, ClientLosses::default());
        let update = Update { params, samples, kept: 0, losses };
        Ok(AdmittedUpdate { client, update, lengths: None, shortened: false })
    }

    /// Decodes an answer and admits it. `client` is who sent it, according to the transport.
    pub fn admit_encoded(
        &mut self,
        client: u32,
        bytes: &[u8],
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        let answer = self.decode(bytes)?;
        self.admit(client, answer, Some(blake3::hash(bytes)), registry)
    }

    /// What a client's first answer would come to. Nothing is remembered of it.
    pub(super) fn check_encoded(
        &self,
        client: u32,
        bytes: &[u8],
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        let answer = self.decode(bytes)?;
        if self.checked {
            self.check_header(client, &answer)?;
        }
        self.judge(client, answer, registry)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Answer, Rejection> {
        if self.checked && bytes.len() as u64 > self.bytes {
            return Err(Rejection::Size(bytes.len() as u64, self.bytes));
        }
        Answer::decode(bytes, &self.layout, self.device)
            .map_err(|error| Rejection::Undecodable(error.to_string()))
    }

    /// Admits an answer. `client` is who sent it, according to the transport; `digest` that of its bytes.
    pub fn admit(
        &mut self,
        client: u32,
        answer: Answer,
        digest: Option<Digest>,
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        if self.checked {
            self.check_header(client, &answer)?;
            if let Some(first) = self.answered.get(&client) {
                let same = first.is_some() && *first == digest;
                return if same { Ok(Admitted::Repeated) } else { Err(Rejection::Conflicting) };
            }
            self.answered.insert(client, digest);
        }
        self.judge(client, answer, registry)
    }

    /// Checks what an answer holds, beyond its header.
    fn judge(
        &self,
        client: u32,
        answer: Answer,
        registry: &Registry,
    ) -> Result<Admitted, Rejection> {
        match answer.outcome {
            ClientOutcome::Update(mut update) => {
                let (mut lengths, mut shortened) = (None, false);
                if self.checked {
                    let found = self.check_tensors(&update.params)?;
                    check_samples(registry, client, update.samples)?;
                    if update.kept > update.samples {
                        return Err(Rejection::Kept(update.kept, update.samples));
                    }
                    let most = self.usual.unwrap_or(found);
                    if let Some(short) = found.shorten(&update.params, &self.sent, most)? {
                        (update.params, shortened) = (short, true);
                    }
                    lengths = Some(found.at_most(most));
                }
                Ok(Admitted::Update(AdmittedUpdate { client, update, lengths, shortened }))
            }
            ClientOutcome::NothingKept { samples } => {
                if self.checked {
                    check_samples(registry, client, samples)?;
                }
                Ok(Admitted::NothingKept { samples })
            }
            ClientOutcome::Failed { reason } => Ok(Admitted::Failed { reason }),
        }
    }

    fn check_header(&self, client: u32, answer: &Answer) -> Result<(), Rejection> {
        match answer {
            _ if !self.asked.contains(&client) => Err(Rejection::Unexpected),
            Answer { round, .. } if *round != self.round => Err(Rejection::OtherRound(*round)),
            Answer { client: claimed, .. } if *claimed != client => {
                Err(Rejection::OtherClient(*claimed))
            }
            Answer { method, .. } if *method != self.method => {
                Err(Rejection::OtherMethod(method.chars().take(40).collect()))
            }
            _ => Ok(()),
        }
    }

    fn check_tensors(&self, params: &Params) -> Result<Lengths, Rejection> {
        let pairs = self.pair_up(params)?;
        // All tensors at once, with one result read from the device: a good update has nothing to name.
        let row = |tensors: Vec<&Tensor>| in_a_row(tensors, self.sent.device());
        let distance = |statistic: bool| {
            let chosen = pairs.iter().filter(|(entry, ..)| entry.statistic == statistic);
            let (there, sent) = chosen.map(|&(_, there, sent)| (there, sent)).unzip();
            Ok::<_, Rejection>(row(there)?.f_sub(&row(sent)?)?.f_norm()?)
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
                    return Err(Rejection::NotFinite(entry.name.clone()));
                }
            }
        }
        if lowest < 0.0 {
            for &(entry, tensor, _) in pairs.iter().filter(|(entry, ..)| is_variance(entry)) {
                if tensor.f_min()?.f_double_value(&[])? < 0.0 {
                    return Err(Rejection::Negative(entry.name.clone()));
                }
            }
        }
        let lengths = Lengths { weights: far, statistics };
        let Some((most, most_of_statistics)) = self.limit else { return Ok(lengths) };
        match (far > most, statistics > most_of_statistics) {
            (true, _) => Err(Rejection::TooFar(far, most)),
            (_, true) => Err(Rejection::TooFar(statistics, most_of_statistics)),
            _ => Ok(lengths),
        }
    }

    /// Every tensor that was sent with the one that came back, if they are the same ones.
    fn pair_up<'a>(&'a self, params: &'a Params) -> Result<Vec<Pair<'a>>, Rejection> {
        let mut there: BTreeMap<&str, &Tensor> =
            params.layout.iter().map(|entry| entry.name.as_str()).zip(&params.tensors).collect();
        let mut pairs = Vec::new();
        for (entry, sent) in self.sent.layout.iter().zip(&self.sent.tensors) {
            let tensor = there.remove(entry.name.as_str());
            let tensor = tensor.ok_or_else(|| Rejection::Missing(entry.name.clone()))?;
            if tensor.size() != sent.size() || tensor.kind() != sent.kind() {
                return Err(Rejection::Shape(entry.name.clone()));
            }
            pairs.push((entry, tensor, sent));
        }
        match there.keys().next() {
            Some(extra) => Err(Rejection::Extra((*extra).to_owned())),
            None => Ok(pairs),
        }
    }
}

/// What a tensor is, as it came back, as it was sent.
type Pair<'a> = (&'a Entry, &'a Tensor, &'a Tensor);

fn is_variance(entry: &Entry) -> bool {
    entry.statistic && entry.name.ends_with("var")
}

/// Tensors as one row of numbers, in the order of their memory: the same for tensors of one layout. It
/// starts with a 0, so that a row of no tensors has a norm and a minimum too.
fn in_a_row(tensors: Vec<&Tensor>, device: Device) -> Result<Tensor, tch::TchError> {
    let mut row = vec![Tensor::f_zeros([1], (Kind::Float, device))?];
    for tensor in tensors {
        row.push(match tensor.dim() {
            5 => tensor.f_permute([0, 1, 3, 4, 2])?.f_flatten(0, -1)?, // channels last
            _ => tensor.f_flatten(0, -1)?,
        });
    }
    Tensor::f_cat(&row, 0)
}

fn check_samples(registry: &Registry, client: u32, samples: usize) -> Result<(), Rejection> {
    match samples {
        0 => Err(Rejection::Samples(0)),
        samples if samples > registry.samples(client) => Err(Rejection::Samples(samples)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::resolve;
    use fedanchor_engine::tensors::Part;
    use std::sync::Arc;

    type Values<'a> = &'a [(&'a str, &'a [f32])];

    fn params(values: Values) -> Params {
        let entry = |(name, values): &(&str, &[f32])| Entry {
            name: (*name).to_owned(),
            shape: vec![values.len() as i64],
            part: Part::Backbone,
            statistic: name.ends_with("mean") || name.ends_with("var"),
        };
        let tensors = values.iter().map(|(_, v)| Tensor::from_slice(v).unsqueeze(0)).collect();
        Params { layout: Arc::new(values.iter().map(entry).collect()), tensors }
    }

    fn answer(client: u32, update: Update) -> Answer {
        let (method, outcome) = ("fedanchor".to_owned(), ClientOutcome::Update(update));
        Answer { method, round: 3, client, outcome }
    }

    fn update(values: Values) -> Update {
        let losses = ClientLosses::default();
        Update { params: params(values), samples: 10, kept: 5, losses }
    }

    // Weights of norm 5, statistics of norm 5^0.5.
    const SENT: Values = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[2.0])];
    const GOOD: Values = &[("a", &[3.0, 5.0]), ("mean", &[600.0]), ("var", &[0.0])];

    fn admission(setting: &str, sent: Values, summand: Option<Values>) -> Admission {
        admission_with(setting, sent, summand, None)
    }

    fn admission_with(
        setting: &str,
        sent: Values,
        summand: Option<Values>,
        usual: Option<Lengths>,
    ) -> Admission {
        let experiment = resolve("", &["model.name=small".to_owned(), setting.to_owned()]).unwrap();
        let broadcast = Broadcast::new("fedanchor", 3, params(sent));
        let summand = summand.map(params);
        let clients: Vec<(u32, ClientKey)> =
            [1, 2, 4].into_iter().map(|number| (number, ClientKey::Number(number))).collect();
        let method = crate::methods::build(&experiment.method).unwrap();
        let context = Context::new(
            experiment.training(method.heads()).unwrap(),
            fedanchor_data::Shape { side: 16, channels: 1 },
            3,
            &fedanchor_data::Normalisation { mean: vec![0.0], std: vec![1.0] },
            false,
            Some(1),
        );
        let (context, checks) = (context.unwrap(), &experiment.checks);
        let mut admission = Admission::new(
            &broadcast,
            &clients,
            params(sent),
            summand.as_ref(),
            &context,
            checks,
            usual,
        )
        .unwrap();
        admission.layout = params(sent).layout;
        admission
    }

    fn registry() -> Registry {
        let mut registry = Registry::default();
        (1..=2).for_each(|client| registry.meet(client, 10));
        registry
    }

    #[test]
    fn every_fault_is_named() {
        let registry = registry();
        let refused = |client: u32, answer: Answer| {
            let mut admission = admission("checks.distance=2", SENT, None);
            admission.admit(client, answer, None, &registry).err()
        };
        let of = |values: Values| refused(1, answer(1, update(values)));
        assert_eq!(refused(3, answer(3, update(GOOD))), Some(Rejection::Unexpected));
        let other = Answer { round: 2, ..answer(1, update(GOOD)) };
        assert_eq!(refused(1, other), Some(Rejection::OtherRound(2)));
        // Who it is from is what the transport says.
        assert_eq!(refused(1, answer(2, update(GOOD))), Some(Rejection::OtherClient(2)));
        let other = Answer { method: "semifl".to_owned(), ..answer(1, update(GOOD)) };
        assert_eq!(refused(1, other), Some(Rejection::OtherMethod("semifl".to_owned())));
        assert_eq!(of(&GOOD[..1]), Some(Rejection::Missing("mean".into())));
        let extra: Values = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[2.0]), ("b", &[0.0])];
        assert_eq!(of(extra), Some(Rejection::Extra("b".into())));
        let shape: Values = &[("a", &[3.0]), ("mean", &[1.0]), ("var", &[2.0])];
        assert_eq!(of(shape), Some(Rejection::Shape("a".into())));
        let infinite: Values = &[("a", &[3.0, f32::NAN]), ("mean", &[1.0]), ("var", &[2.0])];
        assert_eq!(of(infinite), Some(Rejection::NotFinite("a".into())));
        let far: Values = &[("a", &[3.0, 14.5]), ("mean", &[1.0]), ("var", &[2.0])];
        assert_eq!(of(far), Some(Rejection::TooFar(10.5, 10.0)));
        // Statistics may move further than weights, but not anywhere, and no variance is below 0.
        let mean: Values = &[("a", &[3.0, 4.0]), ("mean", &[1e10]), ("var", &[2.0])];
        let most = 100.0 * 2.0 * (1.0 + 5.0f64.sqrt());
        assert_eq!(of(mean), Some(Rejection::TooFar(1e10, most)));
        let below: Values = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[-0.1])];
        assert_eq!(of(below), Some(Rejection::Negative("var".into())));
        for (samples, kept, problem) in [
            (0, 0, Rejection::Samples(0)),
            (11, 5, Rejection::Samples(11)),
            (10, 11, Rejection::Kept(11, 10)),
        ] {
            let update = Update { samples, kept, ..update(GOOD) };
            assert_eq!(refused(1, answer(1, update)), Some(problem));
        }
        // Client 4 was never met.
        assert_eq!(refused(4, answer(4, update(GOOD))), Some(Rejection::Samples(10)));
        let nothing = |samples| Answer {
            outcome: ClientOutcome::NothingKept { samples },
            ..answer(1, update(GOOD))
        };
        assert_eq!(refused(1, nothing(11)), Some(Rejection::Samples(11)));
        assert_eq!(refused(1, nothing(10)), None);
        assert_eq!(of(GOOD), None);
    }

    #[test]
    fn a_message_may_arrive_twice_but_an_answer_not() {
        let registry = registry();
        let mut admission = admission("checks.distance=2", SENT, None);
        let first = answer(1, update(GOOD)).encode().unwrap();
        let second = answer(1, Update { kept: 6, ..update(GOOD) }).encode().unwrap();
        let mut admit = |bytes: &[u8]| admission.admit_encoded(1, bytes, &registry);
        assert!(matches!(admit(&first), Ok(Admitted::Update(_))));
        assert!(matches!(admit(&first), Ok(Admitted::Repeated)));
        assert_eq!(admit(&second).unwrap_err(), Rejection::Conflicting);
        assert!(matches!(admit(&first), Ok(Admitted::Repeated)));
    }

    #[test]
    fn bytes_are_refused_before_they_are_decoded_if_there_are_too_many() {
        let registry = registry();
        let mut admission = admission("checks.distance=2", SENT, None);
        let limit = admission.bytes;
        let whole = answer(1, update(GOOD)).encode().unwrap();
        assert!(limit > whole.len() as u64 && limit < 3 * whole.len() as u64, "{limit}");
        let many = vec![b' '; limit as usize + 1];
        let rejected = admission.admit_encoded(1, &many, &registry).unwrap_err();
        assert_eq!(rejected, Rejection::Size(limit + 1, limit));
        let rejected =
            admission.admit_encoded(1, &whole[..whole.len() - 1], &registry).unwrap_err();
        assert!(matches!(rejected, Rejection::Undecodable(_)));
        assert!(admission.admit_encoded(1, &whole, &registry).is_ok());
    }

    /// FedMatch's psi is 0 at first; its clients train the sum of it and sigma.
    #[test]
    fn distances_are_relative_to_the_sum() {
        let nothing: Values = &[("a", &[0.0, 0.0])];
        let near: Values = &[("a", &[3.0, 3.9])];
        let admit = |summand: Option<Values>| {
            let mut admission = admission("checks.distance=1", nothing, summand);
            admission.admit(1, answer(1, update(near)), None, &registry()).map(drop)
        };
        assert!(matches!(admit(None), Err(Rejection::TooFar(..))));
        assert_eq!(admit(Some(&SENT[..1])), Ok(()));
    }

    #[test]
    fn what_is_longer_than_usual_is_shortened() {
        let usual = Lengths { weights: 2.0, statistics: 1.0 };
        let admit = |setting: &str, usual: Option<Lengths>| {
            let mut admission = admission_with(setting, SENT, None, usual);
            let far: Values = &[("a", &[3.0, 14.0]), ("mean", &[2.0]), ("var", &[2.0])];
            match admission.admit(1, answer(1, update(far)), None, &registry()).unwrap() {
                Admitted::Update(update) => update,
                other => panic!("{other:?}"),
            }
        };
        let short = admit("checks.distance=2", Some(usual)); // 10 is more than twice 2
        assert!(short.is_shortened());
        assert_eq!(short.lengths(), Some(Lengths { weights: 4.0, statistics: 1.0 }));
        let expected: Values = &[("a", &[3.0, 8.0]), ("mean", &[2.0]), ("var", &[2.0])];
        assert_eq!(short.update().params.tensors, params(expected).tensors);
        // Nothing is usual in the first round, and 0 is no limit.
        for (length, usual) in [("2", None), ("0", Some(usual)), ("5", Some(usual))] {
            let settings = format!("checks={{distance=2, length={length}}}");
            let whole = admit(&settings, usual);
            assert!(!whole.is_shortened(), "{length}");
            assert_eq!(whole.lengths(), Some(Lengths { weights: 10.0, statistics: 1.0 }));
        }
    }

    /// A client can claim any number of samples at first contact; its share of a mean is bounded all the same.
    #[test]
    fn no_client_outweighs_the_others() {
        use crate::federation::aggregation::{Aggregation, Known};
        let mut registry = Registry::default();
        for (client, samples) in [(1, 10), (2, 10), (4, 1_000_000_000)] {
            registry.meet(client, samples);
        }
        let mean = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
            let config = resolve("", &settings).unwrap().aggregation;
            let mut admission = admission("checks.distance=2", &SENT[..1], None);
            let known = Known { samples: vec![10, 1_000_000_000, 10], ..Known::default() };
            let mut aggregation = Aggregation::new(&config, known);
            for (client, value, samples) in [(1, 4.0, 10), (2, 4.0, 10), (4, 9.0, 1_000_000_000)] {
                let there: Values = &[("a", &[3.0, value])];
                let update = Update { samples, kept: samples, ..update(there) };
                match admission.admit(client, answer(client, update), None, &registry).unwrap() {
                    Admitted::Update(update) => aggregation.add(&update, admission.sent()).unwrap(),
                    other => panic!("{other:?}"),
                }
            }
            let mean = aggregation.finish(admission.sent()).unwrap().unwrap();
            mean.tensors[0].double_value(&[0, 1])
        };
        // Three times the median of the samples: 30 of 50.
        for weights in ["samples", "kept"] {
            let found = mean(&[&format!("aggregation.weights={weights}")]);
            assert!((found - 7.0).abs() < 1e-6, "{found}");
        }
        assert!(mean(&["aggregation.weight_limit=0"]) > 8.9);
        assert!((mean(&["aggregation.weights=uniform"]) - 17.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn without_checks_everything_counts() {
        let mut admission = admission("checks.updates=false", SENT, None);
        let nothing: Values = &[("a", &[f32::NAN])];
        let admitted = admission.admit(9, answer(9, update(nothing)), None, &Registry::default());
        assert!(matches!(admitted, Ok(Admitted::Update(_))));
    }
}
