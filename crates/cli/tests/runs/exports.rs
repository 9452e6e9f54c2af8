//! Exporting what a run trained, and starting from it.

use crate::workspace::{DRAWN, SMALL, Workspace, text};
use std::process::{Command, Output};

fn export(workspace: &Workspace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    let command = command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1");
    command.arg("export").args(arguments).output().unwrap()
}

#[test]
fn a_model_is_exported_or_refused_with_the_reason() {
    let workspace = Workspace::new();
    workspace.run("run", &[SMALL, &["rounds=1"]]);
    let done = export(&workspace, &["run", "--raw-input"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let printed = text(&done.stdout);
    assert!(printed.starts_with("model.onnx: small for 10 classes of grey images of"), "{printed}");
    assert!(!printed.contains("left out"), "{printed}");
    let onnx = std::fs::read(workspace.at("model.onnx")).unwrap();
    for name in ["images", "probabilities", "scores", "layer3.0.conv2.weight", "normalisation"] {
        assert!(onnx.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }
    for name in ["lanczos3", "antialias"] {
        assert!(onnx.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }

    // The page has what the folder of the run tells; a copy of the model file tells less.
    let page = std::fs::read_to_string(workspace.at("model.md")).unwrap();
    assert!(page.starts_with("# model.onnx\n\n- Classes: "), "{page}");
    for part in ["\n## Data\n\n- Name: ", "- Rounds: 1 of 1\n", "- Accuracy: ", "| recall |"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    std::fs::copy(workspace.at("run/model.safetensors"), workspace.at("copy.safetensors")).unwrap();
    let done = export(&workspace, &["copy.safetensors", "--out", "copy.onnx"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let short = std::fs::read_to_string(workspace.at("copy.md")).unwrap();
    assert!(short.ends_with("which was not there at the export.\n"), "{short}");
    assert_eq!(short.lines().nth(2), page.lines().nth(2));

    // The same content again is no loss; other content is refused.
    let model = "run/model.safetensors";
    for arguments in [&["run", "--raw-input"][..], &[model, "--raw-input"], &["run"]] {
        let done = export(&workspace, arguments);
        let same = arguments.contains(&"--raw-input");
        assert_eq!(done.status.success(), same, "{}", text(&done.stderr));
        assert!(std::fs::read(workspace.at("model.onnx")).unwrap() == onnx);
        assert_eq!(text(&done.stderr).contains("model.onnx: already exists with other"), !same);
    }
    let done = export(&workspace, &["run", "--force"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(std::fs::read(workspace.at("model.onnx")).unwrap() != onnx);

    for (arguments, reason) in [
        (&["run", "--out", model][..], "this is the model itself"),
        (&[model, "--out", model], "this is the model itself"),
        (&["run", "--out", "notes.md"], "would have the same name"),
        (&["none"], "none"),
    ] {
        let done = export(&workspace, arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}");
        assert!(text(&done.stderr).contains(reason), "{}", text(&done.stderr));
    }
}

/// The model file of the first run serves as it is.
#[test]
fn a_run_starts_from_the_backbone_of_another() {
    let workspace = Workspace::with_pictures(16);
    let brief = [
        "rounds=1",
        "model.name=resnet18",
        "model.stem=imagenet",
        "pretrain.epochs=0",
        "client.per_round=1",
        "client.epochs=1",
    ];
    workspace.run("first", &[DRAWN, &brief]);

    let start = ["model.init_from=first/model.safetensors"];
    let started = workspace.succeed(&mut workspace.command("second", &[DRAWN, &brief, &start]));
    assert!(
        text(&started.stderr).contains("heads are newly initialised"),
        "{}",
        text(&started.stderr)
    );
    let models = ["first", "second"].map(|run| workspace.content(run)["model.safetensors"].clone());
    assert!(models[0] != models[1]);

    // What does not fit is found before a folder is made.
    let cifar = ["model.stem=cifar"];
    let refused = workspace.command("third", &[DRAWN, &brief, &start, &cifar]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("`conv1.weight` is [64, 3, 7, 7], not [64, 3, 3, 3]"));
    assert!(!workspace.at("third").exists());
}
