//! Names of classes and files come from elsewhere: they are neither formulas of a spreadsheet nor messages.

use crate::workspace::{DRAWN, Workspace, text};
use std::process::{Command, Output};

const CLASSES: [(&str, &str); 3] =
    [("leaning", "=leaning"), ("lying", "-lying"), ("standing", "@standing")];

#[test]
fn names_are_neither_formulas_nor_messages_and_are_read_back() {
    let workspace = Workspace::with_pictures(16);
    for (plain, class) in CLASSES {
        for part in ["train", "test"] {
            let folder = workspace.at("drawn").join(part);
            std::fs::rename(folder.join(plain), folder.join(class)).unwrap();
        }
        for part in ["labelled", "test"] {
            std::fs::create_dir_all(workspace.at("own").join(part).join(class)).unwrap();
        }
    }
    std::fs::create_dir(workspace.at("own/unlabelled")).unwrap();
    workspace.run("run", &[DRAWN, &["rounds=1", "checks.anchor_margin=0"]]);
    for (plain, class) in CLASSES {
        let copy = |from: String, to: String| {
            std::fs::copy(workspace.at("drawn").join(from), workspace.at("own").join(to)).unwrap();
        };
        for number in 10..14 {
            copy(format!("train/{class}/{number}.png"), format!("labelled/{class}/{number}.png"));
            copy(
                format!("train/{class}/2{}.png", number - 10),
                format!("unlabelled/{plain}{number}.png"),
            );
        }
        copy(format!("test/{class}/00.png"), format!("test/{class}/00.png"));
    }
    let fedanchor = |arguments: &[&str]| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedanchor"));
        command
            .current_dir(workspace.at(""))
            .env("OMP_NUM_THREADS", "1")
            .env("FEDANCHOR_CACHE", "");
        command.args(arguments).output().unwrap()
    };

    let hostile = workspace.at("own/unlabelled/a\nerror: all is lost.png");
    std::fs::write(&hostile, "not a picture").unwrap();
    for arguments in [
        &["label", "run", "own/unlabelled", "--out", "labels"][..],
        &["predict", "run", "own/unlabelled"],
    ] {
        let output = fedanchor(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("own/unlabelled/a\\nerror: all is lost.png: "), "{said}");
        assert!(!said.contains("\nerror: all is lost"), "{said}");
    }
    std::fs::remove_file(hostile).unwrap();

    // One proposal is accepted as it is written.
    let csv = workspace.read("labels", "labels.csv");
    let mut rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + 12);
    for row in &rows[1..] {
        assert!(["'=leaning", "'-lying", "'@standing"].contains(&row[2]), "{row:?}");
    }
    rows[1][1] = rows[1][2];
    let label = rows[1][1];
    let accepted: Vec<String> = rows.iter().map(|row| row.join(",")).collect();
    std::fs::write(workspace.at("labels/labels.csv"), accepted.join("\n") + "\n").unwrap();
    let init = ["init", "own", "--labels", "labels/labels.csv", "--out", "own.toml", "--yes"];
    let output = fedanchor(&init);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("1 picture newly labelled") && said.contains("\n=leaning "), "{said}");
    let table = workspace.read("", "own.csv");
    let labelled = table.lines().filter(|line| line.contains(label)).count();
    assert_eq!(labelled, 4 + 1 + 1, "{table}");
}
