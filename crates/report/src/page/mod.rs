//! The page of a report: one file that needs nothing else, from a folder or a server.
//!
//! The page gets the figures as values and draws them with Apache ECharts, which is embedded if
//! `make echarts` has fetched it before the build. A program built without it writes the same page with the
//! figures as plain SVG. Everything that comes from a run is set as text by the script, never as markup.

use crate::figures::{self, Embedding, Figure, Options};
use crate::study::Study;
use crate::tables::{self, TextTable};
use fedanchor_draw::{class_colours, line_colour};
use serde::Serialize;

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
#[cfg(echarts)]
const ECHARTS: Option<&str> = Some(include_str!(env!("ECHARTS_FILE")));
#[cfg(not(echarts))]
const ECHARTS: Option<&str> = None;

/// Colours that a page needs at most; more classes repeat them.
const COLOURS: usize = 100;

/// What the page shows, as its script reads it.
#[derive(Debug, Serialize)]
pub struct PageData {
    /// Title of the page.
    pub title: String,
    /// Figures over all sections.
    pub overview: Vec<Figure>,
    /// The sections.
    pub sections: Vec<SectionData>,
    /// Runs and files that are missing or cannot be read.
    pub problems: Vec<String>,
    /// What the runs are doing, on a page that asks its server for newer data.
    pub live: Option<String>,
    /// Rounds over which accuracies are smoothed at first.
    pub smooth: usize,
    line_colours: Vec<&'static str>,
    class_colours: Vec<String>,
}

/// A section of the page.
#[derive(Debug, Serialize)]
pub struct SectionData {
    /// The section's id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its tables.
    pub tables: Vec<TextTable>,
    /// What its runs noted.
    pub notes: Vec<String>,
    /// Its figures.
    pub figures: Vec<Figure>,
}

impl PageData {
    /// Computes everything that a page over a study shows.
    pub fn new(study: &Study, options: Options, embedding: &Embedding) -> Self {
        // The page smooths by itself, as far as its reader wants.
        let plain = Options { smooth: 1, ..options };
        let sections: Vec<SectionData> = study
            .sections
            .iter()
            .map(|section| SectionData {
                id: section.id.clone(),
                title: section.title.clone(),
                tables: tables::of_section(section),
                notes: tables::notes(section),
                figures: figures::of_section(section, plain, embedding),
            })
            .collect();
        let title = match &sections[..] {
            [only] => only.title.clone(),
            all => format!("{} tasks", all.len()),
        };
        Self {
            title,
            overview: figures::of_study(study, plain),
            sections,
            problems: study.problems.clone(),
            live: None,
            smooth: options.smooth.max(1),
            line_colours: (0..8).map(line_colour).collect(),
            class_colours: class_colours(COLOURS),
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

    /// The data as JSON.
    pub fn json(&self) -> String {
        json(self)
    }

    /// The same without the values of charts that a page shows as drawings.
    fn json_without_charts(&self) -> String {
        let mut data = serde_json::to_value(self).unwrap_or_default();
        let frames = |figures: &mut serde_json::Value| {
            let figures = figures.as_array_mut().into_iter().flatten();
            let frames = figures.flat_map(|figure| figure["frames"].as_array_mut()).flatten();
            for frame in frames {
                let chart = &mut frame["chart"];
                if chart["kind"] != "sheet" {
                    *chart = serde_json::json!({ "kind": chart["kind"] });
                }
            }
        };
        frames(&mut data["overview"]);
        let sections = data["sections"].as_array_mut().into_iter().flatten();
        sections.for_each(|section| frames(&mut section["figures"]));
        json(&data)
    }
}

/// As JSON. Only numbers, text and lists: this cannot fail.
fn json(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Short);
    drop(value.serialize(&mut serializer));
    String::from_utf8(bytes).unwrap_or_default()
}

/// Whole numbers without `.0`: a page holds a hundred thousand of them.
struct Short;

impl serde_json::ser::Formatter for Short {
    fn write_f64<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        value: f64,
    ) -> std::io::Result<()> {
        match value.fract() == 0.0 && value.abs() < 1e15 {
            true => write!(writer, "{}", value as i64),
            false => serde_json::ser::CompactFormatter.write_f64(writer, value),
        }
    }
}

/// The page, as HTML.
pub fn page(data: &PageData) -> String {
    // `<` would end the script element that holds the data.
    let json = if ECHARTS.is_some() { data.json() } else { data.json_without_charts() };
    let json = json.replace('<', "\\u003c");
    let mut drawings = String::new();
    if ECHARTS.is_none() {
        for figure in data.figures() {
            for (place, frame) in figure.frames.iter().enumerate() {
                let svg = frame.chart.svg(&figure.title);
                drawings.push_str(&format!(
                    "<template id=\"svg-{}-{place}\">{svg}</template>\n",
                    figure.id
                ));
            }
        }
    }
    let title = crate::escape::html(&data.title);
    let mut page = String::with_capacity(json.len() + 2_000_000);
    for (place, part) in TEMPLATE.split("@@").enumerate() {
        page.push_str(match (place % 2, part) {
            (0, text) => text,
            (_, "title") => &title,
            (_, "style") => STYLE,
            (_, "data") => &json,
            (_, "drawings") => &drawings,
            (_, "echarts") => ECHARTS.unwrap_or_default(),
            (_, "script") => SCRIPT,
            (_, other) => other,
        });
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_template_is_known() {
        let places: Vec<&str> = TEMPLATE.split("@@").skip(1).step_by(2).collect();
        assert_eq!(places, ["title", "style", "data", "drawings", "echarts", "script"]);
    }

    #[test]
    fn numbers_are_short_and_what_they_were() {
        let values = [0.0, -3.0, 76.25, 1e20, 1e-7];
        let text = json(&values);
        assert_eq!(text, "[0,-3,76.25,1e+20,1e-7]");
        assert_eq!(serde_json::from_str::<[f64; 5]>(&text).unwrap(), values);
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
