//! `fedanchor report`: run folders as a page with figures.

use crate::cli::ReportArgs;
use crate::printer::Printer;
use anyhow::{Context, Result};
use fedanchor_report::{Options, Study, read_histories, write_report};

pub fn report(args: &ReportArgs, printer: &Printer) -> Result<()> {
    let study = Study::new(read_histories(&args.folders, &super::complete)?);
    let cache = fedanchor_data::formats::cache_folder("t-sne");
    let options = Options { smooth: args.smooth.into(), round: args.round, cache };
    let page = write_report(&study, &options, &args.out)?;
    study.problems.iter().for_each(|problem| printer.status(format!("note: {problem}")));
    let runs: usize = study
        .sections
        .iter()
        .flat_map(|section| &section.experiments)
        .map(|experiment| experiment.runs.len())
        .sum();
    printer.line(format!("{} over {}", page.display(), super::counted(runs, "run", "runs")));
    if args.open {
        open::that(&page).with_context(|| format!("no browser could open {}", page.display()))?;
    }
    Ok(())
}
