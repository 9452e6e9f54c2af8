//! `fedanchor data list`: the data sets that are known by name.

use super::bytes;
use crate::cli::JsonArgs;
use crate::printer::Printer;
use anyhow::Result;
use fedanchor_data::{formats, sample};
use serde::Serialize;

/// A data set.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    /// Bytes to download; none for the embedded sample.
    bytes: Option<u64>,
    about: &'static str,
    terms: Option<&'static str>,
}

pub fn list(args: JsonArgs, printer: &Printer) -> Result<()> {
    let about = "part of MNIST, 6,000 training and 1,000 test images";
    let embedded = Listed { name: sample::NAME, bytes: None, about, terms: None };
    let listed: Vec<Listed> = std::iter::once(embedded)
        .chain(formats::PUBLISHED.iter().map(|data| Listed {
            name: data.name,
            bytes: Some(data.bytes()),
            about: data.about,
            terms: Some(data.terms),
        }))
        .collect();
    if args.json {
        printer.json(&listed);
        return Ok(());
    }
    for Listed { name, bytes: size, about, terms } in listed {
        let size = size.map_or("built in".to_owned(), bytes);
        let terms = terms.map_or(String::new(), |terms| format!("; {terms}"));
        printer.line(format!("{name:14} {size:>10}  {about}{terms}"));
    }
    Ok(())
}
