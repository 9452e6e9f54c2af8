//! A table as JSON, for programs: every number with all its digits, notes as text where they apply.

use crate::heading::{Heading, Partition};
use crate::published::Published;
use crate::table::{Average, Row, Table};
use serde::Serialize;

#[derive(Serialize)]
struct JsonTable<'a> {
    rows: Vec<JsonRow<'a>>,
    /// Runs that are in no row, and why.
    left_out: &'a [String],
}

#[derive(Serialize)]
struct JsonRow<'a> {
    data: &'a str,
    model: &'a str,
    anchors: usize,
    partition: Partition,
    method: &'a str,
    preset: &'a str,
    settings: &'a str,
    rounds: u32,
    seeds: usize,
    #[serde(rename = "final")]
    last: Average,
    best: Average,
    anchors_alone: Option<Average>,
    published: Option<Published>,
    difference: Option<f64>,
    leads: bool,
    notes: Vec<&'a str>,
}

pub(crate) fn json(table: &Table) -> String {
    let rows = table.rows.iter().map(|row| json_row(row, table)).collect();
    let text = serde_json::to_string_pretty(&JsonTable { rows, left_out: table.left_out() });
    text.expect("plain structs have a JSON form") + "\n"
}

fn json_row<'a>(row: &'a Row, table: &'a Table) -> JsonRow<'a> {
    let Heading { data, model, anchors, partition, method, preset } = &row.heading;
    JsonRow {
        data,
        model,
        anchors: *anchors,
        partition: *partition,
        method,
        preset,
        settings: &row.settings,
        rounds: row.rounds,
        seeds: row.seeds,
        last: row.last,
        best: row.best,
        anchors_alone: row.floor,
        published: row.published,
        difference: row.difference(),
        leads: row.leads,
        notes: row.notes.iter().filter_map(|&number| table.remark(number)).collect(),
    }
}
