//! Reports over run folders of every kind.

use crate::folders::{Folders, Made};
use fedanchor_record::{Checksums, files};
use fedanchor_report::{Embedding, Options, PageData, Study, page, read_histories, write_report};
use std::path::Path;

/// A line of `rounds.jsonl` with a test accuracy.
fn round(number: u32, accuracy: f64) -> String {
    format!(
        r#"{{"round":{number},"test_accuracy":{accuracy},"test_loss":0.5,"clients":[0,1],"trained":2,"seen":100,"kept":60,"anchor_head":{{"all":80.0,"kept":90.0}},"classifier_head":{{"all":70.0,"kept":85.0}},"losses":{{"client_fix":0.5,"client_mix":null,"server_fix":0.4,"server_mix":null,"server_contrastive":-1.0}},"bytes_down":1000000,"bytes_up":500000}}"#
    )
}

/// Writes rounds with these accuracies, from round 0.
fn rounds(folder: &Path, accuracies: &[f64]) {
    let mut checksums = Checksums::default();
    let lines = accuracies.iter().enumerate();
    let text: String =
        lines.map(|(at, &one)| checksums.seal(&round(at as u32, one)) + "\n").collect();
    fs_err::write(folder.join(files::ROUNDS), text).unwrap();
}

fn study(folders: &Folders) -> Study {
    Study::new(read_histories(&[folders.path("")], &|_| None).unwrap())
}

fn data(folders: &Folders) -> PageData {
    PageData::new(&study(folders), Options::default(), &Embedding::default())
}

const FEW: &[(&str, &str)] = &[("rounds = 500", "rounds = 3")];

#[test]
fn curves_are_means_over_seeds() {
    let folders = Folders::new();
    folders.run("a/seed0", 0, 86.0, FEW);
    folders.run("a/seed1", 1, 88.0, FEW);
    rounds(&folders.path("a/seed0"), &[60.0, 80.0, 84.0, 86.0]);
    rounds(&folders.path("a/seed1"), &[62.0, 82.0, 86.0, 88.0]);
    let data = data(&folders);
    let figure = data.figures().find(|figure| figure.id.ends_with("-accuracy")).unwrap();
    let fedanchor_draw::Chart::Lines(lines) = &figure.frames[0].chart else { panic!() };
    assert_eq!(lines.lines[0].points, [[0.0, 61.0], [1.0, 81.0], [2.0, 85.0], [3.0, 87.0]]);
    let deviation = (2.0_f64.sqrt() * 1000.0).round() / 1000.0;
    assert!((lines.lines[0].band[0][1] - 61.0 - deviation).abs() < 1e-9);
    // The paper's number for this setting is a line of its own.
    let names: Vec<&str> = lines.references.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["fedanchor, published"]);
    let table = data.tables().next().unwrap();
    let cell = |name: &str| {
        let column = table.columns.iter().position(|column| column == name).unwrap();
        table.rows[0][column].as_str()
    };
    assert_eq!((cell("seeds"), cell("rounds")), ("2", "3"));
    assert_eq!((cell("last ten"), cell("final")), ("84.33 ± 1.41", "87.00 ± 1.41"));
    assert_eq!(cell("megabytes"), "6.0");
}

#[test]
fn the_differences_are_those_of_the_configs_and_no_others() {
    let folders = Folders::new();
    for (name, batch) in [("one", "batch = 10"), ("two", "batch = 32")] {
        folders.run(name, 0, 80.0, &[FEW[0], ("batch = 10", batch)]);
        rounds(&folders.path(name), &[60.0, 80.0, 84.0, 86.0]);
    }
    let data = data(&folders);
    let table = data.tables().find(|table| table.id.ends_with("-differences")).unwrap();
    assert_eq!(table.columns, ["experiment", "client.batch"]);
    assert_eq!(table.rows, [["one", "10"], ["two", "32"]]);
    assert_eq!(table.csv(), "experiment,client.batch\none,10\ntwo,32\n");
    assert!(table.latex().contains("one & 10 \\\\\n"), "{}", table.latex());
}

#[test]
fn runs_that_were_stopped_are_shown_as_far_as_they_came() {
    let folders = Folders::new();
    folders.make("x", Made { changes: FEW, last: 80.0, best: 81.0, rounds: None });
    rounds(&folders.path("x"), &[60.0, 80.0]);
    let file = folders.path("x").join(files::ROUNDS);
    let whole = fs_err::read_to_string(&file).unwrap();
    // A line that was being written when the run was killed.
    fs_err::write(&file, format!("{whole}{{\"round\":2,\"test_acc")).unwrap();
    let study = study(&folders);
    assert_eq!(study.sections[0].experiments[0].runs[0].rounds.len(), 2);
    let [problem] = &study.problems[..] else { panic!("{:?}", study.problems) };
    assert!(problem.contains("rounds.jsonl: line 3") && problem.contains("round 1"), "{problem}");
    let data = data(&folders);
    assert!(data.tables().next().unwrap().rows[0].contains(&"not finished".to_owned()));
}

