//! Faulty clients: what is dropped, who is set aside, when a round does not count.

use crate::place::{DRAWN, Place, text};
use fedanchor_record::Outcome;

/// All four clients take part in every round, so who is faulty always answers.
const ALL: &[&str] = &["client.per_round=4", "rounds=3", "method.threshold=-1"];

#[test]
fn bad_updates_are_dropped_and_named() {
    let place = Place::with_pictures(16);
    for (kind, reason) in [
        ("non-finite", "is not finite"),
        ("shape", "has another shape or number type"),
        ("scale", "from what was sent, more than"),
        ("duplicate", "answered twice"),
        ("stale", "answered for round"),
    ] {
        let kind_key = format!("faults.kind={kind}");
        let faulty = [&kind_key, "faults.share=0.25", "checks.offences=2"];
        let records = place.run(kind, &[DRAWN, ALL, &faulty]);
        let client = records[1].dropped[0].client;
        for record in &records[1..=2] {
            let dropped = &record.dropped;
            assert!(dropped.len() == 1 && dropped[0].client == client, "{kind}: {dropped:?}");
            assert!(dropped[0].reason.contains(reason), "{kind}: {dropped:?}");
            assert_eq!(record.outcome, Outcome::Taken);
        }
        // After two offences it is not asked again.
        assert_eq!((records[2].clients.len(), records[3].clients.len()), (4, 3), "{kind}");
        assert!(!records[3].clients.contains(&client) && records[3].dropped.is_empty());
    }
    for kind in ["drop-out", "late"] {
        let kind_key = format!("faults.kind={kind}");
        let records = place.run(kind, &[DRAWN, ALL, &[&kind_key, "faults.share=0.25"]]);
        assert!(records.iter().all(|record| record.dropped.is_empty()), "{kind}");
        assert_eq!(records[3].trained, 4, "{kind}");
    }
}

/// Without enough good updates the clients have no part in the round: as if there were none.
#[test]
fn a_round_without_quorum_leaves_the_clients_out() {
    let place = Place::with_pictures(16);
    let faulty =
        ["faults.kind=non-finite", "faults.share=0.5", "checks.quorum=3", "checks.offences=0"];
    let records = place.run("faulty", &[DRAWN, ALL, &faulty]);
    assert!(records[1..].iter().all(|record| record.outcome == Outcome::NoQuorum));
    assert!(records[1..].iter().all(|record| record.dropped.len() == 2));
    let alone = ["faults.kind=drop-out", "faults.share=1"];
    let alone = place.run("alone", &[DRAWN, ALL, &alone]);
    let accuracy = |records: &[fedanchor_record::RoundRecord]| -> Vec<f64> {
        records.iter().map(|record| record.test_loss).collect()
    };
    assert_eq!(accuracy(&records), accuracy(&alone));
}

/// Hostile updates that pass the door, because it is told to let them: the anchors show what they do.
#[test]
fn a_collapsed_round_is_rolled_back_and_the_fourth_in_a_row_ends_the_run() {
    let place = Place::with_pictures(16);
    // Good rounds first, to know what is usual; then the same run goes on with hostile clients.
    place.run("run", &[DRAWN, ALL, &["rounds=5", "optimiser.lr=0.02"]]);
    let hostile = [
        "faults.kind=scale",
        "faults.share=1",
        "checks.distance=0",
        "checks.anchor_margin=5",
        "rounds=12",
    ];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(place.at("")).env("OMP_NUM_THREADS", "1");
    command.args(["run", "--resume", "run", "--force"]);
    for setting in hostile {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("for the fourth time in a row"), "{said}");
    let records = place.records("run");
    let (usual, hostile) = records.split_at(6);
    assert_eq!(hostile.len(), 3);
    for record in hostile {
        assert_eq!(record.outcome, Outcome::RolledBack, "{record:?}");
        assert_eq!(record.test_loss, usual[5].test_loss); // the model is what it was
    }
}

/// A rule for every taste: each runs, and gives another model than the mean.
#[test]
fn every_rule_of_aggregation_runs() {
    let place = Place::with_pictures(16);
    let mean = place.run("mean", &[DRAWN, ALL]);
    for rule in ["clipped-mean", "trimmed-mean", "median", "multi-krum"] {
        let key = format!("aggregation.rule={rule}");
        let records = place.run(rule, &[DRAWN, ALL, &[&key]]);
        assert!(
            records[3].test_loss.is_finite() && records[3].test_loss != mean[3].test_loss,
            "{rule}"
        );
    }
}
