//! Reports over run folders of every kind.

use crate::folders::{Folders, Made};
use fedanchor_record::{Checksums, files};
use fedanchor_report::{Options, PageData, Study, page, read_histories, write_report};
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
    PageData::new(&study(folders), &Options::default())
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
    let fedanchor_report::chart::Chart::Lines(lines) = &figure.frames[0].chart else { panic!() };
    assert_eq!(lines.lines[0].points, [[0.0, 61.0], [1.0, 81.0], [2.0, 85.0], [3.0, 87.0]]);
    let deviation = (2.0_f64.sqrt() * 1000.0).round() / 1000.0;
    assert!((lines.lines[0].band[0][1] - 61.0 - deviation).abs() < 1e-9);
    // The paper's number for this setting has its own line.
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
    let csv = table.csv();
    assert!(csv.contains("final mean,final deviation,best mean,best deviation"), "{csv}");
    assert!(csv.contains(",87.00,1.41,") && !csv.contains('±'), "{csv}");
    // Names and presets to the left, numbers to the right.
    assert!(table.latex().contains("\\begin{tabular}{llrrrrr"), "{}", table.latex());
}

/// A run of three rounds whose records have more: the same in every round but the first, with its number for `#`.
fn with(folders: &Folders, name: &str, more: &str) {
    folders.run(name, 0, 86.0, FEW);
    let mut checksums = Checksums::default();
    let lines = [60.0, 80.0, 84.0, 86.0].iter().enumerate().map(|(at, &accuracy)| {
        let record = round(at as u32, accuracy);
        let more = if at == 0 { String::new() } else { more.replace('#', &at.to_string()) };
        checksums.seal(&format!("{}{more}}}", record.trim_end_matches('}'))) + "\n"
    });
    fs_err::write(folders.path(name).join(files::ROUNDS), lines.collect::<String>()).unwrap();
}

#[test]
fn accuracy_is_shown_against_what_privacy_costs() {
    let folders = Folders::new();
    let spent = r##","privacy":{"epsilon":#.5,"delta":1e-5,"noise":1.0,"clip":1.0,"releases":#}"##;
    with(&folders, "private", spent);
    folders.run("plain", 1, 86.0, FEW);
    rounds(&folders.path("plain"), &[60.0, 80.0, 84.0, 86.0]);
    let data = data(&folders);
    let figure = data.figures().find(|figure| figure.id.ends_with("-privacy")).unwrap();
    let fedanchor_report::chart::Chart::Lines(lines) = &figure.frames[0].chart else { panic!() };
    assert_eq!(lines.lines.len(), 1, "a run without privacy has no such line");
    assert_eq!(lines.lines[0].points, [[0.0, 60.0], [1.5, 80.0], [2.5, 84.0], [3.5, 86.0]]);
}

#[test]
fn sites_have_their_worst_mean_and_best_and_each_its_last_accuracy() {
    let folders = Folders::new();
    let sites = r##","client_names":["ward-7","ward-8"],"sites":[{"client":0,"accuracy":6#.0,"classes":[[10,6]]},{"client":1,"accuracy":9#.0,"classes":[[10,9]]}]"##;
    with(&folders, "fleet", sites);
    let data = data(&folders);
    let figure = |name: &str| data.figures().find(|figure| figure.id.ends_with(name)).unwrap();
    let fedanchor_report::chart::Chart::Lines(lines) = &figure("-sites").frames[0].chart else {
        panic!()
    };
    let names: Vec<&str> = lines.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["worst", "mean", "best"]);
    let last: Vec<[f64; 2]> = lines.lines.iter().map(|line| line.points[2]).collect();
    assert_eq!(last, [[3.0, 63.0], [3.0, 78.0], [3.0, 93.0]]);
    let fedanchor_report::chart::Chart::Bars(bars) = &figure("-clients").frames[0].chart else {
        panic!()
    };
    assert_eq!(bars.groups, ["ward-7", "ward-8"]);
    let clients = figure("-clients");
    assert_eq!(clients.title_of(&clients.frames[0]), "Accuracy by client: fedanchor");
    assert_eq!(bars.series[0].values, [Some(63.0), Some(93.0)]);
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

const SEMIFL: &[(&str, &str)] = &[FEW[0], ("name = \"fedanchor\"", "name = \"semifl\"")];

#[test]
fn settings_that_only_one_method_has_are_counted() {
    let folders = Folders::new();
    folders.run("one", 0, 80.0, FEW);
    folders.run("two", 0, 80.0, SEMIFL);
    for name in ["one", "two"] {
        rounds(&folders.path(name), &[60.0, 80.0]);
    }
    let config = folders.path("two").join(files::CONFIG);
    let text = fs_err::read_to_string(&config).unwrap();
    let text = text.replace("[method]", "[method]\nown = 1\nother = 2");
    fs_err::write(&config, text.replace("batch = 10", "batch = 32")).unwrap();
    let data = data(&folders);
    let table = data.tables().find(|table| table.id.ends_with("-differences")).unwrap();
    let title = "Settings in which the experiments differ, and 2 settings that only semifl has";
    assert_eq!(table.title, title);
    assert_eq!(table.columns, ["setting", "semifl", "fedanchor"]);
    let batch = table.rows.iter().find(|row| row[0] == "client.batch").unwrap();
    assert_eq!(batch[1..], ["32", "10"]);
}

