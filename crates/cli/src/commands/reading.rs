//! The progress of commands that read many pictures before they have anything to say.

use crate::printer::Printer;
use fedanchor_data::Progress;
use fedanchor_data::formats::Options;

/// Does work that reads pictures and shows how many are done, where a person is watching.
pub(super) fn watched<T>(
    printer: &Printer,
    what: &str,
    options: &Options,
    work: impl FnOnce(&Options) -> T,
) -> T {
    let template = format!("{what} [{{bar:30}}] {{pos}} of {{len}} pictures, {{eta}} left");
    let bar = printer.bar(0, &template);
    let shown = bar.clone();
    let progress = Progress::new(move |done, total| {
        shown.set_length(total as u64);
        shown.set_position(done as u64);
    });
    let outcome = work(&Options { progress, ..options.clone() });
    bar.finish_and_clear();
    outcome
}
