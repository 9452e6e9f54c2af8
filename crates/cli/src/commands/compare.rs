//! `fedanchor compare`: a comparison of two experiments.

use crate::cli::CompareArgs;
use crate::printer::Printer;
use anyhow::Result;
use fedanchor_report::{compare as compared, comparison_text};

pub fn compare(args: &CompareArgs, printer: &Printer) -> Result<()> {
    let comparison = compared(&args.a, &args.b, args.accuracy, &super::complete)?;
    args.output.print(printer, &comparison, || printer.text(&comparison_text(&comparison)));
    Ok(())
}
