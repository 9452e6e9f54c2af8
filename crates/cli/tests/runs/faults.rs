//! Faulty clients: what is rejected, who is excluded, when a round does not count.

use crate::workspace::{DRAWN, SMALL, Workspace, text};
use fedanchor_record::Outcome;

/// All four clients take part in every round, so the faulty ones always answer.
const ALL: &[&str] = &["client.per_round=4", "rounds=3", "method.threshold=-1"];

#[test]
fn bad_updates_are_rejected_and_named() {
    let workspace = Workspace::with_pictures(16);
    for (kind, reason) in [
        ("non-finite", "with a value that is not finite"),
        ("shape", "with another shape or number type"),
        ("scale", "from the broadcast model; the limit is"),
        ("conflicting", "sent two different answers"),
        ("stale", "sent an answer for round"),
    ] {
        let kind_key = format!("faults.kind={kind}");
        let faulty = [&kind_key, "faults.share=0.25", "checks.offences=2", "checks.distance=1"];
        let records = workspace.run(kind, &[DRAWN, ALL, &faulty]);
        let client = records[1].rejected[0].client;
        for record in &records[1..=2] {
            let rejected = &record.rejected;
            assert!(rejected.len() == 1 && rejected[0].client == client, "{kind}: {rejected:?}");
            assert!(rejected[0].reason.contains(reason), "{kind}: {rejected:?}");
            assert_eq!(record.outcome, Outcome::Applied);
        }
        // After two rejections it is not drawn again, and that is on record.
        assert_eq!((&records[1].excluded[..], &records[2].excluded[..]), (&[][..], &[client][..]));
        assert_eq!((records[2].clients.len(), records[3].clients.len()), (4, 3), "{kind}");
        assert!(!records[3].clients.contains(&client) && records[3].rejected.is_empty());
    }
    // The same answer delivered twice is ignored.
    let twice = ["faults.kind=duplicate", "faults.share=0.25", "checks.offences=1"];
    let twice = workspace.run("duplicate", &[DRAWN, ALL, &twice]);
    let clean = workspace.run("clean", &[DRAWN, ALL]);
    for (twice, clean) in twice.iter().zip(&clean).skip(1) {
        assert!(twice.rejected.is_empty() && twice.clients.len() == 4, "{twice:?}");
        assert_eq!(twice.test_loss, clean.test_loss);
        assert!(twice.bytes_up > clean.bytes_up);
    }
    // A silent client has sent nothing that could be rejected; a slow one is named and drawn again.
    let away = |kind: &str| {
        let kind_key = format!("faults.kind={kind}");
        workspace.run(kind, &[DRAWN, ALL, &[&kind_key, "faults.share=0.25", "checks.offences=1"]])
    };
    let (silent, slow) = (away("drop-out"), away("late"));
    assert!(silent.iter().all(|record| record.rejected.is_empty()));
    for (silent, slow) in silent.iter().zip(&slow).skip(1) {
        assert_eq!(slow.rejected.len(), 1);
        assert_eq!(slow.rejected[0].reason, "answered after the round was over");
        assert_eq!((slow.clients.len(), slow.test_loss), (4, silent.test_loss));
        assert!(slow.bytes_up > 0 && slow.bytes_up == silent.bytes_up);
    }
}