#[test]
fn broken_runs_are_named_and_the_others_shown() {
    let folders = Folders::new();
    folders.run("good", 0, 86.0, FEW);
    rounds(&folders.path("good"), &[60.0, 86.0]);
    for (name, file, content) in [
        ("no-round", files::ROUNDS, ""),
        ("no-records", files::ROUNDS, "what?\n"),
        ("no-config", files::CONFIG, "preset ="),
    ] {
        folders.run(name, 0, 86.0, FEW);
        fs_err::write(folders.path(name).join(file), content).unwrap();
    }
    fs_err::write(folders.path("good").join(files::CONFUSION), "class,a\na,many\n").unwrap();
    fs_err::write(folders.path("good").join(files::SAMPLES), "{").unwrap();
    fs_err::create_dir(folders.path("good").join(files::LATENTS)).unwrap();
    fs_err::write(folders.path("good").join(files::latents(3)), "not tensors").unwrap();
    let study = study(&folders);
    assert_eq!(study.sections.len(), 1);
    let text = study.problems.join("\n");
    for wanted in [
        "no-round: rounds.jsonl: no round was recorded",
        "no-records: rounds.jsonl: line 1",
        "no-config: config.toml: line 1",
        "confusion.csv: line 2: `many` is not a number",
        "samples.json: ",
        "latents/round-000003.safetensors: ",
    ] {
        assert!(text.contains(wanted), "`{wanted}` is not in\n{text}");
    }
}

#[test]
fn names_with_markup_stay_text() {
    let evil = "</script><img src=x onerror=alert(1)>";
    let folders = Folders::new();
    let name = format!("name = \"{evil}\"");
    folders.run("x", 0, 86.0, &[FEW[0], ("name = \"cifar10\"", &name)]);
    rounds(&folders.path("x"), &[60.0, 86.0]);
    let table = format!("class,{evil}\n{evil},3\n");
    fs_err::write(folders.path("x").join(files::CONFUSION), table).unwrap();
    let html = page(&data(&folders));
    assert!(!html.contains(evil) && !html.contains("<img src=x"));
    let out = folders.path("report");
    write_report(&study(&folders), Options::default(), &Embedding::default(), &out).unwrap();
    for file in fs_err::read_dir(out.join("figures")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "svg") {
            assert!(!fs_err::read_to_string(&path).unwrap().contains("<img"), "{}", path.display());
        }
    }
}

#[test]
fn every_figure_and_table_of_the_page_is_a_file() {
    let folders = Folders::new();
    folders.run("runs/x", 0, 86.0, FEW);
    rounds(&folders.path("runs/x"), &[60.0, 80.0, 84.0, 86.0]);
    let study = Study::new(read_histories(&[folders.path("runs")], &|_| None).unwrap());
    let out = folders.path("report");
    let index = write_report(&study, Options::default(), &Embedding::default(), &out).unwrap();
    let html = fs_err::read_to_string(&index).unwrap();
    assert!(html.starts_with("<!doctype html>"));
    let data = PageData::new(&study, Options::default(), &Embedding::default());
    assert!(data.figures().count() >= 6);
    for figure in data.figures() {
        for kind in ["svg", "png"] {
            let file = out.join("figures").join(format!("{}.{kind}", figure.id));
            let bytes = fs_err::read(&file).unwrap();
            assert!(bytes.starts_with(if kind == "svg" { b"<svg" } else { b"\x89PNG" }));
        }
    }
    for table in data.tables() {
        assert!(out.join("tables").join(format!("{}.csv", table.id)).exists());
        assert!(out.join("tables").join(format!("{}.tex", table.id)).exists());
    }
    // Again into the same folder, but never over something else.
    write_report(&study, Options::default(), &Embedding::default(), &out).unwrap();
    let error =
        write_report(&study, Options::default(), &Embedding::default(), &folders.path("runs/x"));
    assert!(error.unwrap_err().to_string().contains("not a report"));
    assert!(folders.path("runs/x").join(files::ROUNDS).exists());
}

#[test]
fn a_task_with_many_experiments_is_shown_by_sweep() {
    let folders = Folders::new();
    for sweep in ["first", "second"] {
        for cell in 0..8 {
            let name = format!("{sweep}/cell{cell}/seed0");
            let batch = format!("batch = {}", cell + if sweep == "first" { 1 } else { 101 });
            folders.run(&name, 0, 86.0, &[FEW[0], ("batch = 10", &batch)]);
            rounds(&folders.path(&name), &[60.0, 86.0]);
        }
    }
    let study = study(&folders);
    let titles: Vec<&str> = study.sections.iter().map(|section| section.title.as_str()).collect();
    assert_eq!(titles.len(), 2, "{titles:?}");
    assert!(titles[0].starts_with("first: ") && titles[1].starts_with("second: "), "{titles:?}");
    let names: Vec<&str> =
        study.sections[1].experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    assert_eq!(names[..2], ["cell0", "cell1"]);
}

mod any_folder {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Whatever the files of a run folder hold, there is a page or a clear error.
        #[test]
        fn gives_a_page_or_an_error(
            lines in prop::collection::vec(prop_oneof![
                (0u32..6, prop::num::f64::ANY).prop_map(|(at, one)| round(at, one)),
                ".{0,40}",
                Just(r#"{"round":1}"#.to_owned()),
            ], 0..6),
            matrix in prop_oneof![Just("class,a\na,1\n".to_owned()), ".{0,30}"],
            summary in any::<bool>(),
        ) {
            let folders = Folders::new();
            let rounds = summary.then_some(3);
            folders.make("x", Made { changes: FEW, last: 80.0, best: 81.0, rounds });
            let folder = folders.path("x");
            fs_err::write(folder.join(files::ROUNDS), lines.join("\n")).unwrap();
            for name in [files::CONFUSION, files::SIMILARITY, files::PARTITION] {
                fs_err::write(folder.join(name), &matrix).unwrap();
            }
            let study = Study::new(read_histories(&[folders.path("")], &|_| None).unwrap());
            prop_assert!(!study.sections.is_empty() || !study.problems.is_empty());
            let data = PageData::new(&study, Options::default(), &Embedding::default());
            prop_assert!(page(&data).contains("</html>"));
            for figure in data.figures() {
                let svg = figure.frames[0].chart.svg(&figure.title);
                prop_assert!(fedanchor_draw::png(&svg, 1.0).is_ok(), "{}", figure.id);
            }
        }
    }
}
