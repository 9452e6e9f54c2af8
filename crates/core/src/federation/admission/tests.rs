use super::*;
use crate::experiment::resolve;
use fedanchor_engine::tensors::{Entry, Part};
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
    Answer { method, round: 3, client, tested: Vec::new(), outcome }
}

fn update(values: Values) -> Update {
    let losses = Vec::new();
    Update {
        params: params(values),
        rounding: None,
        samples: 10,
        kept: 5,
        losses,
        labels: Vec::new(),
    }
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
    usual: Option<Norms>,
) -> Admission {
    let experiment = resolve("", &["model.name=small".to_owned(), setting.to_owned()]).unwrap();
    let broadcast = Broadcast::new("fedanchor", 3, params(sent));
    let summand = summand.map(params);
    // Client 4 was never met.
    let asked = BTreeMap::from([(1, 10), (2, 10), (4, 0), (5, CLAIMED)]);
    let method = crate::methods::build(&experiment.method).unwrap();
    let context = Context::new(
        experiment.training(method.properties().heads).unwrap(),
        fedanchor_data::Shape { side: 16, channels: 1 },
        3,
        &fedanchor_data::Normalisation { mean: vec![0.0], std: vec![1.0] },
        false,
        Some(1),
    );
    let (context, checks) = (context.unwrap(), &experiment.checks);
    let mut admission =
        Admission::new(&broadcast, asked, params(sent), summand.as_ref(), &context, checks, usual)
            .unwrap();
    admission.layout = params(sent).layout;
    admission
}

/// The number of samples that client 5 reported.
const CLAIMED: usize = 1_000_000_000;

#[test]
fn every_fault_is_named() {
    let refused = |client: u32, answer: Answer| {
        let mut admission = admission("checks.distance=2", SENT, None);
        admission.admit(client, answer, None).err().map(|why| why.to_string())
    };
    let named = |reason: &str| Some(reason.to_owned());
    let of = |values: Values| refused(1, answer(1, update(values)));
    assert_eq!(refused(3, answer(3, update(GOOD))), named("was not drawn in this round"));
    let other = Answer { round: 2, ..answer(1, update(GOOD)) };
    assert_eq!(refused(1, other), named("sent an answer for round 2"));
    // Who it is from is what the transport says.
    assert_eq!(refused(1, answer(2, update(GOOD))), named("sent an answer as client 2"));
    let other = Answer { method: "semifl".to_owned(), ..answer(1, update(GOOD)) };
    assert_eq!(refused(1, other), named("sent an answer of method \"semifl\""));
    assert_eq!(of(&GOOD[..1]), named("sent no `mean`"));
    let extra: Values = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[2.0]), ("b", &[0.0])];
    assert_eq!(of(extra), named("sent `b`, which does not belong to the update"));
    let shape: Values = &[("a", &[3.0]), ("mean", &[1.0]), ("var", &[2.0])];
    assert_eq!(of(shape), named("sent `a` with another shape or number type"));
    let infinite: Values = &[("a", &[3.0, f32::NAN]), ("mean", &[1.0]), ("var", &[2.0])];
    assert_eq!(of(infinite), named("sent `a` with a value that is not finite"));
    let far: Values = &[("a", &[3.0, 14.5]), ("mean", &[1.0]), ("var", &[2.0])];
    assert_eq!(of(far), named("moved 1.050e1 from the broadcast model; the limit is 1.000e1"));
    // Statistics may move further than weights, but not anywhere, and no variance is below 0.
    let mean: Values = &[("a", &[3.0, 4.0]), ("mean", &[1e10]), ("var", &[2.0])];
    let most = 100.0 * 2.0 * (1.0 + 5.0f64.sqrt());
    let far = format!("moved 1.000e10 from the broadcast model; the limit is {most:.3e}");
    assert_eq!(of(mean), Some(far));
    let below: Values = &[("a", &[3.0, 4.0]), ("mean", &[1.0]), ("var", &[-0.1])];
    assert_eq!(of(below), named("sent `var` with a negative variance"));
    for (samples, kept, problem) in [
        (0, 0, "claims 0 samples"),
        (11, 5, "claims 11 samples"),
        (10, 11, "claims 11 kept samples of 10"),
    ] {
        let update = Update { samples, kept, ..update(GOOD) };
        assert_eq!(refused(1, answer(1, update)), named(problem));
    }
    // Label counts are of every class, and not more than the samples.
    let counted = |labels: &[u32]| Update { labels: labels.to_vec(), ..update(GOOD) };
    let classes = 3; // of `admission`
    let mut labels = vec![0; classes];
    labels[0] = 10;
    assert_eq!(refused(1, answer(1, counted(&labels))), None);
    labels[1] = 1;
    let problem = named("claims 11 pseudo-labels of 3 classes");
    assert_eq!(refused(1, answer(1, counted(&labels))), problem);
    labels.push(0);
    let problem = named("claims 11 pseudo-labels of 4 classes");
    assert_eq!(refused(1, answer(1, counted(&labels))), problem);
    assert_eq!(refused(4, answer(4, update(GOOD))), named("claims 10 samples"));
    for tested in [vec![[1, 1]], vec![[3, 4]; 2], vec![[u32::MAX, 0]; 2]] {
        let other = Answer { tested, ..answer(1, update(GOOD)) };
        assert_eq!(refused(1, other), named("claims impossible results of a test"));
    }
    let nothing = |samples| Answer {
        outcome: ClientOutcome::NothingKept { samples, labels: Vec::new() },
        ..answer(1, update(GOOD))
    };
    assert_eq!(refused(1, nothing(11)), named("claims 11 samples"));
    assert_eq!(refused(1, nothing(10)), None);
    assert_eq!(of(GOOD), None);
}

