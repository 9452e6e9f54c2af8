//! `fedanchor table`: run folders as a table.

use crate::cli::{TableArgs, TableFormat};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_report::{Format, Table, find_runs, render};

pub fn table(args: &TableArgs, printer: &Printer) -> Result<()> {
    let runs = find_runs(&args.folders)?.completed(&super::complete);
    let table = Table::new(&runs);
    if table.rows.is_empty() {
        table.notes().iter().for_each(|note| printer.status(note));
        bail!("no finished run");
    }
    let format = match args.format {
        _ if args.output.json => Format::Json,
        TableFormat::Text => Format::Text,
        TableFormat::Markdown => Format::Markdown,
        TableFormat::Csv => Format::Csv,
        TableFormat::Latex => Format::Latex,
    };
    printer.text(&render(&table, format));
    if args.format == TableFormat::Csv {
        table.notes().iter().for_each(|note| printer.status(note));
    }
    Ok(())
}
