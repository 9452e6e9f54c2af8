//! A registered data set is trained on by its name.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

#[test]
fn an_experiment_names_the_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = Path::new(env!("CARGO_MANIFEST_DIR")).join("stripes.toml");
    let mut command = Command::new(env!(concat!("CARGO_BIN_EXE_", env!("CARGO_PKG_NAME"))));
    command.current_dir(folder.path()).env("OMP_NUM_THREADS", "1").arg("run").arg(experiment);
    let output = command.args(["--out", "run", "--set", "rounds=1"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let config = std::fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    assert!(config.contains("name = \"stripes\"") && !config.contains("path ="), "{config}");
    let summary = std::fs::read_to_string(folder.path().join("run/summary.json")).unwrap();
    assert!(summary.contains("\"horizontal\""), "{summary}");
}
