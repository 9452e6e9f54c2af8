//! The page of a report: one file that needs nothing else, from a folder or a server. In a folder, every figure is also
//! there as SVG, and every table as CSV and LaTeX.
//!
//! Figures, tables and notes are written as HTML here, so that the page can be read without its script, which shows
//! values on hover, switches lines and saves figures. Everything that comes from a run is escaped. Should markup of a
//! run come through nevertheless, it cannot execute anything: the page's policy allows this one script, by its hash.

use crate::chart::Chart;
use crate::error::{ReportError, Result};
use crate::escape::markup;
use crate::figures::{self, Figure, Options};
use crate::study::Study;
use crate::tables::{self, TextTable};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fedanchor_record::words::printable;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The file with the page.
const PAGE: &str = "index.html";
/// What the title of every page ends with.
const MARK: &str = "· fedanchor report</title>";

/// Problems of which more are folded.
const MOST_PROBLEMS: usize = 5;

/// What the page shows.
#[derive(Debug)]
pub struct PageData {
    /// Title of the page.
    pub title: String,
    /// Figures over all sections.
    pub overview: Vec<Figure>,
    /// The sections.
    pub sections: Vec<SectionData>,
    /// Runs and files that are missing or cannot be read.
    pub problems: Vec<String>,
    /// What the runs are doing, on a page that asks its server for newer versions.
    pub live: Option<String>,
}

/// A section of the page.
#[derive(Debug)]
pub struct SectionData {
    pub id: String,
    pub title: String,
    pub tables: Vec<TextTable>,
    /// What its runs noted.
    pub notes: Vec<String>,
    pub figures: Vec<Figure>,
}

impl PageData {
    /// Computes everything that a page over a study shows.
    pub fn new(study: &Study, options: &Options) -> Self {
        let sections = study.sections.iter().map(|section| SectionData {
            id: section.id.clone(),
            title: section.title.clone(),
            tables: tables::of_section(section),
            notes: tables::notes(section),
            figures: figures::of_section(section, options),
        });
        Self {
            title: match &study.sections[..] {
                [only] => only.title.clone(),
                all => format!("{} tasks", all.len()),
            },
            overview: figures::of_study(study),
            sections: sections.collect(),
            problems: study.problems.clone(),
            live: None,
        }
    }

    /// All figures.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.overview.iter().chain(self.sections.iter().flat_map(|section| &section.figures))
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &TextTable> {
        self.sections.iter().flat_map(|section| &section.tables)
    }

    /// Links to the sections, if there are several.
    fn contents(&self) -> String {
        if self.sections.len() < 2 {
            return String::new();
        }
        let link = |section: &SectionData| {
            let [id, title] = [&section.id, &section.title].map(|text| markup(text));
            format!("<li><a href=\"#{id}\">{title}</a></li>\n")
        };
        format!("<ul>{}</ul>", self.sections.iter().map(link).collect::<String>())
    }

    /// Everything below the header.
    fn main(&self) -> String {
        let open = self.problems.len() <= MOST_PROBLEMS;
        let mut main = list("problems", "Problems", &self.problems, open);
        let several = self.sections.len() > 1;
        if several {
            main += &figure_grid(&self.overview);
        }
        for section in &self.sections {
            let id = markup(&section.id);
            main += &format!("<section id=\"{id}\">\n");
            if several {
                main += &format!("<h2>{}</h2>\n", markup(&section.title));
            }
            let mut tables = section.tables.iter().map(|table| self.table(table));
            main += &tables.next().unwrap_or_default();
            main += &list(&format!("{id}-notes"), "Notes", &section.notes, true);
            main += &figure_grid(&section.figures);
            main.extend(tables);
            main += "</section>\n";
        }
        if !several {
            main += &figure_grid(&self.overview);
        }
        main
    }