/// Without checks everything counts, as in plain averaging: one bad update is enough.
#[test]
fn plain_averaging_is_ruined_by_one_client() {
    let workspace = Workspace::with_pictures(16);
    let faulty = ["faults.kind=non-finite", "faults.share=0.25", "checks.updates=false"];
    let output = workspace.command("run", &[DRAWN, ALL, &faulty]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: round 1: ") && said.contains("not finite"), "{said}");
}

/// Without enough valid answers the round is skipped, with a note.
#[test]
fn a_round_without_quorum_leaves_the_model_as_it_was() {
    let workspace = Workspace::with_pictures(16);
    let faulty =
        ["faults.kind=non-finite", "faults.share=0.5", "checks.quorum=3", "checks.offences=0"];
    // A run that learnt nothing from its clients is no success.
    let output = workspace.command("faulty", &[DRAWN, ALL, &faulty]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    let said = text(&output.stderr);
    let end = "none of 3 rounds changed the model (updates rejected: 6, rounds skipped: 3)";
    assert!(said.contains(end), "{said}");
    assert!(said.contains("note: round 1: 2 updates rejected: client "), "{said}");
    assert!(said.contains("note: round 1: skipped: fewer valid answers"), "{said}");
    let records = workspace.records("faulty");
    for record in &records[1..] {
        assert_eq!((record.outcome, record.rejected.len()), (Outcome::NoQuorum, 2));
        assert_eq!(record.test_loss, records[0].test_loss);
    }
    // A client that has kept nothing has answered all the same: the server continues to train.
    let nothing = ["method.threshold=1", "checks.quorum=4"];
    let records = workspace.run("nothing", &[DRAWN, ALL, &nothing]);
    assert!(records[1..].iter().all(|record| record.outcome == Outcome::Applied));
    assert_ne!(records[3].test_loss, records[0].test_loss);
    // Not if it is away.
    let away = ["faults.kind=drop-out", "faults.share=1"];
    let output = workspace.command("away", &[DRAWN, ALL, &nothing, &away]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let records = workspace.records("away");
    assert!(records[1..].iter().all(|record| record.outcome == Outcome::NoQuorum));
    assert!(records[1..].iter().all(|record| record.absent == record.clients));
}

/// Hostile updates that pass every check, because the limit is off: the anchors show what they do.
#[test]
fn a_collapsed_round_is_rolled_back_and_the_fourth_in_a_row_ends_the_run() {
    let workspace = Workspace::with_pictures(16);
    // Good rounds first, to know what is usual; then the same run is resumed with hostile clients.
    workspace
        .run("run", &[DRAWN, ALL, &["rounds=5", "optimiser.lr=0.02", "checks.anchor_margin=30"]]);
    let hostile = [
        "faults.kind=scale",
        "faults.share=1",
        "checks.distance=0",
        "checks.clip=0",
        "checks.anchor_margin=5",
        "rounds=12",
    ];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1");
    command.args(["run", "--resume", "run", "--force"]);
    for setting in hostile {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("note: round 6: rolled back: "), "{said}");
    assert!(said.contains("for the fourth time in a row"), "{said}");
    let records = workspace.records("run");
    let (usual, hostile) = records.split_at(6);
    assert_eq!(hostile.len(), 3);
    for record in hostile {
        assert_eq!(record.outcome, Outcome::RolledBack, "{record:?}");
        assert_eq!(record.test_loss, usual[5].test_loss); // the model is what it was
    }
}

/// Each rule runs, and gives another model than the mean.
#[test]
fn every_rule_of_aggregation_runs() {
    let workspace = Workspace::with_pictures(16);
    let mean = workspace.run("mean", &[DRAWN, ALL]);
    for rule in ["clipped-mean", "trimmed-mean", "median", "multi-krum", "fltrust"] {
        let key = format!("aggregation.rule={rule}");
        let records = workspace.run(rule, &[DRAWN, ALL, &[&key]]);
        assert!(
            records[3].test_loss.is_finite() && records[3].test_loss != mean[3].test_loss,
            "{rule}"
        );
    }
}

/// Clients that send the opposite of what they learnt pass every check of a single update; the run reports
/// what they do to the model.
#[test]
#[ignore = "slow"]
fn a_lasting_decline_on_the_anchors_is_noted() {
    let workspace = Workspace::new();
    let keys = ["rounds=5", "data.clients=60", "client.per_round=4", "pretrain.epochs=60"];
    let more = ["data.anchors=60", "optimiser.lr=0.05", "method.threshold=-1"];
    let said = |out: &str, faults: &[&str]| {
        let settings = [SMALL, &keys, &more, &["checks.anchor_margin=100"], faults];
        text(&workspace.succeed(&mut workspace.command(out, &settings)).stderr).to_owned()
    };
    let note = "note: the clients' updates make the model worse: over the last five rounds";
    let hostile = said("hostile", &["faults.kind=sign", "faults.share=1", "faults.factor=4"]);
    assert!(hostile.contains(note), "{hostile}");
    let clean = said("clean", &[]);
    assert!(!clean.contains(note), "{clean}");
}

/// An update of much more than the usual norm is clipped, and a client that sends nothing else is named; before the
/// second round nothing is usual.
#[test]
fn large_updates_are_clipped_and_named() {
    let workspace = Workspace::with_pictures(16);
    let hostile = [
        "faults.kind=sign",
        "faults.factor=50",
        "checks.distance=0",
        "checks.clip=5", // these clients have very different numbers of images
        "faults.share=0.25",
        "rounds=6",
    ];
    let output = workspace.command("hostile", &[DRAWN, ALL, &hostile]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let records = workspace.records("hostile");
    let client = records[2].clipped[0];
    assert!(records[1].clipped.is_empty());
    assert!(records[2..].iter().all(|record| record.clipped.contains(&client)), "{records:?}");
    // Of six rounds, five have a usual norm.
    let note = format!(
        "client {client} has sent 5 updates more than 10 times the usual norm, which were clipped"
    );
    assert_eq!(said.matches(&note).count(), 1, "{said}");
    // As far as is not rejected, every time.
    let checks = ["checks.distance=1", "checks.clip=2"];
    let inside = ["faults.kind=inside", "faults.share=0.25"];
    let records = workspace.run("inside", &[DRAWN, ALL, &inside, &checks]);
    assert!(records.iter().all(|record| record.rejected.is_empty()));
    assert!(records[1].clipped.is_empty() && !records[3].clipped.is_empty());
}

/// The first round has the pre-trained model to be compared with.
#[test]
fn a_poisoned_first_round_is_rolled_back() {
    let workspace = Workspace::with_pictures(16);
    let hostile =
        ["faults.kind=scale", "faults.share=1", "checks.distance=0", "pretrain.epochs=40"];
    let output = workspace
        .command("run", &[DRAWN, ALL, &hostile, &["checks.anchor_margin=20"]])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let records = workspace.records("run");
    assert_eq!(records[1].outcome, Outcome::RolledBack, "{:?}", records[1]);
}

/// How many images a client claims to have changes nothing by default, and the model where it is the client's weight.
#[test]
fn a_lie_about_the_number_of_images_buys_nothing() {
    let workspace = Workspace::with_pictures(16);
    let run = |out: &str, more: &[&str]| {
        let hostile = ["preset=best", "pretrain.epochs=1", "faults.kind=sign", "faults.share=0.25"];
        let records = workspace.run(out, &[DRAWN, ALL, &hostile, more]);
        assert!(records.iter().all(|record| record.rejected.is_empty()), "{records:?}");
        records[3].test_loss
    };
    assert_eq!(run("honest", &[]), run("lie", &["faults.claim=1000"]));
    let weights = "aggregation.weights=samples";
    assert_ne!(run("weighted", &[weights]), run("bought", &[weights, "faults.claim=1000"]));
}

/// Attacks that pass every check: each changes the model, and none ends the run.
#[test]
fn quiet_attacks_are_admitted() {
    let workspace = Workspace::with_pictures(16);
    let checks = ["faults.share=0.25", "checks.distance=1"];
    let clean = workspace.run("clean", &[DRAWN, ALL, &checks]);
    for kind in ["statistics", "labels", "backdoor", "drift"] {
        let records =
            workspace.run(kind, &[DRAWN, ALL, &checks, &[&format!("faults.kind={kind}")]]);
        assert!(records.iter().all(|record| record.rejected.is_empty()), "{kind}: {records:?}");
        assert!(records.iter().skip(1).all(|record| record.trained == 4), "{kind}");
        assert_ne!(records[3].test_loss, clean[3].test_loss, "{kind}");
        assert_eq!(workspace.summary(kind).backdoor_success.is_some(), kind == "backdoor");
    }
}
