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
        // After two offences it is not asked again, and that is on record.
        assert_eq!(
            (&records[1].set_aside[..], &records[2].set_aside[..]),
            (&[][..], &[client][..])
        );
        assert_eq!((records[2].clients.len(), records[3].clients.len()), (4, 3), "{kind}");
        assert!(!records[3].clients.contains(&client) && records[3].dropped.is_empty());
    }
    // Who is silent has sent nothing that could be dropped; who is slow is named and asked again.
    let away = |kind: &str| {
        let kind_key = format!("faults.kind={kind}");
        place.run(kind, &[DRAWN, ALL, &[&kind_key, "faults.share=0.25", "checks.offences=1"]])
    };
    let (silent, slow) = (away("drop-out"), away("late"));
    assert!(silent.iter().all(|record| record.dropped.is_empty()));
    for (silent, slow) in silent.iter().zip(&slow).skip(1) {
        assert_eq!(slow.dropped.len(), 1);
        assert_eq!(slow.dropped[0].reason, "answered after the round was over");
        assert_eq!((slow.clients.len(), slow.test_loss), (4, silent.test_loss));
        assert!(slow.bytes_up > 0 && slow.bytes_up == silent.bytes_up);
    }
}

/// With the door open everything counts, as in plain averaging: one bad update is enough.
#[test]
fn plain_averaging_is_ruined_by_one_client() {
    let place = Place::with_pictures(16);
    let faulty = ["faults.kind=non-finite", "faults.share=0.25", "checks.updates=false"];
    let output = place.command("run", &[DRAWN, ALL, &faulty]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("round 1, server, ") && said.contains("not finite"), "{said}");
}

/// Without enough good updates the round is skipped, and that is said.
#[test]
fn a_round_without_quorum_leaves_the_model_as_it_was() {
    let place = Place::with_pictures(16);
    let faulty =
        ["faults.kind=non-finite", "faults.share=0.5", "checks.quorum=3", "checks.offences=0"];
    let output = place.succeed(&mut place.command("faulty", &[DRAWN, ALL, &faulty]));
    let said = text(&output.stderr);
    assert!(said.contains("note: round 1: 2 updates dropped: client "), "{said}");
    assert!(said.contains("note: round 1: skipped: fewer good answers"), "{said}");
    let records = place.records("faulty");
    for record in &records[1..] {
        assert_eq!((record.outcome, record.dropped.len()), (Outcome::NoQuorum, 2));
        assert_eq!(record.test_loss, records[0].test_loss);
    }
    // A client that has kept nothing has answered all the same: the server goes on training.
    let nothing = ["method.threshold=1", "checks.quorum=4"];
    let records = place.run("nothing", &[DRAWN, ALL, &nothing]);
    assert!(records[1..].iter().all(|record| record.outcome == Outcome::Taken));
    assert_ne!(records[3].test_loss, records[0].test_loss);
    // Not if it is away.
    let away = ["faults.kind=drop-out", "faults.share=1"];
    let records = place.run("away", &[DRAWN, ALL, &nothing, &away]);
    assert!(records[1..].iter().all(|record| record.outcome == Outcome::NoQuorum));
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
    assert!(said.contains("note: round 6: rolled back: "), "{said}");
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
