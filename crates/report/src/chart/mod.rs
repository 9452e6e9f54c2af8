//! Charts as values, and their drawing: a [`Chart`] becomes SVG.
//!
//! The same SVG is a file and a part of the page of a report, so that a figure is drawn in one place. It can be read by
//! itself; what the page needs in addition is in attributes: every line is a group with `data-line` and its values, every
//! entry of a legend a group with `data-key`, in the same order. Colours are attributes, which a style sheet overrides.
//! A crate for charts was rejected: it would draw for files alone, and setting it up took as much code as drawing does.
//!
//! ```
//! use fedanchor_report::chart::{Axis, Chart, Line, Lines};
//!
//! let line = Line::new("FedAnchor", vec![[0.0, 78.9], [1.0, 85.2]]);
//! let (x, y) = (Axis::new("round"), Axis::new("test accuracy (%)"));
//! let chart = Chart::Lines(Lines { x, y, lines: vec![line], references: Vec::new() });
//! let svg = chart.svg("Accuracy");
//! # assert!(svg.contains("FedAnchor"));
//! ```

mod axis;
mod bars;
mod heat;
mod lines;
mod palette;
mod points;
mod sheet;
mod svg;

pub use axis::Axis;
pub use bars::Bars;
pub(crate) use bars::Series;
pub use heat::{Heat, Scale};
pub(crate) use lines::Reference;
pub use lines::{Line, Lines};
pub(crate) use points::ClassPoints;
pub use sheet::{Picture, Sheet};

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub enum Chart {
    /// Lines over a common axis.
    Lines(Lines),
    /// Bars in groups.
    Bars(Bars),
    /// A table of coloured cells.
    Heat(Heat),
    /// Points in a plane, by class.
    Points(Vec<ClassPoints>),
    /// Pictures in rows.
    Sheet(Sheet),
}

impl Chart {
    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Lines(lines) => lines.lines.iter().all(|line| line.points.is_empty()),
            Self::Bars(bars) => {
                bars.series.iter().all(|one| one.values.iter().all(Option::is_none))
            }
            Self::Heat(heat) => heat.values.iter().all(Vec::is_empty),
            Self::Points(classes) => classes.iter().all(|class| class.points.is_empty()),
            Self::Sheet(sheet) => sheet.rows.iter().all(|(_, pictures)| pictures.is_empty()),
        }
    }

    /// Draws the chart as SVG.
    pub fn svg(&self, title: &str) -> String {
        match self {
            Self::Lines(lines) => lines.svg(title),
            Self::Bars(bars) => bars.svg(title),
            Self::Heat(heat) => heat.svg(title),
            Self::Points(classes) => ClassPoints::svg(classes, title),
            Self::Sheet(sheet) => sheet.svg(title),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_in_every_chart() {
        let evil = "</svg>\"'\u{1b}\u{7}\n<script>&";
        let name = || evil.to_owned();
        let axis = || Axis::new(evil);
        let line = Line::new(evil, vec![[0.0, 61.0], [1.0, 62.0]]);
        let references = vec![Reference { name: name(), value: 61.5 }];
        let series = vec![Series { name: name(), values: vec![Some(1.0)], style: 0 }];
        let (columns, rows, values) = (vec![name()], vec![name()], vec![vec![1.0]]);
        let scale = Scale::Signed;
        let picture = Picture { png: String::new(), caption: vec![name()] };
        let charts = [
            Chart::Lines(Lines { x: axis(), y: axis(), lines: vec![line], references }),
            Chart::Bars(Bars { axis: axis(), groups: vec![name()], series, stacked: false }),
            Chart::Heat(Heat { x: name(), y: name(), columns, rows, values, label: name(), scale }),
            Chart::Points(vec![ClassPoints { name: name(), points: vec![[0.0, 1.0]] }]),
            Chart::Sheet(Sheet { columns: 1, rows: vec![(name(), vec![picture])] }),
        ];
        for chart in charts {
            let svg = chart.svg(evil);
            let tree = roxmltree::Document::parse(&svg).unwrap();
            let names: Vec<&str> = tree.descendants().map(|node| node.tag_name().name()).collect();
            assert!(!names.contains(&"script") && svg.matches("</svg>").count() == 1, "{svg}");
            assert!(
                !svg.contains(['\u{1b}', '\u{7}']) && svg.contains("&lt;script&gt;&amp;"),
                "{svg}"
            );
        }
    }
}
