//! Exports of Label Studio, as the program writes them.

use crate::formats::{Options, open, relabelled};
use crate::thumbnail::write_png;
use crate::{DataError, Shape};
use serde_json::{Value, json};
use std::path::Path;

fn picture(path: &Path, value: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    write_png(Shape { side: 2, channels: 1 }, &[value; 4], path).unwrap();
}

/// Two classes, and unlabelled pictures of two clients, one of them with a name that no URL has.
fn pictures(root: &Path) {
    let names = [
        "labelled/cat/1",
        "labelled/dog/2",
        "test/cat/3",
        "test/dog/4",
        "unlabelled/anna/5",
        "unlabelled/anna/6 ä",
        "unlabelled/bert/7",
        "unlabelled/bert/5",
    ];
    for (at, name) in names.iter().enumerate() {
        picture(&root.join(format!("{name}.png")), at as u8);
    }
}

fn annotated(id: u64, image: &str, labels: &[&str]) -> Value {
    let result = json!([{"type": "choices", "from_name": "label", "value": {"choices": labels}}]);
    json!({"id": id, "data": {"image": image}, "annotations": [{"result": result, "was_cancelled": false}]})
}

fn relabel(root: &Path, export: &Value) -> Result<super::super::Relabelled, DataError> {
    let file = root.join("export.json");
    std::fs::write(&file, export.to_string()).unwrap();
    relabelled(root, &file, &root.join("all.csv"), None)
}

/// The new labels of a table, as `picture label`.
fn labels(root: &Path, export: &Value) -> Vec<String> {
    let found = relabel(root, export).unwrap();
    let lines = found
        .text
        .lines()
        .skip(5)
        .map(|line| line.split(',').take(2).collect::<Vec<_>>().join(" "));
    let lines: Vec<String> = lines.filter(|line| !line.ends_with(' ')).collect();
    assert_eq!(lines.len(), found.labelled);
    lines
}

fn failure(root: &Path, export: &Value) -> String {
    relabel(root, export).unwrap_err().to_string()
}

#[test]
fn every_kind_of_reference_leads_to_its_picture() {
    let folder = tempfile::tempdir().unwrap();
    let root = &folder.path().canonicalize().unwrap();
    pictures(root);
    let here = root.display().to_string();
    let second = "unlabelled/anna/6 ä.png";
    for reference in [
        second.to_owned(),
        format!("{here}/{second}"),
        format!("file://{here}/unlabelled/anna/6%20%C3%A4.png"),
        "/data/local-files/?d=unlabelled/anna/6%20%C3%A4.png".to_owned(),
        "/data/local-files/?d=unlabelled/anna/6 ä.png&x=1".to_owned(),
        format!(
            "/data/local-files/?d={}/unlabelled/anna/6%20%C3%A4.png",
            here.trim_start_matches('/')
        ),
        "http://localhost:8080/data/local-files/?d=files/unlabelled/anna/6%20%C3%A4.png".to_owned(),
        "/data/upload/7/1a2b3c4d-6_ä.png".to_owned(),
        "upload/7/1a2b3c4d-6_%C3%A4.png".to_owned(),
        "/storage-data/uploaded/?filepath=upload/7/1a2b3c4d-6_ä.png".to_owned(),
        "https://example.com/bucket/unlabelled/anna/6%20%C3%A4.png?signature=1".to_owned(),
        "s3://bucket/unlabelled/anna/6 ä.png".to_owned(),
    ] {
        assert_eq!(
            labels(root, &json!([annotated(3, &reference, &["dog"])])),
            [format!("{second} dog")],
            "{reference}"
        );
    }
    for (reference, problem) in [
        ("unlabelled/anna/9.png", "found `unlabelled/anna/9.png`"),
        // The same name, but another client's.
        ("/data/local-files/?d=unlabelled/cora/7.png", "task 3: picture: expected one below"),
        ("/data/upload/7/1a2b3c4d-5.png", "unlabelled/anna/5.png or "),
        ("../../../etc/passwd", "task 3: picture: expected one below"),
        ("", "task 3: picture: expected one below"),
        ("labelled/cat/1.png", "task 3: picture: expected an unlabelled picture"),
    ] {
        let error = failure(root, &json!([annotated(3, reference, &["dog"])]));
        assert!(error.contains(problem), "{reference}: {error}");
    }
}