/// The bars at a round, or at the last ones.
fn bars<'a>(data: &'a PageData, round: &str) -> &'a fedanchor_report::chart::Bars {
    let figure = data.overview.iter().find(|figure| figure.id == "labels-bars").unwrap();
    assert_eq!(figure.frames[figure.chosen].name, "last");
    let frame = figure.frames.iter().find(|frame| frame.name == round).unwrap();
    let fedanchor_report::chart::Chart::Bars(bars) = &frame.chart else { panic!() };
    bars
}

#[test]
fn bars_show_the_last_round_of_each_section_and_name_it() {
    let folders = Folders::new();
    folders.run("one", 0, 80.0, FEW);
    folders.run("two", 0, 80.0, &[FEW[0], ("name = \"wrn28x2\"", "name = \"other\"")]);
    folders.run("three", 0, 80.0, &[FEW[0], ("name = \"fedanchor\"", "name = \"fedcon\"")]);
    rounds(&folders.path("one"), &[60.0, 80.0, 84.0]);
    rounds(&folders.path("two"), &[60.0, 80.0]);
    rounds(&folders.path("three"), &[60.0, 80.0, 84.0, 86.0]);
    let all = data(&folders);
    let shown = bars(&all, "last");
    let methods: Vec<&str> = shown.series.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(methods, ["fedanchor"], "fedcon labels nothing");
    assert_eq!(shown.series[0].values, [Some(80.0); 2]);
    let ends: Vec<&str> = shown.groups.iter().map(|group| &group[group.len() - 7..]).collect();
    assert!(ends.contains(&"round 1") && ends.contains(&"round 2"), "{:?}", shown.groups);
    let names: std::collections::HashSet<&String> = shown.groups.iter().collect();
    assert_eq!(names.len(), 2);
    for figure in all.figures().filter(|figure| figure.id.ends_with("-kept")) {
        let fedanchor_report::chart::Chart::Lines(lines) = &figure.frames[0].chart else {
            panic!()
        };
        assert!(lines.lines.iter().all(|line| line.name != "fedcon"), "{}", figure.id);
    }
    // A method has the same colour as bars and as a line.
    let section = &study(&folders).sections[0];
    let own = section.experiments.iter().find(|one| one.name == "fedanchor").unwrap();
    assert_eq!(own.style, shown.series[0].style);

    assert_eq!(bars(&all, "2").groups.len(), 1, "only one section has round 2");
    assert!(page(&all).contains("Pseudo-labels by method and data set, round 2"));
    let out = folders.path("report");
    write_report(&study(&folders), &Options::default(), &out).unwrap();
    let svg = fs_err::read_to_string(out.join("figures/labels-bars.svg")).unwrap();
    assert!(svg.contains("Pseudo-labels by method and data set, last round"), "{svg}");
}

#[test]
fn a_report_without_a_run_is_an_error_that_names_the_folders() {
    let folders = Folders::new();
    folders.run("broken", 0, 86.0, FEW);
    fs_err::write(folders.path("broken").join(files::ROUNDS), "").unwrap();
    let out = folders.path("report");
    let written = write_report(&study(&folders), &Options::default(), &out);
    let error = written.unwrap_err().to_string();
    assert!(error.starts_with("there is no run to show\nnot shown: "), "{error}");
    assert!(error.contains("broken: rounds.jsonl: no round was recorded"), "{error}");
    assert!(!out.exists());
}

#[test]
fn figures_say_what_they_leave_out() {
    let folders = Folders::new();
    for cell in 0..10 {
        let (name, batch) = (format!("cell{cell}"), format!("batch = {}", cell + 1));
        folders.run(&name, 0, 86.0, &[FEW[0], ("batch = 10", &batch)]);
        rounds(&folders.path(&name), &[60.0, 86.0]);
    }
    let data = data(&folders);
    let figure = data.figures().find(|figure| figure.id.ends_with("-accuracy")).unwrap();
    assert!(figure.caption.contains("8 of 10 lines are shown at first"), "{}", figure.caption);
    assert!(figure.frames[0].chart.svg("x").contains("8 of 10 lines shown"));
}

