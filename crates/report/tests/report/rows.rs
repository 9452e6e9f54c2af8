//! Which runs form a row, and its numbers.

use crate::folders::{Folders, Made};
use fedanchor_report::{Average, Table, find_runs, render};

fn settings(table: &Table) -> Vec<&str> {
    table.rows.iter().map(|row| row.settings.as_str()).collect()
}

/// Seed, device, precision, comparison, checkpoints and the location of the data do not make
/// another experiment.
#[test]
fn runs_of_one_experiment_are_averaged() {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    let machine = [("\"cpu\"", "\"cuda:0\""), ("\"f32\"", "\"bf16\"")];
    folders.run("b", 1, 81.0, &[&machine[..], &[("compare = false", "compare = true")]].concat());
    let checkpoint = ("[server]", "[checkpoint]\nevery = 50\nkeep = 3\n\n[server]");
    folders.run("c", 2, 85.0, &[("path = \"data/cifar10\"\n", ""), checkpoint]);
    let table = folders.table();
    let [row] = &table.rows[..] else { panic!("{table:?}") };
    assert_eq!((row.seeds, row.rounds, row.settings.as_str()), (3, 500, ""));
    // Mean 82, squares 4 + 1 + 9 = 14, divided by 2.
    assert_eq!(row.last, Average { mean: 82.0, std: Some(7.0_f64.sqrt()) });
    assert_eq!(row.best, Average { mean: 83.0, std: Some(7.0_f64.sqrt()) });
    assert!(table.notes().is_empty());
}

/// The floor is shown where every run of the row has one.
#[test]
fn the_floor_is_that_of_runs_that_were_compared_with_it() {
    let folders = Folders::new();
    for (name, seed) in [("a", 0), ("b", 1)] {
        folders.run(name, seed, 80.0, &[]);
    }
    assert_eq!(folders.table().rows[0].floor, None);
    let compare = |name: &str, floor: &str| {
        let path = folders.path(name).join("summary.json");
        let text = fs_err::read_to_string(&path).unwrap();
        let none = "\"server_only_accuracy\":null";
        assert!(text.contains(none));
        let some = format!("\"server_only_accuracy\":{floor}");
        fs_err::write(&path, text.replace(none, &some)).unwrap();
    };
    compare("a", "60.0");
    assert_eq!(folders.table().rows[0].floor, None);
    compare("b", "64.0");
    let table = folders.table();
    assert_eq!(table.rows[0].floor, Some(Average { mean: 62.0, std: Some(8.0_f64.sqrt()) }));
    let text = render::text(&table);
    assert!(text.contains("62.00 ± 2.83") && text.contains("anchors alone: the best"), "{text}");
}

/// A setting that an earlier version did not have gets its default when configs are completed.
#[test]
fn settings_of_later_versions_do_not_split_rows() {
    let folders = Folders::new();
    folders.run("old", 0, 80.0, &[("epochs = 5\n", "")]);
    folders.run("new", 1, 82.0, &[]);
    folders.run("other", 2, 70.0, &[("epochs = 5", "epochs = 6")]);
    let complete = |config: &toml::Table| {
        let mut config = config.clone();
        let client = config.get_mut("client")?.as_table_mut()?;
        client.entry("epochs").or_insert(toml::Value::Integer(5));
        toml::to_string(&config).ok()
    };
    let table = |complete: &dyn Fn(&toml::Table) -> Option<String>| {
        Table::new(&find_runs(&[folders.path("")], complete).unwrap())
    };
    let completed = table(&complete);
    let rows: Vec<(usize, f64)> =
        completed.rows.iter().map(|row| (row.seeds, row.last.mean)).collect();
    assert_eq!(rows, [(2, 81.0), (1, 70.0)]);
    assert_eq!(settings(&completed), ["client.epochs=5", "client.epochs=6"]);
    // A config that cannot be completed is used as it is.
    assert_eq!(table(&|_| None).rows.len(), 3);
}

#[test]
fn a_repeated_seed_counts_once() {
    let folders = Folders::new();
    folders.run("b", 0, 90.0, &[]);
    folders.run("a", 0, 80.0, &[]);
    folders.run("c", 1, 82.0, &[]);
    let table = folders.table();
    assert_eq!((table.rows[0].seeds, table.rows[0].last.mean), (2, 81.0));
    assert_eq!(table.rows[0].notes, [1]);
    assert_eq!(
        folders.relative(&table.notes().join("\n")),
        "[1] seed 0: RUNS/b is left out: RUNS/a is a run of the same experiment and seed"
    );
}

