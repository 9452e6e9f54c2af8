//! Pictures of one's own, from `init` to `predict`: what is recorded, and what is said when something is missing.

use crate::workspace::{Workspace, text};
use fedanchor_record::files;
use image::{GrayImage, Luma, Rgb, RgbImage};
use std::path::Path;
use std::process::{Command, Output};

fn fedanchor(workspace: &Workspace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
    command.current_dir(workspace.at("")).env("OMP_NUM_THREADS", "1").env("FEDANCHOR_CACHE", "");
    command.env("CUDA_VISIBLE_DEVICES", "").args(arguments).output().unwrap()
}

/// The one message of a command that must fail.
#[track_caller]
fn refusal(workspace: &Workspace, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = fedanchor(workspace, arguments);
    let said = text(&stderr).to_owned();
    assert_eq!(status.code(), Some(1), "{arguments:?}: {said}");
    assert_eq!((said.lines().count(), text(&stdout)), (1, ""), "{arguments:?}: {said}");
    said.trim_end().to_owned()
}

fn grey(path: &Path, value: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // No two pictures are the same.
    let pixel = |x, y| Luma([value.wrapping_add((x * 3 + y * 5) as u8)]);
    GrayImage::from_fn(16, 16, pixel).save(path).unwrap();
}

/// Grey pictures in American folders, those of the clients in folders below theirs.
fn write_pictures(workspace: &Workspace) {
    for (number, class) in ["dark", "light"].iter().enumerate() {
        for picture in 0..8 {
            let value = 128 * number as u8 + 8 * picture;
            for (part, added) in [("labeled", 0), ("test", 1)] {
                let name = format!("own/{part}/{class}/{picture}.pgm");
                grey(&workspace.at(name), value + added);
            }
            for (client, added) in [("ward 7", 2), ("ward 12", 3)] {
                let name = format!("own/unlabeled/{client}/2024/{class}/{picture}.tif");
                grey(&workspace.at(name), value + added);
            }
        }
    }
}

