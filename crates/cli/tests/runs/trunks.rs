//! Photographs, or what stands in for them, on a pretrained trunk: from `init` to a prediction. Trunks are those of
//! `make trunks`.

use crate::workspace::Workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program in a folder, with a cache of its own and the trunks of this machine.
fn command(workspace: &Workspace, arguments: &[&str]) -> String {
    with_trunks(workspace, &trunks(), arguments)
}

fn trunks() -> PathBuf {
    fedanchor_data::cache::folder("trunks").unwrap()
}

fn with_trunks(workspace: &Workspace, trunks: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fedanchor"))
        .current_dir(workspace.at(""))
        .env("OMP_NUM_THREADS", "1")
        .env("FEDANCHOR_CACHE", workspace.at("cache"))
        .env("FEDANCHOR_TRUNKS", trunks)
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap()
}

#[test]
fn pictures_on_a_trunk_from_init_to_a_prediction() {
    let workspace = Workspace::new();
    let run = |arguments: &[&str]| command(&workspace, arguments);
    run(&["data", "example", "pictures", "--labelled", "3", "--clients", "3"]);
    // The example has thousands of unlabelled pictures: a few of each client are enough here.
    for client in std::fs::read_dir(workspace.at("pictures/unlabelled")).unwrap() {
        let files =
            std::fs::read_dir(client.unwrap().path()).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files[10..].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
    for class in std::fs::read_dir(workspace.at("pictures/test")).unwrap() {
        let files =
            std::fs::read_dir(class.unwrap().path()).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files[5..].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
    let tried = run(&["init", "pictures", "--yes"]);
    assert!(
        tried.contains("from scratch: ")
            && tried.contains("on the features of efficientnet-lite0: "),
        "{tried}"
    );
    assert!(tried.contains("proposed: ") && tried.contains("a run takes about "), "{tried}");
    let asked = run(&["init", "pictures", "--yes", "--force", "--trunk", "efficientnet-lite0"]);
    assert!(asked.contains("wrote experiment.toml") && !asked.contains("proposed"), "{asked}");
    let file = std::fs::read_to_string(workspace.at("experiment.toml")).unwrap();
    assert!(file.contains("trunk = \"efficientnet-lite0\"") && !file.contains("size ="), "{file}");
    // Another size than that of the thumbnails beside features.
    let keys = ["--set", "rounds=2", "--set", "pretrain.epochs=5", "--set", "data.size=80"];
    let trained = run(&[&["run", "experiment.toml", "--out", "run"], &keys[..]].concat());
    assert!(trained.contains("test accuracy: "), "{trained}");
    let seen = run(&["eval", "run", "--json"]);
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    let again = run(&["eval", "run", "pictures/test", "--json"]);
    let again: serde_json::Value = serde_json::from_str(&again).unwrap();
    // Features of the run, and of the pictures once more.
    assert_eq!(seen["classifier"], again["classifier"]);
    let predicted = run(&["predict", "run", "pictures/test", "--format", "csv"]);
    assert_eq!(
        predicted.lines().count() as u64,
        1 + seen["images"].as_u64().unwrap(),
        "{predicted}"
    );
    let labelled = run(&["label", "run", "pictures/unlabelled"]);
    assert!(labelled.contains("wrote labels/labels.csv"), "{labelled}");
    let exported = run(&["export", "run", "--out", "model.onnx", "--raw-input"]);
    assert!(exported.contains("model.onnx"), "{exported}");
    let card = std::fs::read_to_string(workspace.at("model.md")).unwrap();
    assert!(card.contains("efficientnet-lite0") && card.contains("Apache-2.0"), "{card}");
    // Training starts from the trunk where it is not frozen, and its weights are then the model's.
    for what in ["last", "all"] {
        let keys =
            ["rounds=1", "pretrain.epochs=2", "data.size=48", &format!("model.unfreeze={what}")];
        let keys: Vec<&str> = keys.iter().flat_map(|&key| ["--set", key]).collect();
        let trained = run(&[&["run", "experiment.toml", "--out", what], &keys[..]].concat());
        assert!(
            trained.contains("efficientnet-lite0 with ") && trained.contains("test accuracy: "),
            "{trained}"
        );
        let seen = run(&["eval", what, "--json"]);
        let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
        let again = run(&["eval", what, "pictures/test", "--json"]);
        let again: serde_json::Value = serde_json::from_str(&again).unwrap();
        assert_eq!(seen["classifier"], again["classifier"]);
        let exported = run(&["export", what, "--out", &format!("{what}.onnx"), "--raw-input"]);
        assert!(exported.contains(".onnx: "), "{exported}");
    }
    // On a machine without trunks, the file of one is named; a model that has all weights needs none.
    let elsewhere = |arguments: &[&str]| with_trunks(&workspace, Path::new("no"), arguments);
    assert!(elsewhere(&["eval", "all"]).contains("accuracy"), "{}", elsewhere(&["eval", "all"]));
    let absent = elsewhere(&["eval", "run"]);
    assert!(
        absent.contains("needs its trunk `efficientnet-lite0`: name its file with --trunk"),
        "{absent}"
    );
    let file = trunks().join("efficientnet-lite0.safetensors");
    let named = elsewhere(&["eval", "run", "--trunk", file.to_str().unwrap()]);
    assert!(named.contains("accuracy"), "{named}");
    let damaged = workspace.at("damaged.safetensors");
    std::fs::write(&damaged, "no weights").unwrap();
    let refused =
        run(&["init", "pictures", "--yes", "--force", "--trunk", damaged.to_str().unwrap()]);
    assert!(refused.contains("damaged.safetensors: neither safetensors"), "{refused}");
    let none = run(&["run", "--set", "model.unfreeze=all"]);
    assert!(none.contains("model.unfreeze: there is no trunk: set model.trunk"), "{none}");
    // A trunk that is not there, and one that is not the model's.
    let absent = run(&["init", "pictures", "--yes", "--force", "--trunk", "no-such-trunk"]);
    assert!(
        absent.contains("no trunk `no-such-trunk` in") && absent.contains("make trunks"),
        "{absent}"
    );
    let other = run(&["predict", "run", "pictures/test", "--trunk", "efficientnet-lite1"]);
    assert!(other.contains("was trained with another trunk"), "{other}");
}
