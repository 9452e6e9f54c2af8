//! Whole runs compared with one another, and runs that fail.

use crate::place::{DRAWN, Place, SMALL, table, text};
use fedanchor_record::{Assignment, Outcome, RoundRecord, files};

#[test]
fn class_means_do_what_all_latents_do_for_fewer_bytes() {
    let place = Place::new();
    let means = place.run("means", &[SMALL]);
    let latents = place.run("latents", &[SMALL, &["method.send=latents"]]);
    for (means, latents) in means.iter().zip(&latents) {
        // Equal labels make equal training: nothing else may differ.
        assert_eq!(RoundRecord { bytes_down: means.bytes_down, ..latents.clone() }, *means);
        // 50 latents of 128 numbers with labels of two bytes, instead of ten means.
        let more = (latents.bytes_down - means.bytes_down) / 2;
        let data = 50 * (128 * 4 + 2) - 10 * 128 * 4;
        let header = 100; // one more name and place
        let expected = if means.round == 0 { 0..=0 } else { data..=data + header };
        assert!(expected.contains(&more), "{more}");
    }
}

#[test]
fn seeds_run_as_if_alone() {
    let place = Place::new();
    let mut both = place.command("both", &[SMALL]);
    let output = place.succeed(both.args(["--seeds", "3,5"]));
    for seed in [3, 5] {
        let alone = format!("alone{seed}");
        place.run(&alone, &[SMALL, &[&format!("seed={seed}")]]);
        let (alone, beside) = (place.content(&alone), place.content(&format!("both/seed{seed}")));
        for file in [files::CONFIG, files::ROUNDS, files::MODEL] {
            assert!(alone[file] == beside[file], "{file} of seed {seed}");
        }
    }
    let accuracy = |seed: u32| place.summary(&format!("both/seed{seed}")).final_accuracy;
    let mean = (accuracy(3) + accuracy(5)) / 2.0;
    let deviation = (accuracy(3) - accuracy(5)).abs() / 2f64.sqrt();
    let last = text(&output.stdout).lines().last().unwrap().to_owned();
    assert_eq!(last, format!("mean of 2 seeds: {mean:.2} %, standard deviation {deviation:.2}"));

    let mut twice = place.command("twice", &[SMALL]);
    let refused = twice.args(["--seeds", "3,3"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("3 is there twice"), "{}", text(&refused.stderr));
}

#[test]
fn the_comparison_is_a_run_without_clients() {
    let place = Place::new();
    let output = place.succeed(&mut place.command("both", &[SMALL, &["compare=true"]]));
    let summary = place.summary("both");
    let alone = summary.server_only_accuracy.unwrap();
    // Standard output holds the result and nothing else.
    let expected = format!(
        "test accuracy: anchors alone {alone:.2} %, fedanchor {:.2} %\n",
        summary.final_accuracy
    );
    assert_eq!(text(&output.stdout), expected);

    let records = place.run("alone", &[SMALL, &["method.name=server-only"]]);
    for record in &records {
        assert!(record.clients.is_empty(), "{record:?}");
        assert_eq!((record.seen, record.kept, record.trained), (0, 0, 0));
        assert_eq!((record.bytes_down, record.bytes_up), (0, 0));
        assert_eq!((record.losses.client_fix, record.anchor_head.all), (None, None));
    }
    assert_eq!(records.last().unwrap().test_accuracy, alone);
}

#[test]
fn a_folder_of_pictures_is_a_data_set() {
    let place = Place::with_pictures(24);
    let records = place.run("run", &[DRAWN, &["method.threshold=0.85"]]);
    let summary = place.summary("run");
    assert_eq!(summary.data, "drawn");
    assert_eq!(summary.classes, ["leaning", "lying", "standing"]);
    let (_, confusion) = table(&place.read("run", files::CONFUSION));
    assert_eq!(confusion.iter().flatten().sum::<f64>(), 15.0);
    let assignment: Assignment =
        serde_json::from_str(&place.read("run", files::ASSIGNMENT)).unwrap();
    assert_eq!(assignment.clients.iter().map(Vec::len).sum::<usize>() + 36, 96);
    assert!(records[1].kept > 0 && records[1].kept < records[1].seen, "{:?}", records[1]);
}

#[test]
fn training_that_runs_away_is_an_error() {
    let place = Place::with_pictures(16);
    let fail = |out: &str, settings: &[&str]| {
        let output = place.command(out, &[DRAWN, settings]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let stderr = text(&output.stderr).to_owned();
        stderr.lines().last().unwrap().to_owned()
    };
    let error = fail("0", &["pretrain.epochs=20", "pretrain.lr=100", "optimiser.clip=0"]);
    assert!(error.starts_with("error: round 0, server, "), "{error}");
    assert!(error.contains("supervised epoch: ") && error.contains("not finite"), "{error}");
    // Clients that run away harm nobody but themselves: nothing of theirs enters the model.
    let runaway = ["client.epochs=30", "optimiser.lr=100", "optimiser.clip=0"];
    let output = place.succeed(&mut place.command("1", &[DRAWN, &runaway]));
    let said = text(&output.stderr);
    assert!(said.contains("note: round 1: 3 updates dropped: client "), "{said}");
    assert!(said.contains("note: round 1: skipped: fewer good answers"), "{said}");
    let records = place.records("1");
    assert_eq!(records[2].outcome, Outcome::NoQuorum);
    assert_eq!(records[2].test_loss, records[0].test_loss);
}