#[test]
fn annotations_become_labels() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    pictures(root);
    let (five, seven) = ("unlabelled/anna/5.png", "unlabelled/bert/7.png");
    let [cat, dog] =
        ["cat", "dog"].map(|label| annotated(1, five, &[label])["annotations"][0].clone());
    let with = |field: &str, annotation: &Value| {
        let mut annotation = annotation.clone();
        annotation[field] = json!(true);
        annotation
    };
    let of = |annotations: Value| {
        let first = json!({"id": 9, "data": {"image": five}, "annotations": annotations, "predictions": [dog]});
        json!([first, annotated(2, seven, &["dog"])])
    };
    let both = [format!("{five} cat"), format!("{seven} dog")];
    for annotations in [
        json!([cat]),
        json!([cat, cat]),
        json!([with("was_cancelled", &dog), cat]),
        json!([dog, with("ground_truth", &cat)]),
    ] {
        assert_eq!(labels(root, &of(annotations.clone())), both, "{annotations}");
    }
    for annotations in
        [json!([]), json!(null), json!([with("was_cancelled", &cat)]), json!([{"result": []}])]
    {
        assert_eq!(labels(root, &of(annotations.clone())), both[1..], "{annotations}");
    }
    let two_controls = json!([{"result": [
        {"type": "choices", "from_name": "quality", "value": {"choices": ["good"]}},
        {"type": "choices", "from_name": "label", "value": {"choices": ["cat"]}},
        {"type": "rectanglelabels", "from_name": "box", "value": {"rectanglelabels": ["dog"]}},
    ]}]);
    assert_eq!(labels(root, &of(two_controls)), both);
    let error = failure(root, &of(json!([cat, dog])));
    let problem = "export.json: 1 task cannot be used\n  task 9: label: expected one for every picture, found `cat`, \
                   `dog`: in Label Studio, delete the wrong annotations, or mark the right one as ground truth";
    assert!(error.ends_with(problem), "{error}");
    let error = failure(root, &json!([annotated(1, five, &["cat"]), annotated(4, five, &["dog"])]));
    assert!(
        error.contains(
            "task 4: label: expected one for every picture, found `cat` in task 1, here `dog`"
        ),
        "{error}"
    );
}

#[test]
fn json_min_has_one_record_per_annotation() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    pictures(root);
    let record = |name: &str, label: Value| {
        json!([{
            "image": "/data/upload/1/00aa11bb-7.png", "id": 5, name: label,
            "annotator": 1, "annotation_id": 2, "created_at": "", "updated_at": "", "lead_time": 1.5,
        }])
    };
    for export in [
        record("choice", json!("dog")),
        record("species", json!("dog")),
        record("label", json!({"choices": ["dog"]})),
        record("label", json!(["dog", "dog"])),
        json!([{"photo": "unlabelled/bert/7.png", "note": "sharp", "label": "dog", "id": 5}]),
    ] {
        assert_eq!(labels(root, &export), ["unlabelled/bert/7.png dog"], "{export}");
    }
    let error =
        failure(root, &json!([{"image": "7.png", "kind": "dog", "note": "sharp", "id": 5}]));
    assert!(
        error.contains(
            "task 5: expected the choice in a field `label` or `choice`, found `kind`, `note`"
        ),
        "{error}"
    );
}

#[test]
fn malformed_tasks_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    pictures(root);
    let five = "unlabelled/anna/5.png";
    let task = |annotations: Value| json!([{"id": 7, "data": {"image": five}, "annotations": annotations}]);
    let result = |result: Value| task(json!([{"result": result}]));
    for (export, problem) in [
        (
            json!({"tasks": []}),
            "content: expected the JSON export of a Label Studio project: a list of tasks, found other JSON",
        ),
        (json!([]), "labels: expected at least one"),
        (json!([3]), "task 1: expected an object"),
        (json!([{"id": 7, "data": 3}]), "task 7: data: expected an object"),
        (
            json!([{"id": 7, "data": {}}]),
            "task 7: expected a field `image` that names a picture, found none",
        ),
        (
            json!([{"id": 7, "data": {"a": "1.png", "b": "2.png"}}]),
            "task 7: expected a field `image`, found pictures in `a`, `b`",
        ),
        (task(json!({})), "task 7: annotations: expected a list"),
        (result(json!("cat")), "task 7: result: expected a list"),
        (
            result(json!([{"type": "choices", "value": {"choices": [1]}}])),
            "task 7: choices: expected text",
        ),
        (
            result(
                json!([{"type": "choices", "from_name": "a"}, {"type": "choices", "from_name": "b"}]),
            ),
            "called `label`, found `a`, `b`",
        ),
        (
            json!([annotated(7, five, &["cat", "dog"])]),
            "task 7: label: expected one for every picture",
        ),
        (
            json!([annotated(7, five, &["cow"])]),
            "task 7: label: expected one of cat, dog, found `cow`",
        ),
    ] {
        let error = failure(root, &export);
        assert!(error.contains(problem), "{error}");
    }
    let file = root.join("cut.json");
    for text in ["[{\"id\": 1, \"data\"", "", "\u{feff}[]", &"[".repeat(100_000)] {
        std::fs::write(&file, text).unwrap();
        let error = relabelled(root, &file, &root.join("all.csv"), None).unwrap_err().to_string();
        assert!(
            error.contains("cut.json: content: expected the JSON export of a Label Studio project"),
            "{error}"
        );
    }
}

/// Without folders for classes: pictures with a label are the server's, the others the clients'.
#[test]
fn an_export_is_a_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for number in 1..=5 {
        picture(&root.join(format!("photos/{number}.png")), number);
    }
    let mut tasks: Vec<Value> = ["cat", "dog", "cat", "dog"]
        .iter()
        .zip(1..)
        .map(|(label, number)| {
            annotated(number, &format!("/data/local-files/?d=photos/{number}.png"), &[label])
        })
        .collect();
    tasks.push(annotated(5, "/data/upload/1/0000aaaa-5.png", &[]));
    let file = root.join("export.json");
    std::fs::write(&file, Value::Array(tasks).to_string()).unwrap();
    let data = open(&file, &Options { test_share: Some(0.5), ..Options::default() }).unwrap();
    assert_eq!(
        (data.train.len(), data.test.len(), data.train.classes.clone()),
        (2, 2, vec!["cat".to_owned(), "dog".to_owned()])
    );
    assert_eq!(data.unlabelled.unwrap().images.pixels, [5; 4]);
}