#[test]
fn every_published_number_of_a_method_has_a_line() {
    let folders = Folders::new();
    let mixed = [FEW[0], ("server_mixup = false", "server_mixup = true")];
    for (name, changes) in [("one", FEW), ("two", &mixed[..])] {
        folders.run(name, 0, 86.0, changes);
        rounds(&folders.path(name), &[60.0, 86.0]);
    }
    let data = data(&folders);
    let figure = data.figures().find(|figure| figure.id.ends_with("-accuracy")).unwrap();
    let fedanchor_report::chart::Chart::Lines(lines) = &figure.frames[0].chart else { panic!() };
    let names: Vec<&str> = lines.references.iter().map(|one| one.name.as_str()).collect();
    let wanted =
        ["fedanchor (server_mixup=false), published", "fedanchor (server_mixup=true), published"];
    assert_eq!(names, wanted);
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
    assert!(
        problem.ends_with("rounds.jsonl: line 3 is incomplete: shown up to round 1"),
        "{problem}"
    );
    let data = data(&folders);
    assert!(data.tables().next().unwrap().rows[0].contains(&"not finished".to_owned()));
}

/// As in a table, the rounds of a run may have done harm: the accuracy of every run here starts at 5 %.
#[test]
fn a_run_that_ends_below_its_start_is_named() {
    let folders = Folders::new();
    for (name, seed, last) in [("better", 0, 5.0), ("worse", 1, 4.25)] {
        folders.run(name, seed, last, FEW);
        rounds(&folders.path(name), &[5.0, last]);
    }
    let study = study(&folders);
    let [problem] = &study.problems[..] else { panic!("{:?}", study.problems) };
    let wanted = "worse: the rounds made the model worse: 5.00 % before them, 4.25 % after";
    assert!(problem.ends_with(wanted), "{problem}");
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
    let evil = "</script></svg>' onload=alert(1) <img src=x onerror=alert(1)>";
    let folders = Folders::new();
    let name = format!("name = \"{evil}\"");
    for (name, changes) in [("x", &[FEW[0], ("name = \"cifar10\"", &name)][..]), ("y", FEW)] {
        folders.run(name, 0, 86.0, changes);
        rounds(&folders.path(name), &[60.0, 86.0]);
    }
    let table = format!("class,\"{evil}\",\"b\"\" onload=alert(1)\"\n\"{evil}\",3,4\n");
    fs_err::write(folders.path("x").join(files::CONFUSION), table).unwrap();
    let html = page(&data(&folders));
    assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"));
    // The one script is that of the page, which its policy names by its hash.
    assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (1, 1));
    assert!(html.contains("script-src 'sha256-") && !html.contains("script-src 'unsafe-inline'"));
    // Inside the page and in files, every drawing is well-formed, without elements or attributes from a name.
    let drawings = html.split("<svg ").skip(1).map(|part| part.split("</svg>").next().unwrap());
    let mut drawings: Vec<String> = drawings.map(|inner| format!("<svg {inner}</svg>")).collect();
    let out = folders.path("report");
    write_report(&study(&folders), &Options::default(), &out).unwrap();
    for file in fs_err::read_dir(out.join("figures")).unwrap() {
        let path = file.unwrap().path();
        assert!(path.extension().is_some_and(|kind| kind == "svg"), "{}", path.display());
        drawings.push(fs_err::read_to_string(&path).unwrap());
    }
    assert!(drawings.len() > 10, "{}", drawings.len());
    for drawing in drawings {
        roxmltree::Document::parse(&drawing).unwrap();
        assert!(!drawing.contains("<img") && !drawing.contains("<script"), "{drawing}");
        for inside in drawing.split('<').map(|tag| tag.split('>').next().unwrap()) {
            let attributes = inside.split('"').step_by(2);
            assert!(attributes.clone().all(|name| !name.contains("onload")), "{inside}");
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
    let index = write_report(&study, &Options::default(), &out).unwrap();
    let html = fs_err::read_to_string(&index).unwrap();
    assert!(html.starts_with("<!doctype html>"));
    let data = PageData::new(&study, &Options::default());
    assert!(data.figures().count() >= 6);
    for figure in data.figures() {
        let file = out.join("figures").join(format!("{}.svg", figure.id));
        let svg = fs_err::read_to_string(&file).unwrap();
        let drawn = roxmltree::Document::parse(&svg).unwrap();
        assert_eq!(drawn.root_element().tag_name().name(), "svg");
        assert!(drawn.root_element().attribute("font-family").unwrap().ends_with("sans-serif"));
    }
    for table in data.tables() {
        assert!(out.join("tables").join(format!("{}.csv", table.id)).exists());
        assert!(out.join("tables").join(format!("{}.tex", table.id)).exists());
    }
    // Again into the same folder, but never over something else.
    write_report(&study, &Options::default(), &out).unwrap();
    let error = write_report(&study, &Options::default(), &folders.path("runs/x"));
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
            let data = PageData::new(&study, &Options::default());
            prop_assert!(page(&data).contains("</html>"));
            for figure in data.figures() {
                let svg = figure.frames[0].chart.svg(&figure.title);
                prop_assert!(roxmltree::Document::parse(&svg).is_ok(), "{}", figure.id);
            }
        }
    }
}