#[test]
fn a_message_may_arrive_twice_but_an_answer_not() {
    let mut admission = admission("checks.distance=2", SENT, None);
    let first = answer(1, update(GOOD)).encode().unwrap();
    let second = answer(1, Update { kept: 6, ..update(GOOD) }).encode().unwrap();
    let mut admit = |bytes: &[u8]| admission.admit_encoded(1, bytes);
    assert!(matches!(admit(&first).unwrap().unwrap().outcome, ClientOutcome::Update(_)));
    assert!(matches!(admit(&first), Ok(None)));
    assert_eq!(admit(&second).unwrap_err().to_string(), "sent two different answers");
    assert!(matches!(admit(&first), Ok(None)));
}

#[test]
fn bytes_are_refused_before_they_are_decoded_if_there_are_too_many() {
    let mut admission = admission("checks.distance=2", SENT, None);
    let limit = admission.bytes;
    let whole = answer(1, update(GOOD)).encode().unwrap();
    assert!(limit > whole.len() as u64 && limit < 3 * whole.len() as u64, "{limit}");
    let many = vec![b' '; limit as usize + 1];
    let rejected = admission.admit_encoded(1, &many).unwrap_err();
    let expected = format!("sent {} bytes; the limit is {limit}", limit + 1);
    assert_eq!(rejected.to_string(), expected);
    let rejected = admission.admit_encoded(1, &whole[..whole.len() - 1]).unwrap_err();
    assert!(rejected.to_string().starts_with("sent a message that cannot be decoded"));
    assert!(!rejected.counts_as_trained);
    assert!(admission.admit_encoded(1, &whole).is_ok());
}

/// FedMatch's psi is 0 at first; its clients train the sum of it and sigma.
#[test]
fn distances_are_relative_to_the_sum() {
    let nothing: Values = &[("a", &[0.0, 0.0])];
    let near: Values = &[("a", &[3.0, 3.9])];
    let admit = |summand: Option<Values>| {
        let mut admission = admission("checks.distance=1", nothing, summand);
        admission.admit(1, answer(1, update(near)), None).map(drop)
    };
    assert!(admit(None).unwrap_err().to_string().starts_with("moved "));
    assert_eq!(admit(Some(&SENT[..1])), Ok(()));
}

