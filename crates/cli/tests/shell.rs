//! What a shell or a program gets: completions, manual pages, JSON.

#![allow(clippy::unwrap_used)] // the setting for tests does not reach the functions they share

use serde_json::{Value, json};
use std::process::Command;

fn said(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    let output = command.args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn parsed(arguments: &[&str]) -> Value {
    serde_json::from_str(&said(arguments)).unwrap()
}

/// The subcommands that a command lists in its help, without `help` itself.
fn subcommands(of: &[&str]) -> Vec<String> {
    let help = said(&[of, &["--help"]].concat());
    let names = help
        .lines()
        .take_while(|line| *line != "Options:")
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_shell_completes_every_command() {
    let (all, data) = (subcommands(&[]), subcommands(&["data"]));
    assert!(all.len() >= 8 && data.len() >= 5, "{all:?} {data:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = said(&["completions", shell]);
        for name in all.iter().chain(&data) {
            let word = |part: &str| part == name;
            let mut words = script.split(|c: char| !c.is_alphanumeric() && c != '-');
            assert!(words.any(word), "{shell}: no `{name}`");
        }
        assert!(script.contains("seeds"), "{shell}: options");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("some/man");
    assert_eq!(said(&["-q", "man", "--out", out.to_str().unwrap()]), "");
    let page = |name: &str| std::fs::read_to_string(out.join(format!("{name}.1"))).unwrap();
    let main = page("fedanchor");
    for name in subcommands(&[]) {
        assert!(main.contains(&format!("fedanchor\\-{name}")), "{name}");
        assert!(page(&format!("fedanchor-{name}")).contains(".SH SYNOPSIS"), "{name}");
    }
    for name in subcommands(&["data"]) {
        assert!(page(&format!("fedanchor-data-{name}")).contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(main.contains("130"), "the exit status");
}

#[test]
fn a_model_is_json() {
    let model = parsed(&["model", "small", "--classes", "7", "--json"]);
    assert_eq!((&model["name"], &model["classes"]), (&json!("small"), &json!(7)));
    let first = json!({ "name": "conv1.weight", "shape": [16, 3, 3, 3], "parameters": 432 });
    assert_eq!(model["layers"][0], first);
    let layers = model["layers"].as_array().unwrap();
    let sum: i64 = layers.iter().map(|layer| layer["parameters"].as_i64().unwrap()).sum();
    let all = [&model["parameters"], &model["anchor_head_parameters"]];
    assert_eq!(sum, all.map(|count| count.as_i64().unwrap()).iter().sum::<i64>());
}

#[test]
fn the_data_sets_are_json() {
    let sets = parsed(&["data", "list", "--json"]);
    assert_eq!((&sets[0]["name"], &sets[0]["bytes"]), (&json!("sample"), &Value::Null));
    let cifar = sets.as_array().unwrap().iter().find(|set| set["name"] == "cifar10").unwrap();
    assert_eq!(cifar["bytes"], json!(170_052_171));
}

/// The committed records as a table, twice: the digits that the text rounds are there.
#[test]
fn a_table_is_json() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/quick");
    let table = parsed(&["table", results, "--json"]);
    let row = &table["rows"][0];
    assert_eq!((&row["method"], &row["seeds"]), (&json!("fedanchor"), &json!(3)));
    let mean = row["final"]["mean"].as_f64().unwrap();
    assert!(said(&["table", results]).contains(&format!("{mean:.2} ± ")), "{mean}");
    assert!(row["final"]["std"].is_f64() && row["anchors_alone"]["mean"].is_f64(), "{row}");
}

/// The embedded sample, which is not a folder, is inspected too.
#[test]
fn a_check_is_json() {
    let found = parsed(&["data", "check", "sample", "--json"]);
    assert_eq!((&found["classes"][9], &found["refusal"]), (&json!("9"), &Value::Null));
    assert_eq!(found["parts"][1]["by_class"], json!(vec![100; 10]));
}

#[test]
fn a_partition_is_json_with_every_client() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dealt");
    let settings = ["--set", "data.clients=30", "--set", "partition.kind=iid"];
    let arguments = ["data", "partition", "--json", "--out", out.to_str().unwrap()];
    let dealt = parsed(&[&arguments[..], &settings].concat());
    assert_eq!((&dealt["data"], &dealt["anchors"]), (&json!("sample"), &json!(30)));
    let clients = dealt["clients"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let by_class =
        |client: &Value| -> u64 { client["by_class"].as_array().unwrap().iter().map(number).sum() };
    assert!(clients.iter().all(|client| number(&client["size"]) == by_class(client)));
    assert_eq!((clients.len(), clients.iter().map(by_class).sum::<u64>()), (30, 5970));
    assert!(out.with_extension("csv").exists() && out.with_extension("svg").exists());
}