#[test]
fn clients_keep_their_names_and_each_mistake_has_one_message() {
    let workspace = Workspace::new();
    let w = &workspace;
    write_pictures(w);
    let init = ["init", "own", "--yes", "--out", "own.toml"];
    workspace.succeed(
        Command::new(env!("CARGO_BIN_EXE_fedanchor"))
            .current_dir(workspace.at(""))
            .env("FEDANCHOR_CACHE", "")
            .args(init),
    );
    let mut run = workspace.command_of("own.toml", "run");
    for setting in ["rounds=1", "compare=false", "pretrain.epochs=1", "client.per_round=2"] {
        run.args(["--set", setting]);
    }
    workspace.succeed(&mut run);

    // Names in every record.
    let record = workspace.records("run").remove(1);
    assert_eq!(
        (record.clients, record.client_names),
        (vec![0, 1], vec!["ward 7".into(), "ward 12".into()])
    );
    assert_eq!(
        workspace.read("run", files::PARTITION),
        "client,size,unknown\nward 7,16,16\nward 12,16,16\n"
    );

    // A picture in colour is predicted, with a note.
    RgbImage::from_pixel(16, 16, Rgb([200, 30, 30])).save(workspace.at("red.png")).unwrap();
    let predicted = fedanchor(w, &["predict", "run", "red.png", "own/test/dark/0.pgm"]);
    assert_eq!(
        text(&predicted.stderr),
        "note: 1 picture is in colour, and the model was trained on grey ones: it sees only their brightness; for \
         colours, train on pictures in colour\n"
    );
    assert_eq!((predicted.status.code(), text(&predicted.stdout).lines().count()), (Some(0), 3));

    // Paths that lead nowhere.
    let pictures = "no such file or folder: give pictures, or folders of them";
    assert_eq!(
        refusal(w, &["predict", "run", "a.jpg", "b"]),
        format!("error: a.jpg, b: {pictures}")
    );
    assert_eq!(refusal(w, &["label", "run", "nowhere"]), format!("error: nowhere: {pictures}"));
    assert!(!workspace.at("labels").exists());
    assert_eq!(
        refusal(w, &["eval", "run", "nowhere"]),
        "error: nowhere: no such file or folder: give a folder with one folder of pictures per class"
    );
    for command in [
        &["predict", "nowhere", "own"][..],
        &["eval", "nowhere"],
        &["label", "nowhere", "own"],
        &["export", "nowhere"],
    ] {
        assert_eq!(refusal(w, command), "error: nowhere: no such run folder or model file");
    }
    assert_eq!(
        refusal(w, &["init", "nowhere", "--out", "new.toml"]),
        "error: nowhere: no such file or folder: give the folder of your pictures (`fedanchor data example` writes \
         one to try)"
    );
    assert_eq!(
        refusal(w, &["init", "own", "--out", "sub/new.toml"]),
        "error: sub: there is no such folder: make it, or choose another name with --out"
    );
    assert_eq!(
        refusal(w, &["run", "own.toml", "--set", "model.trunk=''", "--out", "new"]),
        "error: model.trunk: expected letters, digits, `-` and `_`, got \"\""
    );
    assert_eq!(
        refusal(w, &["run", "--resume", "nowhere"]),
        "error: nowhere: is not a run folder: it has no config.toml"
    );
    assert_eq!(
        refusal(w, &["run", "nowhere.toml"]),
        "error: nowhere.toml: no such file or folder: `fedanchor init FOLDER` writes an experiment file for a folder \
         of pictures"
    );
    assert_eq!(
        refusal(w, &["run", "own"]),
        "error: own: is a folder: write an experiment file for the pictures in it with `fedanchor init own` first, and \
         run that file"
    );
    assert_eq!(
        refusal(w, &["run", "run"]),
        "error: run: is a run folder: repeat the run with `fedanchor run run/config.toml`"
    );
    let device = "error: device: there is no `cuda:0`: 0 CUDA devices found: use `cpu`, or libtorch with CUDA (`make \
                  libtorch CUDA=1`, or in Python a `torch` with CUDA) on a machine with a GPU";
    assert_eq!(refusal(w, &["predict", "run", "own/test", "--device", "cuda:0"]), device);

    // The data are gone: advice about a key that the command cannot set would not help.
    std::fs::rename(workspace.at("own"), workspace.at("moved")).unwrap();
    let place = std::fs::canonicalize(workspace.at("")).unwrap().join("own").display().to_string();
    let gone = format!("error: run: its data are no longer at {place}: put them back, or");
    assert_eq!(refusal(w, &["eval", "run"]), format!("{gone} give labelled pictures after it"));
    assert_eq!(
        refusal(w, &["label", "run", "moved/test"]),
        format!("{gone} give labelled pictures with --anchors")
    );
    assert_eq!(
        refusal(w, &["run", "own.toml", "--out", "again"]),
        "error: data.path: no data set `own` at own: correct the path, or put the data set there"
    );

    // A run that has no model yet, and a folder that is none.
    std::fs::remove_file(workspace.at("run").join(files::MODEL)).unwrap();
    assert_eq!(
        refusal(w, &["predict", "run", "red.png"]),
        "error: run: has no model.safetensors yet, which is written when the run ends: wait for it, or resume the run \
         if it was stopped (`fedanchor run --resume run`)"
    );
    assert_eq!(
        refusal(w, &["predict", "moved", "red.png"]),
        "error: moved: is not a run folder: it has no model.safetensors"
    );
}

#[test]
fn classes_that_differ_in_case_are_named() {
    let workspace = Workspace::new();
    for (number, name) in ["train/Cat", "train/cat", "test/Cat", "test/cat"].iter().enumerate() {
        grey(&workspace.at(format!("own/{name}/1.png")), 40 * number as u8);
    }
    let checked = fedanchor(&workspace, &["data", "check", "own"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    let said = text(&checked.stdout);
    let note = "classes whose names differ only in upper and lower case; if two are one class, move the pictures into \
                one folder: 1\n  Cat, cat\n";
    assert!(said.contains(note), "{said}");
}
