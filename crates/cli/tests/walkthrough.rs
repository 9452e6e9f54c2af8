//! The walk from a folder of pictures to a model in use works the first time, in a clean directory.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Runs a command of the program in a folder: whether it succeeded, standard output, standard error.
fn fedanchor(folder: &Path, arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_fedanchor"))
        .args(arguments)
        .current_dir(folder)
        .env("FEDANCHOR_CACHE", folder.join(".cache"))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_command_works_the_first_time() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let program = Path::new(env!("CARGO_BIN_EXE_fedanchor")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/walkthrough.sh");
    let work = at("work");
    std::fs::create_dir(&work).unwrap();
    let output = Command::new("bash")
        .args([script, "1"])
        .current_dir(&work)
        .env("PATH", path)
        .env("FEDANCHOR_CACHE", at("cache"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("300 labelled pictures of 5 classes, 2,700 unlabelled"), "{text}");
    assert!(text.contains("500 images: accuracy "), "{text}");
    let lines = |name: &str| std::fs::read_to_string(work.join(name)).unwrap().lines().count();
    assert_eq!((lines("predictions.csv"), lines("predictions.jsonl")), (501, 500));
    assert_eq!(lines("labels/labels.csv"), 2701);
    let page = std::fs::read_to_string(work.join("labels/labels.html")).unwrap();
    assert_eq!(page.matches("<select ").count(), 50);
    assert_eq!(page.matches("<figure>").count(), 150);
    // Some pictures are newly labelled, and the others are still the clients'.
    assert_eq!(lines("reviewed.csv"), 1 + 300 + 2700 + 500);
    // Nothing that only true labels could tell.
    let rounds = std::fs::read_to_string(work.join("run/rounds.jsonl")).unwrap();
    assert_eq!(rounds.matches(r#""anchor_head":{"all":null,"kept":null}"#).count(), 2, "{rounds}");
    eval_and_predict_agree(&work);
    label_studio_has_the_same_labels(&work);
    inputs_that_do_not_fit_are_named(&work);
    json_is_all_of_the_output(&work);
    #[cfg(unix)]
    names_that_are_not_text_are_named(&work);
}

/// Accepted labels are annotations of its tasks, which an export has too: they come back as those of the CSV file do.
fn label_studio_has_the_same_labels(work: &Path) {
    let label = ["label", "run", "pictures/unlabelled", "--accept", "0.3", "--page", "1"];
    let studio = ["--out", "studio", "--label-studio"];
    let (ok, _, error) = fedanchor(work, &[&label[..], &studio, &["run"]].concat());
    assert!(!ok && error.contains("not below run, so Label Studio cannot show it"), "{error}");
    let (ok, _, error) = fedanchor(work, &[&label[..], &studio, &["pictures"]].concat());
    assert!(ok, "{error}");
    assert!(
        error.contains("next: import studio/labels.json into a project of Label Studio"),
        "{error}"
    );
    let read = |name: &str| std::fs::read_to_string(work.join(name)).unwrap();
    let tasks: serde_json::Value = serde_json::from_str(&read("studio/labels.json")).unwrap();
    assert_eq!(tasks.as_array().unwrap().len(), 2700);
    let image = tasks[0]["data"]["image"].as_str().unwrap();
    assert!(image.starts_with("/data/local-files/?d=unlabelled/"), "{image}");
    assert_eq!(read("studio/labels.xml").matches("<Choice value=").count(), 5);
    let init = ["init", "pictures", "--yes", "--trunk", "none", "--out", "studio.toml", "--labels"];
    let (ok, _, error) = fedanchor(work, &[&init[..], &["studio/labels.json"]].concat());
    assert!(ok, "{error}");
    assert_eq!(read("studio.csv"), read("reviewed.csv"));
}

/// The accuracy that `eval` prints is that of `predict`'s lines, and of the run's own test.
fn eval_and_predict_agree(work: &Path) {
    let (ok, json, error) = fedanchor(work, &["eval", "run", "pictures/test", "--json"]);
    assert!(ok, "{error}");
    let eval: serde_json::Value = serde_json::from_str(&json).unwrap();
    let (mut right, mut nearest) = (0, 0);
    for line in std::fs::read_to_string(work.join("predictions.jsonl")).unwrap().lines() {
        let line: BTreeMap<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let path = Path::new(line["path"].as_str().unwrap());
        let truth = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        right += u32::from(line["class"] == truth);
        nearest += u32::from(line["nearest"] == truth);
    }
    let percent = |count: u32| 100.0 * f64::from(count) / 500.0;
    let accuracy = |head: &str| eval[head]["accuracy"].as_f64().unwrap();
    assert!((accuracy("classifier") - percent(right)).abs() < 1e-9);
    assert!((accuracy("anchors") - percent(nearest)).abs() < 1e-9);
    let summary = std::fs::read_to_string(work.join("run/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["final_accuracy"].as_f64().unwrap(), percent(right));
    let rows = eval["classifier"]["confusion"].as_array().unwrap();
    let all = rows.iter().flat_map(|row| row.as_array().unwrap());
    assert_eq!(all.map(|count| count.as_u64().unwrap()).sum::<u64>(), 500);
}

fn inputs_that_do_not_fit_are_named(work: &Path) {
    let refused = |arguments: &[&str], expected: &str| {
        let (ok, _, error) = fedanchor(work, arguments);
        assert!(!ok && error.contains(expected), "{arguments:?}: {error}");
    };
    // One bad picture does not stop the others.
    std::fs::write(work.join("text.jpg"), "not a picture").unwrap();
    let (ok, table, error) =
        fedanchor(work, &["predict", "run", "text.jpg", "pictures/test/three"]);
    assert!(!ok && error.contains("text.jpg") && error.contains("1 of 101 pictures"), "{error}");
    assert_eq!(table.lines().count(), 101, "a head and the pictures that can be read");
    // Classes of another data set.
    std::fs::create_dir_all(work.join("other/cat")).unwrap();
    std::fs::create_dir_all(work.join("other/dog")).unwrap();
    let picture = std::fs::read_dir(work.join("pictures/test/three")).unwrap().next().unwrap();
    std::fs::copy(picture.unwrap().path(), work.join("other/cat/1.png")).unwrap();
    let picture = std::fs::read_dir(work.join("pictures/test/four")).unwrap().next().unwrap();
    std::fs::copy(picture.unwrap().path(), work.join("other/dog/1.png")).unwrap();
    refused(&["eval", "run", "other"], "unknown class `cat`, `dog`: the model has ");
    refused(&["eval", "run/config.toml", "pictures/test"], "not a model of fedanchor");
    let (ok, table, error) =
        fedanchor(work, &["predict", "run", "absent.png", "pictures/test/four"]);
    assert!(!ok && error.contains("absent.png") && table.lines().count() == 101, "{error}");
    refused(&["label", "run", "other"], "labels.csv: already exists");
    refused(
        &["init", "pictures", "--labels", "labels/labels.csv", "--out", "labels/labels.toml"],
        "would overwrite",
    );
    let (ok, text, error) = fedanchor(work, &["run", "--resume", "run", "--set", "rounds=2"]);
    assert!(ok, "{text}{error}");
    let (ok, text, error) = fedanchor(work, &["eval", "run"]);
    assert!(ok && text.contains("500 images"), "{text}{error}");
    refused(
        &["label", "run/model.safetensors", "other", "--out", "l2"],
        "give labelled pictures with --anchors",
    );
    refused(&["init", "pictures", "--out", "digits.toml"], "already exists");
    std::fs::write(work.join("wrong.csv"), "path,label\npictures/test/x.png,cat\n").unwrap();
    refused(&["init", "pictures", "--labels", "wrong.csv", "--out", "w.toml"], "line 2: path");
}

/// `init` and `predict` for programs.
fn json_is_all_of_the_output(work: &Path) {
    let (ok, json, error) = fedanchor(work, &["init", "pictures", "--json", "--out", "again.toml"]);
    assert!(ok && error.contains("wrote again.toml"), "{error}");
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["parts"][1]["pictures"], 2700);
    let (ok, lines, error) = fedanchor(work, &["predict", "run", "pictures/test/four", "--json"]);
    assert!(ok, "{error}");
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(first["class"].is_string() && lines.lines().count() == 100, "{first}");
}

/// Names of files that are not UTF-8, and formats that cannot be read: named, and the others are not affected.
#[cfg(unix)]
fn names_that_are_not_text_are_named(work: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let odd = work.join("odd");
    std::fs::create_dir(&odd).unwrap();
    let pictures = std::fs::read_dir(work.join("pictures/test/three")).unwrap();
    let names = [&b"1.png"[..], b"caf\xe9.png", b"2.png"];
    for (picture, name) in pictures.zip(names) {
        std::fs::copy(picture.unwrap().path(), odd.join(std::ffi::OsStr::from_bytes(name)))
            .unwrap();
    }
    std::fs::write(odd.join("scan.jxl"), "").unwrap();
    let problem = "odd/caf\\xE9.png: the path is not UTF-8";
    let note = "note: skipped 1 file in the unsupported format JPEG XL: convert them to PNG";
    for format in [&["--format", "table"][..], &["--format", "csv"], &["--json"]] {
        let (ok, text, error) = fedanchor(work, &[&["predict", "run", "odd"], format].concat());
        assert!(!ok && error.contains(problem) && error.contains("1 of 3 pictures"), "{error}");
        assert!(error.contains(note), "{error}");
        // A head and two pictures; as JSON two pictures and the one that failed.
        assert_eq!(text.lines().count(), 3, "{text}");
    }
    let (ok, _, error) = fedanchor(work, &["label", "run", "odd", "--out", "odd labels"]);
    assert!(!ok && error.contains(problem) && error.contains(note), "{error}");
    let csv = std::fs::read_to_string(work.join("odd labels/labels.csv")).unwrap();
    assert_eq!((csv.lines().count(), csv.contains("caf")), (3, false), "{csv}");
    // What cannot be written down in the experiment file is refused before anything is written.
    let folder = work.join(std::ffi::OsStr::from_bytes(b"pictures \xff"));
    std::fs::rename(work.join("pictures"), &folder).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fedanchor"))
        .arg("init")
        .arg(&folder)
        .args(["--out", "odd.toml"])
        .current_dir(work)
        .env("FEDANCHOR_CACHE", "")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("pictures \\xFF: the path is not UTF-8"), "{error}");
    assert!(!work.join("odd.toml").exists());
}