    fn table(&self, table: &TextTable) -> String {
        let line = |name: &str, cells: &[String]| -> String {
            let cell = |(column, text): (usize, &String)| {
                let class = if table.is_number(column) { " class=\"number\"" } else { "" };
                format!("<{name}{class}>{}</{name}>", markup(text))
            };
            format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
        };
        let (title, id) = (markup(&table.title), markup(&table.id));
        let head = line("th", &table.columns);
        let rows: String = table.rows.iter().map(|row| line("td", row)).collect();
        // Only a report in a folder comes with files.
        let files = match self.live {
            Some(_) => String::new(),
            None => format!(
                "<p class=\"files\"><a href=\"tables/{id}.csv\">CSV</a> <a href=\"tables/{id}.tex\">LaTeX</a></p>"
            ),
        };
        format!(
            "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\"><table><caption>{title}</caption>\n\
             <thead>{head}</thead>\n<tbody>{rows}</tbody></table>{files}</div>\n"
        )
    }
}

/// A list that can be folded, if it has items.
fn list(id: &str, title: &str, items: &[String], open: bool) -> String {
    if items.is_empty() {
        return String::new();
    }
    let (open, count) = (if open { " open" } else { "" }, items.len());
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", markup(item))).collect();
    format!(
        "<details id=\"{id}\"{open}><summary>{title} ({count})</summary><ul>{items}</ul></details>\n"
    )
}

fn figure_grid(figures: &[Figure]) -> String {
    let mut grid = String::from("<div class=\"figures\">\n");
    for figure in figures {
        let Figure { choice, chosen, frames, .. } = figure;
        let [id, title, caption] =
            [&figure.id, &figure.title, &figure.caption].map(|text| markup(text));
        grid += &format!("<figure id=\"{id}\" data-choice=\"{choice}\"><h3>{title}</h3>\n");
        for (place, frame) in frames.iter().enumerate() {
            let hidden = if place == *chosen { "" } else { " hidden" };
            let (name, svg) = (markup(&frame.name), frame.chart.svg(&figure.title_of(frame)));
            grid += &format!("<div class=\"frame\" data-name=\"{name}\"{hidden}>{svg}</div>\n");
        }
        grid += &format!("<figcaption>{caption}</figcaption></figure>\n");
    }
    grid + "</div>\n"
}

/// The page, as HTML.
pub fn page(data: &PageData) -> String {
    fill(TEMPLATE, |place| match place {
        "title" => markup(&data.title),
        "style" => STYLE.to_owned(),
        "hash" => STANDARD.encode(Sha256::digest(SCRIPT)),
        "live" => markup(data.live.as_deref().unwrap_or_default()),
        "contents" => data.contents(),
        "main" => data.main(),
        "script" => SCRIPT.to_owned(),
        other => other.to_owned(),
    })
}

/// A template with its places, which are between `@@`, filled.
pub(crate) fn fill(template: &str, content: impl Fn(&str) -> String) -> String {
    let parts = template.split("@@").enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { part.to_owned() } else { content(part) }).collect()
}

/// Writes the report of a study into a folder, in the place of an earlier one, and returns the path of its page.
pub fn write_report(study: &Study, options: &Options, folder: &Path) -> Result<PathBuf> {
    if study.sections.is_empty() {
        let problems = study.problems.iter().map(|problem| format!("\n{}", printable(problem)));
        let problems: String = problems.collect();
        return Err(ReportError::Other(format!("there is no run to show{problems}")));
    }
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
        fs_err::write(figure_folder.join(format!("{name}.svg")), chart.svg(title))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_template_is_known() {
        let places: Vec<&str> = TEMPLATE.split("@@").skip(1).step_by(2).collect();
        assert_eq!(
            places,
            ["hash", "title", "style", "title", "live", "contents", "main", "script"]
        );
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for text in [TEMPLATE, STYLE, SCRIPT] {
            for wanted in ["http://", "https://", "@import", "url("] {
                let lines = text.lines().filter(|line| line.contains(wanted));
                let foreign: Vec<&str> = lines.filter(|line| !line.contains("w3.org")).collect();
                assert!(foreign.is_empty(), "{foreign:?}");
            }
        }
    }
}