#[test]
fn what_is_longer_than_usual_is_clipped() {
    let usual = Norms { weights: 2.0, statistics: 1.0 };
    let admit = |setting: &str, usual: Option<Norms>| {
        let mut admission = admission_with(setting, SENT, None, usual);
        let far: Values = &[("a", &[3.0, 14.0]), ("mean", &[2.0]), ("var", &[2.0])];
        admission.admit(1, answer(1, update(far)), None).unwrap().unwrap()
    };
    let short = admit("checks={distance=2, clip=2}", Some(usual)); // 10 is more than twice 2
    assert!(short.clipped && !short.far_outside);
    assert_eq!(short.norms, Some(Norms { weights: 4.0, statistics: 1.0 }));
    let expected: Values = &[("a", &[3.0, 8.0]), ("mean", &[2.0]), ("var", &[2.0])];
    let ClientOutcome::Update(update) = short.outcome else { panic!("{short:?}") };
    assert_eq!(update.params.tensors, params(expected).tensors);
    // Nothing is usual in the first round, and 0 is no limit.
    for (length, usual) in [("2", None), ("0", Some(usual)), ("5", Some(usual))] {
        let settings = format!("checks={{distance=2, clip={length}}}");
        let whole = admit(&settings, usual);
        assert!(!whole.clipped && !whole.far_outside, "{length}");
        assert_eq!(whole.norms, Some(Norms { weights: 10.0, statistics: 1.0 }));
    }
    // By default what is ten times as long as usual, by weights or by statistics; that is hardly honest.
    for (weights, statistics) in [(0.99, 1.0), (10.0, 0.099)] {
        let found = admit("checks.distance=2", Some(Norms { weights, statistics }));
        assert!(found.clipped && found.far_outside, "{weights} {statistics}");
    }
}

/// A client can claim any number of samples at first contact: by default it gains nothing by that.
#[test]
fn a_claimed_number_of_samples_buys_nothing() {
    use crate::aggregation::RuleInputs;
    use crate::federation::intake::n_m;
    let mean = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let config = resolve("", &settings).unwrap().aggregation;
        let mut admission = admission("checks.distance=2", &SENT[..1], None);
        let mut rule = (config.rule.find().unwrap().build)(RuleInputs::default());
        for (client, value, samples) in [(1, 4.0, 10), (2, 4.0, 10), (5, 9.0, CLAIMED)] {
            let there: Values = &[("a", &[3.0, value])];
            let update = Update { samples, kept: samples, ..update(there) };
            let admitted = admission.admit(client, answer(client, update), None).unwrap();
            let ClientOutcome::Update(update) = admitted.unwrap().outcome else { panic!() };
            let weight = n_m(config.weights, &update);
            rule.add(&update.params, weight, &admission.sent).unwrap();
        }
        let mean = rule.finish(&admission.sent).unwrap().unwrap();
        mean.tensors[0].double_value(&[0, 1])
    };
    let thirds = mean(&["aggregation.rule=mean"]);
    assert!((thirds - 17.0 / 3.0).abs() < 1e-6, "{thirds}");
    for weights in ["samples", "kept"] {
        let weights = format!("aggregation.weights={weights}");
        assert!(mean(&["aggregation.rule=mean", &weights]) > 8.9, "{weights}");
    }
}

#[test]
fn without_checks_everything_counts() {
    let mut admission = admission("checks.updates=false", SENT, None);
    let nothing: Values = &[("a", &[f32::NAN])];
    let admitted = admission.admit(9, answer(9, update(nothing)), None).unwrap().unwrap();
    assert!(matches!(admitted.outcome, ClientOutcome::Update(_)));
}
