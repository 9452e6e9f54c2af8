//! A table as text, which ends with a newline.
//!
//! Three of the formats are for people: they share the columns, omit empty ones, and explain them
//! in notes below. CSV is for programs: always the same columns, plain numbers, no notes; so is
//! JSON, with all digits and the notes. A crate for tables was rejected: aligned columns take a
//! dozen lines, and none writes LaTeX.

use crate::escape;
use crate::heading::Heading;
use crate::table::{Average, Row, Table, rounded};
use serde::Serialize;

struct Column {
    title: &'static str,
    /// Right-aligned: for integers.
    right: bool,
    cells: Vec<String>,
}

/// The columns that are not empty. `last` formats the final accuracy, which a format may mark.
fn columns(table: &Table, last: fn(&Row) -> String) -> Vec<Column> {
    let column = |title, right, cell: &dyn Fn(&Row) -> String| Column {
        title,
        right,
        cells: table.rows.iter().map(cell).collect(),
    };
    let mut columns = vec![
        column("data", false, &|row| row.heading.data.clone()),
        column("model", false, &|row| row.heading.model.clone()),
        column("anchors", true, &|row| row.heading.anchors.to_string()),
        column("partition", false, &|row| row.heading.partition.to_string()),
        column("method", false, &|row| row.heading.method.clone()),
        column("preset", false, &|row| row.heading.preset.clone()),
        column("settings", false, &|row| row.settings.clone()),
        column("seeds", true, &|row| row.seeds.to_string()),
        column("anchors alone", false, &|row| row.floor.as_ref().map_or(String::new(), shown)),
        column("final", false, &last),
        column("best", false, &|row| shown(&row.best)),
        column("published", false, &|row| {
            row.published.map_or(String::new(), |published| published.to_string())
        }),
        column("difference", false, &|row| row.difference.map_or(String::new(), signed)),
        column("note", false, &|row| numbers(row, ", ")),
    ];
    columns
        .retain(|column| table.rows.is_empty() || column.cells.iter().any(|cell| !cell.is_empty()));
    columns
}

pub(crate) fn shown(figure: &Average) -> String {
    let mean = rounded(figure.mean);
    match figure.std {
        Some(std) => format!("{mean:.2} ± {:.2}", rounded(std)),
        None => format!("{mean:.2}"),
    }
}

/// With a sign, using a typographic minus; what rounds to zero is +0.00.
pub(crate) fn signed(difference: f64) -> String {
    let difference = rounded(difference);
    format!("{}{:.2}", if difference < 0.0 { '−' } else { '+' }, difference.abs())
}

fn numbers(row: &Row, between: &str) -> String {
    row.notes.iter().map(usize::to_string).collect::<Vec<_>>().join(between)
}

/// Explains the columns; `mark` is how the format marks the leading row.
fn legend(table: &Table, mark: Option<&str>) -> Vec<String> {
    let mut lines = vec![
        "final, best: test accuracy in percent, mean ± sample standard deviation over seeds; best \
         is optimistic because its round is chosen on the test images"
            .to_owned(),
    ];
    if table.rows.iter().any(|row| row.floor.is_some()) {
        lines.push(
            "anchors alone: the best test accuracy of three lengths of pre-training and of as many \
             rounds without clients"
                .to_owned(),
        );
    }
    if table.rows.iter().any(|row| row.published.is_some()) {
        lines.push(
            "published: Qiu et al., FedAnchor, arXiv 2402.10191, tables 1 to 3; difference: final \
             minus published"
                .to_owned(),
        );
    }
    if let Some(mark) = mark.filter(|_| table.rows.iter().any(|row| row.leads)) {
        lines.push(format!(
            "{mark}: highest final mean for the same data, model, anchors and partition, \
             excluding supervised"
        ));
    }
    lines
}

