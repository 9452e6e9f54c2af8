//! A report as a folder: the page, every figure as SVG and PNG, every table as CSV and LaTeX.

use crate::chart::{Chart, png};
use crate::error::{ReportError, Result};
use crate::figures::{self, Figure, Options};
use crate::page::{PageData, page};
use crate::study::Study;
use fedanchor_record::words::printable;
use rayon::prelude::*;
use std::path::{Path, PathBuf};

/// The page.
const PAGE: &str = "index.html";
/// What the title of every page ends with.
const MARK: &str = "· fedanchor report</title>";
/// Pixels per unit of an SVG.
const SCALE: f32 = 2.0;

/// Writes the report of a study into a folder, in the place of an earlier one, and returns the path of its page.
pub fn write_report(study: &Study, options: &Options, folder: &Path) -> Result<PathBuf> {
    if study.sections.is_empty() {
        let problems = study.problems.iter().map(|problem| format!("\n{}", printable(problem)));
        let problems: String = problems.collect();
        return Err(ReportError::Other(format!("there is no run to show{problems}")));
    }
    figures::check_round(study, options)?;
    check_folder(folder)?;
    let data = PageData::new(study, options);
    let (figure_folder, table_folder) = (folder.join("figures"), folder.join("tables"));
    for folder in [&figure_folder, &table_folder] {
        if folder.exists() {
            fs_err::remove_dir_all(folder)?;
        }
        fs_err::create_dir_all(folder)?;
    }
    for table in data.tables() {
        fs_err::write(table_folder.join(&table.id).with_added_extension("csv"), table.csv())?;
        fs_err::write(table_folder.join(&table.id).with_added_extension("tex"), table.latex())?;
    }
    let files: Vec<(String, String, &Chart)> = data.figures().flat_map(files).collect();
    files.par_iter().try_for_each(|(name, title, chart)| {
        let svg = chart.svg(title);
        let file = figure_folder.join(name);
        let picture = png(&svg, SCALE).map_err(|error| ReportError::about(&file, error))?;
        fs_err::write(file.with_added_extension("svg"), svg)?;
        fs_err::write(file.with_added_extension("png"), picture)?;
        Ok::<(), ReportError>(())
    })?;
    let path = folder.join(PAGE);
    fedanchor_disk::write(&path, &[page(&data).as_bytes()])?;
    Ok(path)
}

/// A report replaces an earlier one, and nothing else.
fn check_folder(folder: &Path) -> Result<()> {
    let empty = !folder.exists() || fs_err::read_dir(folder)?.next().is_none();
    let page = folder.join(PAGE);
    let text = || fedanchor_disk::read_text(&page, fedanchor_disk::limit(&page));
    let earlier = || text().is_ok_and(|text| text.contains(MARK));
    if empty || page.exists() && earlier() {
        return Ok(());
    }
    let problem = "contains something that is not a report: name another folder with `--out`";
    Err(ReportError::about(folder, problem))
}

/// Name, title and content of each file of a figure. Of bars, only the chosen frame: there is one per round.
fn files(figure: &Figure) -> Vec<(String, String, &Chart)> {
    let frames = figure.frames.iter().enumerate();
    let files = frames.filter_map(|(place, frame)| {
        let name = match frame.chart {
            _ if figure.frames.len() == 1 => figure.id.clone(),
            Chart::Bars(_) if place == figure.chosen => figure.id.clone(),
            Chart::Bars(_) => return None,
            _ => format!("{}-{}", figure.id, place + 1),
        };
        Some((name, figure.title_of(frame), &frame.chart))
    });
    files.collect()
}
