//! What a chart shows.

use crate::sheet::Sheet;
use serde::Serialize;

/// A chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Chart {
    /// Lines over a common axis.
    Lines(Lines),
    /// Bars in groups.
    Bars(Bars),
    /// A table of coloured cells.
    Heat(Heat),
    /// Points in a plane, by class.
    Points(Points),
    /// Pictures in rows.
    Sheet(Sheet),
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// Where it begins, unless the values decide.
    pub min: Option<f64>,
    /// Where it ends, unless the values decide.
    pub max: Option<f64>,
    /// Whether only whole numbers have ticks, as on an axis of counts.
    pub whole: bool,
}

/// Lines over a common axis, with values to compare them with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lines {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
    /// Horizontal lines with a name.
    pub references: Vec<Reference>,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<[f64; 2]>,
    /// Lower and upper end of the band around each point; empty for none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub band: Vec<[f64; 2]>,
    /// Which colour and dash pattern it has: the same in all figures of a report.
    pub style: usize,
    /// Whether it is drawn unless a reader asks for it.
    pub shown: bool,
}

/// A value to compare lines with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reference {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: f64,
}

/// Bars in groups, side by side or on top of each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bars {
    /// What the groups are.
    pub x: Axis,
    /// The axis of the values.
    pub y: Axis,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// One bar per group each.
    pub series: Vec<Series>,
    /// Whether the bars of a group are stacked.
    pub stacked: bool,
}

/// The bars of one colour.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// A value per group, where there is one.
    pub values: Vec<Option<f64>>,
    /// Which colour it has.
    pub style: usize,
}

/// A table of coloured cells.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Heat {
    /// What the columns are.
    pub x: Axis,
    /// What the rows are.
    pub y: Axis,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows, the first at the top.
    pub rows: Vec<String>,
    /// Values by row.
    pub values: Vec<Vec<f64>>,
    /// What the values are.
    pub label: String,
    /// The colours.
    pub scale: Scale,
    /// Decimals of the values.
    pub decimals: usize,
}

/// The colours of a table of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// From nothing to much.
    Sequential,
    /// From -1 over 0 to 1.
    Signed,
}

/// Points in a plane, by class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Points {
    /// The classes.
    pub swarms: Vec<Swarm>,
}

/// The points of one class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Swarm {
    /// Name of the class.
    pub name: String,
    /// Its points.
    pub points: Vec<[f64; 2]>,
    /// Their centroid.
    pub centre: [f64; 2],
}

impl Axis {
    /// An axis whose values decide where it begins and ends.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), min: None, max: None, whole: false }
    }

    /// The same axis with fixed ends.
    pub fn within(self, min: f64, max: f64) -> Self {
        Self { min: Some(min), max: Some(max), ..self }
    }

    /// The same axis with ticks at whole numbers only.
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// The same axis beginning at 0.
    pub fn from_zero(self) -> Self {
        Self { min: Some(0.0), ..self }
    }
}

impl Line {
    /// A line without a band, in the first style.
    pub fn new(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        Self { name: name.into(), points, band: Vec::new(), style: 0, shown: true }
    }
}

impl Swarm {
    /// A class and its points.
    pub fn new(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        let count = points.len().max(1) as f64;
        let sum = points.iter().fold([0.0; 2], |sum, point| [sum[0] + point[0], sum[1] + point[1]]);
        Self { name: name.into(), points, centre: sum.map(|value| value / count) }
    }
}

impl Chart {
    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Lines(lines) => lines.lines.iter().all(|line| line.points.is_empty()),
            Self::Bars(bars) => {
                bars.series.iter().all(|series| series.values.iter().all(Option::is_none))
            }
            Self::Heat(heat) => heat.values.iter().all(Vec::is_empty),
            Self::Points(points) => points.swarms.iter().all(|swarm| swarm.points.is_empty()),
            Self::Sheet(sheet) => sheet.rows.iter().all(|(_, pictures)| pictures.is_empty()),
        }
    }
}
