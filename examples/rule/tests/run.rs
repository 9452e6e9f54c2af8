//! Registered rules are used by their names.

#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn an_experiment_names_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let execute = |threshold: &str| {
        let mut command = Command::new(env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME"))));
        command.current_dir(folder.path()).env("OMP_NUM_THREADS", "1");
        command.args(["run", concat!(env!("CARGO_MANIFEST_DIR"), "/rules.toml"), "--out", "run"]);
        let keys = ["--set", "rounds=1", "--set", threshold];
        command.args(keys).output().unwrap()
    };
    let output = execute("method.threshold.share=2");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("method.threshold.share: must be"), "{words}");
    let output = execute("method.threshold=best-per-class");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config = std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    assert!(config.contains("share = 0.5") && config.contains("geometric-median"), "{config}");
}
