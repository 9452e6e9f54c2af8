//! The page of a report: one file that needs nothing else, from a folder or a server.
//!
//! Figures, tables and notes are written as HTML here, so that the page can be read without its script, which shows
//! values on hover, switches lines and saves figures. Everything that comes from a run is escaped. Should markup of a
//! run come through nevertheless, it cannot execute anything: the page's policy allows this one script, by its hash.

use crate::escape::markup;
use crate::figures::{self, Figure, Options};
use crate::study::Study;
use crate::tables::{self, TextTable};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

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
            overview: figures::of_study(study, options),
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
