//! Round trips of both messages, and messages that are refused.

use super::*;
use fedanchor_engine::tensors::{Entry, Layout, Params, Part};
use std::collections::BTreeSet;
use std::sync::Arc;
use tch::{Device, Tensor};

fn layout() -> Layout {
    let entry = |name: &str, shape: &[i64], part, statistic| Entry {
        name: name.into(),
        shape: shape.into(),
        part,
        statistic,
    };
    Arc::new(vec![
        entry("conv.weight", &[2, 1], Part::Backbone, false),
        entry("bn.mean", &[2], Part::Backbone, true),
        entry("classifier.weight", &[1, 2], Part::Classifier, false),
    ])
}

fn params(layout: &Layout, value: f32) -> Params {
    let tensors = layout.iter().map(|entry| {
        let mut shape = vec![1];
        shape.extend(&entry.shape);
        Tensor::from_slice(&[value, value / 3.0]).reshape(&shape)
    });
    Params { tensors: tensors.collect(), layout: layout.clone() }
}

fn answer(outcome: ClientOutcome) -> Answer {
    Answer { method: "fedanchor".to_owned(), round: 3, client: 5, tested: Vec::new(), outcome }
}

fn update() -> ClientOutcome {
    let losses = vec![Some(0.1 + 0.2), None, Some(7.0)];
    let params = params(&layout(), 0.7);
    ClientOutcome::Update(Update {
        params,
        rounding: None,
        samples: 297,
        kept: 12,
        losses,
        labels: vec![3, 0],
    })
}

