//! A registered model is trained, resumed, read from its file and exported by its name.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn start(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME"))));
    command.current_dir(folder).env("OMP_NUM_THREADS", "1").args(arguments).output().unwrap()
}

fn execute(folder: &Path, arguments: &[&str]) -> String {
    let output = start(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_experiment_names_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let experiment = concat!(env!("CARGO_MANIFEST_DIR"), "/plain3.toml");
    execute(folder, &["run", experiment, "--out", "run", "--set", "rounds=1"]);
    execute(folder, &["run", "--resume", "run", "--set", "rounds=2"]);
    execute(folder, &["verify", "run"]);
    execute(folder, &["export", "run", "--out", "model.onnx"]);
    let onnx = std::fs::read(folder.join("model.onnx")).unwrap();
    assert!(onnx.windows(12).any(|bytes| bytes == b"conv3.weight"));
    let layers = execute(folder, &["model", "plain3"]);
    assert!(layers.starts_with("conv1.weight ") && layers.contains("16 x 3 x 3 x 3"), "{layers}");

    // Another program does not know the name.
    let config = std::fs::read_to_string(folder.join("run/config.toml")).unwrap();
    std::fs::write(folder.join("other.toml"), config.replace("plain3", "plain4")).unwrap();
    let refused = start(folder, &["run", "other.toml", "--out", "other"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    let unknown = "`adapter` or `plain3`, got \"plain4\"";
    assert!(words.contains("model.name: expected `resnet18`, "), "{words}");
    assert!(refused.status.code() == Some(1) && words.contains(unknown), "{words}");
}