/// Aligned columns.
pub fn text(table: &Table) -> String {
    let all =
        columns(table, |row| format!("{}{}", if row.leads { '*' } else { ' ' }, shown(&row.last)));
    // Values that all rows share are printed once, to save width.
    let (shared, columns): (Vec<Column>, Vec<Column>) = all.into_iter().partition(|column| {
        let task = ["data", "model", "anchors", "partition", "preset"].contains(&column.title);
        let cells = &column.cells;
        task && cells.len() > 1 && cells.iter().all(|cell| *cell == cells[0])
    });
    let titles = columns.iter().map(|column| column.title.to_owned()).collect();
    let row = |index: usize| columns.iter().map(|column| column.cells[index].clone()).collect();
    let rows: Vec<Vec<String>> =
        std::iter::once(titles).chain((0..table.rows.len()).map(row)).collect();
    let mut lines = escape::aligned(&rows, |column| columns[column].right);
    let whole = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
    lines.insert(1, "-".repeat(whole));
    let mut text = String::new();
    if !shared.is_empty() {
        let named = shared.iter().map(|column| format!("{} {}", column.title, column.cells[0]));
        let named = named.collect::<Vec<_>>().join(", ");
        text += &format!("same in all rows: {}\n\n", escape::one_line(&named));
    }
    text += &(lines.join("\n") + "\n");
    text.push('\n');
    for note in legend(table, Some("*")).into_iter().chain(table.notes()) {
        text += &(escape::one_line(&note) + "\n");
    }
    text
}

/// A pipe table.
pub fn markdown(table: &Table) -> String {
    let columns = columns(table, |row| shown(&row.last));
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(columns.iter().map(|column| column.title.to_owned()).collect());
    let rule = columns.iter().map(|column| if column.right { "---:" } else { "---" });
    text += &line(rule.map(str::to_owned).collect());
    for (index, row) in table.rows.iter().enumerate() {
        let cells = columns.iter().map(|column| {
            let cell = escape::markdown(&column.cells[index]);
            if row.leads && column.title == "final" { format!("**{cell}**") } else { cell }
        });
        text += &line(cells.collect());
    }
    text.push('\n');
    for note in legend(table, Some("bold")).into_iter().chain(table.notes()) {
        text += &format!("- {}\n", escape::markdown(&note));
    }
    text
}

/// A `tabular` for the package `booktabs`.
pub fn latex(table: &Table) -> String {
    let mut columns = columns(table, |row| shown(&row.last));
    // The notes are comments, so their numbers are too.
    columns.retain(|column| column.title != "note");
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    let right = |column: usize| columns[column].right;
    let rows = table.rows.iter().enumerate().map(|(index, row)| {
        let cells = columns.iter().map(|column| column.cells[index].as_str()).collect();
        let notes = numbers(row, ", ");
        (cells, if notes.is_empty() { notes } else { format!(" % [{notes}]") })
    });
    let mut text = escape::latex_table(&titles, right, rows);
    for note in legend(table, None).into_iter().chain(table.notes()) {
        text += &format!("% {}\n", escape::one_line(&note));
    }
    text
}

/// The table as an object, for programs: every number with all its digits, notes as text where they apply.
pub fn json(table: &Table) -> String {
    #[derive(Serialize)]
    struct Whole<'a> {
        rows: Vec<WithNotes<'a>>,
        left_out: &'a [String],
    }
    #[derive(Serialize)]
    struct WithNotes<'a> {
        #[serde(flatten)]
        row: &'a Row,
        notes: Vec<&'a str>,
    }
    let rows = table.rows.iter().map(|row| {
        let notes = row.notes.iter().map(|&number| table.remarks[number - 1].as_str());
        WithNotes { row, notes: notes.collect() }
    });
    let whole = Whole { rows: rows.collect(), left_out: &table.left_out };
    serde_json::to_string_pretty(&whole).expect("plain structs have a JSON form") + "\n"
}

/// Comma-separated values with a header, without [`Table::notes`].
pub fn csv(table: &Table) -> String {
    let head = "data,model,anchors,partition,method,preset,settings,rounds,seeds,final_mean,final_std,best_mean,\
                best_std,anchors_alone_mean,anchors_alone_std,published_mean,published_std,difference,notes";
    // Six decimals hide binary rounding and exceed the precision of any accuracy.
    let plain = |number: f64| ((number * 1e6).round() / 1e6).to_string();
    let number = |number: Option<f64>| number.map_or(String::new(), plain);
    let rows = table.rows.iter().map(|row| {
        let Heading { data, model, anchors, partition, method, preset } = &row.heading;
        vec![
            data.clone(),
            model.clone(),
            anchors.to_string(),
            partition.to_string(),
            method.clone(),
            preset.clone(),
            row.settings.clone(),
            row.rounds.to_string(),
            row.seeds.to_string(),
            number(Some(row.last.mean)),
            number(row.last.std),
            number(Some(row.best.mean)),
            number(row.best.std),
            number(row.floor.map(|floor| floor.mean)),
            number(row.floor.and_then(|floor| floor.std)),
            number(row.published.map(|published| published.mean)),
            number(row.published.map(|published| published.std)),
            number(row.difference),
            numbers(row, " "),
        ]
    });
    escape::csv(head.split(','), rows)
}