#[test]
fn rows_of_one_heading_show_the_keys_that_differ() {
    let folders = Folders::new();
    let mix = ("server_mixup = false", "server_mixup = true");
    let batch = ("batch = 10", "batch = 32");
    folders.run("plain", 0, 80.0, &[]);
    folders.run("mix", 0, 80.0, &[mix]);
    folders.run("mix-batch", 0, 80.0, &[mix, batch]);
    // Another heading: its keys do not appear in the other rows.
    folders.run(
        "svhn",
        0,
        80.0,
        &[("\"cifar10\"", "\"svhn\""), ("threshold = 0.6", "threshold = 0.7")],
    );
    let wanted = [
        "client.batch=10, method.server_mixup=false",
        "client.batch=10, method.server_mixup=true",
        "client.batch=32, method.server_mixup=true",
        "",
    ];
    assert_eq!(settings(&folders.table()), wanted);
}

#[test]
fn a_key_that_only_some_configs_have_keeps_its_position() {
    let folders = Folders::new();
    let rule = "threshold = { rule = \"quantile\", to = 0.8 }";
    folders.run("a", 0, 80.0, &[]);
    folders.run(
        "b",
        0,
        80.0,
        &[("threshold = 0.6", rule), ("server_mixup = false", "server_mixup = true")],
    );
    folders.run("c", 0, 80.0, &[("[server]\n", "[server]\nbatch = 50\n")]);
    let wanted = [
        "method.threshold.rule=quantile, method.threshold.to=0.8, method.server_mixup=true",
        "method.threshold=0.6, method.server_mixup=false",
        "server.batch=50, method.threshold=0.6, method.server_mixup=false",
    ];
    assert_eq!(settings(&folders.table()), wanted);
}

#[test]
fn different_images_under_one_name_are_different_rows() {
    let folders = Folders::new();
    folders.run("a", 0, 80.0, &[]);
    folders.run("b", 1, 90.0, &[]);
    let file = folders.path("b/summary.json");
    let text = fs_err::read_to_string(&file).unwrap();
    fs_err::write(&file, text.replace("35d6fc94154a73218c01", "00d6fc94154a73218c01")).unwrap();
    let wanted = ["data_fingerprint=00d6fc94154a", "data_fingerprint=35d6fc94154a"];
    assert_eq!(settings(&folders.table()), wanted);
}

#[test]
fn the_best_row_of_a_task_leads_and_supervised_is_excluded() {
    let folders = Folders::new();
    let method = |name| ("name = \"fedanchor\"", name);
    folders.run("a", 0, 95.0, &[method("name = \"supervised\"")]);
    folders.run("b", 0, 70.0, &[method("name = \"semifl\"")]);
    folders.run("c", 0, 80.0, &[]);
    folders.run("d", 0, 80.001, &[("threshold = 0.6", "threshold = 0.5")]);
    // The only row of its task.
    folders.run("e", 0, 60.0, &[("alpha = 1000.0", "alpha = 0.1")]);
    let leads: Vec<_> = folders
        .table()
        .rows
        .iter()
        .map(|row| (row.heading.method.clone(), row.heading.partition.to_string(), row.leads))
        .collect();
    let wanted = [
        ("supervised", "LDA 1000", false),
        ("semifl", "LDA 1000", false),
        ("fedanchor", "LDA 1000", true),
        ("fedanchor", "LDA 1000", true),
        ("fedanchor", "LDA 0.1", false),
    ];
    assert_eq!(leads, wanted.map(|(method, task, leads)| (method.into(), task.into(), leads)));
}

#[test]
fn folders_without_a_finished_run_give_an_empty_table() {
    let folders = Folders::new();
    folders.make("a", Made { changes: &[], last: 0.0, best: 0.0, rounds: None });
    let table = folders.table();
    assert!(table.rows.is_empty());
    assert_eq!(table.notes().len(), 1);
}

/// A row whose rounds lost accuracy is marked, with the seed and both numbers.
#[test]
fn a_run_that_ends_below_its_start_is_marked() {
    let folders = Folders::new();
    folders.run("better", 0, 5.0, &[]); // the start of every run here is at 5 %
    folders.run("worse", 1, 4.25, &[]);
    let table = folders.table();
    let notes = ["[1] seed 1: the rounds made the model worse: 5.00 % before them, 4.25 % after"];
    assert_eq!(table.notes(), notes);
    assert_eq!(table.rows[0].notes, [1]);
}