#[test]
fn answers_arrive_exactly_and_their_length_is_known_before() {
    let all = [
        update(),
        ClientOutcome::NothingKept { samples: 31, labels: vec![30, 1] },
        ClientOutcome::Failed { reason: "out of \"memory\"".to_owned() },
    ];
    for outcome in all {
        let sent = answer(outcome);
        let bytes = sent.encode().unwrap();
        assert_eq!(bytes.len() as u64, sent.encoded_len().unwrap());
        let found = Answer::decode(&bytes, &layout(), Device::Cpu).unwrap();
        assert_eq!((found.round, found.client, &found.method), (3, 5, &sent.method));
        match (&found.outcome, &sent.outcome) {
            (ClientOutcome::Update(found), ClientOutcome::Update(sent)) => {
                assert_eq!(found.params.tensors, sent.params.tensors);
                assert_eq!((found.samples, found.kept), (297, 12));
                assert_eq!((&found.losses, &found.labels), (&sent.losses, &sent.labels));
            }
            (ClientOutcome::NothingKept { samples, labels }, _) => {
                assert_eq!((*samples, &labels[..]), (31, &[30, 1][..]));
            }
            (ClientOutcome::Failed { reason }, ClientOutcome::Failed { .. }) => {
                assert_eq!(reason, "out of \"memory\"");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rounded_messages_arrive_exactly_and_are_short() {
    use crate::messages::MessagePrecision::{Bf16, Int8};
    let stream = fedanchor_data::Stream::new(1, fedanchor_data::Purpose::Rounding, 1, 5);
    let sent = params(&layout(), 0.7);
    let to = params(&layout(), 0.9);
    for (precision, kinds) in [(Bf16, "\"BF16\""), (Int8, "\"I8\"")] {
        let (change, rounding, _) = round_change(&to, &sent, None, precision, stream).unwrap();
        let ClientOutcome::Update(mut update) = update() else { panic!() };
        (update.params, update.rounding) = (change.copy().unwrap(), Some(rounding.clone()));
        let message = answer(ClientOutcome::Update(update));
        let bytes = message.encode().unwrap();
        assert_eq!(bytes.len() as u64, message.encoded_len().unwrap());
        assert!(String::from_utf8_lossy(&bytes).contains(kinds));
        let found = Answer::decode(&bytes, &layout(), Device::Cpu).unwrap();
        let ClientOutcome::Update(found) = found.outcome else { panic!() };
        assert_eq!((&found.params.tensors, found.rounding), (&change.tensors, Some(rounding)));
    }
    let mut broadcast = Broadcast::new("fedanchor", 3, params(&layout(), 1.0 / 3.0));
    broadcast.rounded = true;
    let bytes = broadcast.encode(5).unwrap();
    assert_eq!(bytes.len() as u64, broadcast.encoded_len(5).unwrap());
    let (found, _) = Broadcast::decode(&bytes, &layout(), Device::Cpu).unwrap();
    assert_eq!(found.params.tensors, broadcast.rounded().unwrap().params.tensors);
    assert_ne!(found.params.tensors, broadcast.params.tensors);
    // What was rounded once stays as it is.
    assert_eq!(found.encode(5).unwrap(), bytes);
}

#[test]
fn foreign_tensors_are_refused() {
    let mut sent = answer(update());
    let ClientOutcome::Update(update) = &mut sent.outcome else { panic!() };
    let mut other: Vec<Entry> = update.params.layout.to_vec();
    other[0].name = "x".to_owned();
    update.params.layout = Arc::new(other);
    let error = Answer::decode(&sent.encode().unwrap(), &layout(), Device::Cpu).unwrap_err();
    assert_eq!(error.to_string(), "`x` does not belong to this network");
    let broadcast = Broadcast::new("fedanchor", 3, params(&layout(), 1.0));
    let error = Answer::decode(&broadcast.encode(5).unwrap(), &layout(), Device::Cpu);
    assert_eq!(error.unwrap_err().to_string(), "the message is not an answer");
}

/// Sizes are compared with the bytes that are there, and with the network, before anything is allocated.
#[test]
fn sizes_that_lie_are_refused() {
    let header = answer(update()).content().unwrap().1;
    let metadata = serde_json::json!({ "fedanchor": header });
    for shape in [
        "[0,9223372036854775807]",
        "[0,18446744073709551615]",
        "[18446744073709551615,0]",
        "[4294967296,4294967296,0]",
        "[1099511627776]",
        "[1,4611686018427387905]", // four bytes, if the product wraps around
    ] {
        let index = format!(
            "{{\"__metadata__\":{metadata},\"model/conv.weight\":\
             {{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,0]}}}}"
        );
        let bytes = [&(index.len() as u64).to_le_bytes()[..], index.as_bytes()].concat();
        assert!(Answer::decode(&bytes, &layout(), Device::Cpu).is_err(), "{shape}");
    }
}

#[test]
fn a_reason_is_cut() {
    let sent = answer(ClientOutcome::Failed { reason: "x".repeat(10_000) });
    assert!(sent.encode().unwrap().len() < 1000);
}

fn broadcast() -> Broadcast {
    let layout = layout();
    let latents = Tensor::from_slice(&[0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6]).view([3, 2]);
    let mut broadcast = Broadcast::new("fedmatch", 7, params(&layout, 1.0));
    broadcast.arrays.insert("anchors/latents".to_owned(), Array::f32(latents));
    broadcast.arrays.insert("anchors/labels".to_owned(), Array::U16(vec![1, 0, 1]));
    broadcast.arrays.insert("thresholds".to_owned(), Array::F64(vec![0.1, 1.0 / 3.0]));
    broadcast.models.insert("sigma", params(&layout, 2.0));
    broadcast.models.insert_for("helper.3", params(&layout, 3.0), BTreeSet::from([4, 5]));
    broadcast
}

fn values(params: &Params) -> Vec<Tensor> {
    params.copy().unwrap().tensors
}

#[test]
fn a_broadcast_arrives_exactly_and_with_what_is_the_clients_own() {
    let sent = broadcast();
    for client in [4, 9] {
        let bytes = sent.encode(client).unwrap();
        assert_eq!(bytes.len() as u64, sent.encoded_len(client).unwrap());
        let (found, whose) = Broadcast::decode(&bytes, &layout(), Device::Cpu).unwrap();
        assert_eq!((whose, found.round, found.method.as_str()), (client, 7, "fedmatch"));
        assert_eq!(values(&found.params), values(&sent.params));
        let Array::F64(thresholds) = &found.arrays["thresholds"] else { panic!() };
        assert_eq!(thresholds, &[0.1, 1.0 / 3.0]);
        let names: Vec<&str> = found.models.of(client).map(|(name, _)| name).collect();
        assert_eq!(names, if client == 4 { vec!["helper.3", "sigma"] } else { vec!["sigma"] });
        let Array::U16(labels) = &found.arrays["anchors/labels"] else { panic!() };
        assert_eq!(labels, &[1, 0, 1]);
        let Array::F32(latents, _) = &found.arrays["anchors/latents"] else { panic!() };
        assert_eq!(latents.double_value(&[2, 1]), f64::from(0.6f32));
    }
}

#[test]
fn a_broadcast_that_does_not_fit_is_refused() {
    let refused = |change: &dyn Fn(&mut Broadcast), problem: &str| {
        let mut sent = broadcast();
        change(&mut sent);
        let bytes = sent.encode(4).unwrap();
        let error = Broadcast::decode(&bytes, &layout(), Device::Cpu).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    };
    refused(
        &|sent| sent.params = sent.params.subset(|entry| entry.part == Part::Backbone),
        "`classifier.weight` is missing",
    );
    refused(
        &|sent| {
            let half = sent.params.subset(|entry| entry.name == "conv.weight");
            sent.models.insert("half", half);
        },
        "a model has 1 of the 2 entries of Backbone",
    );
    let bytes = broadcast().encode(4).unwrap();
    let other = String::from_utf8_lossy(&bytes).find("\\\"protocol\\\":1").unwrap();
    let mut changed = bytes;
    changed[other + 13] = b'2';
    let error = Broadcast::decode(&changed, &layout(), Device::Cpu).unwrap_err();
    assert_eq!(error.to_string(), "the message has protocol version 2, not 1");
}
