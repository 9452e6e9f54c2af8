//! Whole runs compared with one another, and runs that fail.

use crate::workspace::{DRAWN, SMALL, Workspace, table, text};
use fedanchor_record::{Assignment, Outcome, RoundRecord, files};

#[test]
fn class_means_do_what_all_latents_do_for_fewer_bytes() {
    let workspace = Workspace::new();
    let means = workspace.run("means", &[SMALL]);
    let latents = workspace.run("latents", &[SMALL, &["method.send=latents"]]);
    for (means, latents) in means.iter().zip(&latents) {
        // Equal labels make equal training: nothing else may differ.
        assert_eq!(RoundRecord { bytes_down: means.bytes_down, ..latents.clone() }, *means);
        // 50 latents of 128 numbers with labels of two bytes, instead of ten means.
        let more = (latents.bytes_down - means.bytes_down) / 2;
        let data = 50 * (128 * 4 + 2) - 10 * 128 * 4;
        let header = 100; // one more name and workspace
        let expected = if means.round == 0 { 0..=0 } else { data..=data + header };
        assert!(expected.contains(&more), "{more}");
    }
}

#[test]
fn seeds_run_as_if_alone() {
    let workspace = Workspace::new();
    let mut both = workspace.command("both", &[SMALL]);
    let output = workspace.succeed(both.args(["--seeds", "3,5"]));
    for seed in [3, 5] {
        let alone = format!("alone{seed}");
        workspace.run(&alone, &[SMALL, &[&format!("seed={seed}")]]);
        let (alone, beside) =
            (workspace.content(&alone), workspace.content(&format!("both/seed{seed}")));
        for file in [files::CONFIG, files::ROUNDS, files::MODEL] {
            assert!(alone[file] == beside[file], "{file} of seed {seed}");
        }
    }
    let accuracy = |seed: u32| workspace.summary(&format!("both/seed{seed}")).final_accuracy;
    let mean = (accuracy(3) + accuracy(5)) / 2.0;
    let deviation = (accuracy(3) - accuracy(5)).abs() / 2f64.sqrt();
    let last = text(&output.stdout).lines().last().unwrap().to_owned();
    assert_eq!(last, format!("mean of 2 seeds: {mean:.2} %, standard deviation {deviation:.2}"));

    let mut twice = workspace.command("twice", &[SMALL]);
    let refused = twice.args(["--seeds", "3,3"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("3 is given twice"), "{}", text(&refused.stderr));
}

/// The floor is the best of four: three lengths of pre-training, as far as clients train as much, and a run without
/// clients.
#[test]
fn the_comparison_is_the_best_without_clients() {
    let workspace = Workspace::new();
    let keys = ["compare=true", "pretrain.epochs=1", "client.epochs=4"];
    let output = workspace.succeed(&mut workspace.command("both", &[SMALL, &keys]));
    let summary = workspace.summary("both");
    let trials = &summary.server_only;
    let tried: Vec<(u32, u32)> = trials.iter().map(|t| (t.pretrain_epochs, t.rounds)).collect();
    assert_eq!(tried, [(1, 0), (1, 2), (2, 0), (4, 0)]);
    let floor = summary.server_only_accuracy.unwrap();
    let best = trials.iter().max_by(|a, b| a.test_accuracy.total_cmp(&b.test_accuracy)).unwrap();
    assert_eq!(best.test_accuracy, floor);
    // Standard output holds the result and nothing else.
    let how = match best.rounds {
        0 => format!("{} epochs", best.pretrain_epochs),
        rounds => format!("{} epochs and {rounds} rounds", best.pretrain_epochs),
    };
    let expected = format!(
        "test accuracy: anchors alone {floor:.2} % ({how}, the best of 4), fedanchor {:.2} %\n",
        summary.final_accuracy
    );
    assert_eq!(text(&output.stdout), expected);

    let longer = ["compare=true", "pretrain.epochs=20"];
    workspace.succeed(&mut workspace.command("longer", &[SMALL, &longer]));
    let longer = workspace.summary("longer").server_only;
    let tried: Vec<(u32, u32)> = longer.iter().map(|t| (t.pretrain_epochs, t.rounds)).collect();
    assert_eq!(tried, [(20, 0), (20, 2)]);

    // Each of them is what a run without clients gives.
    let alone = "method.name=server-only";
    let records = workspace.run("alone", &[SMALL, &["pretrain.epochs=1", alone]]);
    for record in &records {
        assert!(record.clients.is_empty(), "{record:?}");
        assert_eq!((record.seen, record.kept, record.trained), (0, 0, 0));
        assert_eq!((record.bytes_down, record.bytes_up), (0, 0));
        assert_eq!((record.losses.get("client_fix"), record.anchor_head.all), (None, None));
    }
    assert_eq!(records[0].test_accuracy, trials[0].test_accuracy);
    assert_eq!(records[2].test_accuracy, trials[1].test_accuracy);
    for (at, epochs) in [(2, "pretrain.epochs=2"), (3, "pretrain.epochs=4")] {
        let records = workspace.run(epochs, &[SMALL, &["rounds=1", epochs, alone]]);
        assert_eq!(records[0].test_accuracy, trials[at].test_accuracy);
    }
}

#[test]
fn a_folder_of_pictures_is_a_data_set() {
    let workspace = Workspace::with_pictures(24);
    let records = workspace.run("run", &[DRAWN, &["method.threshold=0.85"]]);
    let summary = workspace.summary("run");
    assert_eq!(summary.data, "drawn");
    assert_eq!(summary.classes, ["leaning", "lying", "standing"]);
    let (_, confusion) = table(&workspace.read("run", files::CONFUSION));
    assert_eq!(confusion.iter().flatten().sum::<f64>(), 15.0);
    let assignment: Assignment =
        serde_json::from_str(&workspace.read("run", files::ASSIGNMENT)).unwrap();
    assert_eq!(assignment.clients.iter().map(Vec::len).sum::<usize>() + 36, 96);
    assert!(records[1].kept > 0 && records[1].kept < records[1].seen, "{:?}", records[1]);
}

#[test]
fn training_that_runs_away_is_an_error() {
    let workspace = Workspace::with_pictures(16);
    let fail = |out: &str, settings: &[&str]| {
        let output = workspace.command(out, &[DRAWN, settings]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let stderr = text(&output.stderr).to_owned();
        stderr.lines().last().unwrap().to_owned()
    };
    let error = fail("0", &["pretrain.epochs=20", "pretrain.lr=100", "optimiser.clip=0"]);
    assert!(error.starts_with("error: round 0: the "), "{error}");
    let problem = "is not finite after the supervised epoch; lower the learning rate";
    assert!(error.contains(problem), "{error}");
    // Clients that run away harm nobody but themselves: nothing of theirs enters the model.
    let runaway = ["client.epochs=30", "optimiser.lr=100", "optimiser.clip=0"];
    let output = workspace.command("1", &[DRAWN, &runaway]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: none of 2 rounds changed the model"), "{said}");
    assert!(said.contains("note: round 1: 3 updates rejected: client "), "{said}");
    assert!(said.contains("note: round 1: skipped: fewer valid answers"), "{said}");
    let records = workspace.records("1");
    assert_eq!(records[2].outcome, Outcome::NoQuorum);
    assert_eq!(records[2].test_loss, records[0].test_loss);
}

/// FedMatch without pre-training: its server has its two halves from the start, and round 1 has clients.
#[test]
fn fedmatch_starts_without_pretraining() {
    let workspace = Workspace::with_pictures(16);
    let drawn: Vec<&str> =
        DRAWN.iter().copied().filter(|key| !key.starts_with("method.")).collect();
    let records = workspace.run("run", &[&drawn, &["method.name=fedmatch", "pretrain.epochs=0"]]);
    assert_eq!((records[1].clients.len(), records[1].trained), (3, 3), "{:?}", records[1]);
    assert!(records[1].bytes_down > 0 && records[1].rejected.is_empty());
}

/// `-q` leaves the result, `-v` adds a log; neither changes the other stream.
#[test]
fn quiet_and_verbose() {
    let workspace = Workspace::with_pictures(16);
    let said = |out: &str, flag: &str| {
        let output =
            workspace.succeed(workspace.command(out, &[DRAWN]).arg(flag).env_remove("RUST_LOG"));
        (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let (plain, quiet, verbose) = (said("1", "--set=seed=0"), said("2", "-q"), said("3", "-vv"));
    assert_eq!((&plain.0, &plain.0), (&quiet.0, &verbose.0));
    assert_eq!(quiet.1, "");
    assert!(plain.1.contains("round 1/2: ") && !plain.1.contains("DEBUG"), "{}", plain.1);
    let line = verbose.1.lines().find(|line| line.contains("training a cohort")).unwrap();
    assert!(line.contains("DEBUG round{round=1}"), "{line}");
}
