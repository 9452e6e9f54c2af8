//! A table of coloured cells.

use super::axis::Plane;
use super::svg::{Svg, px, shortened, text_width};
use crate::escape;
use std::collections::BTreeMap;
use std::fmt::Write;

const WHITE: [u8; 3] = [255, 255, 255];
const BLUE: [u8; 3] = [70, 140, 205];
const ORANGE: [u8; 3] = [225, 130, 60];
/// Colours from one end of the scale to the other: neighbours look the same.
const LEVELS: f64 = 100.0;
/// Side of a cell.
const CELL: f64 = 32.0;
/// Rows and columns of a table with the values in its cells.
const MOST_CELLS: usize = 12;
/// Names on an axis.
const MOST_NAMES: usize = 40;
/// Characters of a name on an axis.
const LONGEST_NAME: usize = 24;

/// A table of coloured cells.
#[derive(Debug, Clone, PartialEq)]
pub struct Heat {
    /// What the columns are.
    pub x: String,
    /// What the rows are.
    pub y: String,
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
}

/// The colours of a table of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0 to the greatest value; without decimals.
    Sequential,
    /// From -1 over 0 to 1; with two decimals.
    Signed,
}

impl Heat {
    /// The values at both ends of the scale.
    fn ends(&self) -> [f64; 2] {
        match self.scale {
            Scale::Sequential => {
                let greatest = self.values.iter().flatten().copied().fold(0.0, f64::max);
                [0.0, if greatest > 0.0 { greatest } else { 1.0 }]
            }
            Scale::Signed => [-1.0, 1.0],
        }
    }

    /// Decimals of the values.
    fn decimals(&self) -> usize {
        if self.scale == Scale::Signed { 2 } else { 0 }
    }

    /// The colour of a share of the scale. Black text can be read on all of them.
    fn colour(&self, share: f64) -> String {
        match self.scale {
            Scale::Sequential => mixed(WHITE, BLUE, share),
            Scale::Signed if share < 0.5 => mixed(ORANGE, WHITE, 2.0 * share),
            Scale::Signed => mixed(WHITE, BLUE, 2.0 * share - 1.0),
        }
    }

    pub(super) fn svg(&self, title: &str) -> String {
        let mut svg = Svg::new(title, "");
        let side =
            |count: usize| px((count as f64 * CELL).clamp(160.0, 560.0) / count.max(1) as f64);
        let (width, height) = (side(self.columns.len()), side(self.rows.len()));
        let longest = |names: &[String]| {
            names.iter().map(|name| name.chars().count().min(LONGEST_NAME)).max().unwrap_or(0)
        };
        let left = px(text_width(longest(&self.rows)) + 44.0);
        let plane = Plane {
            left,
            top: svg.head + 4.0,
            width: width * self.columns.len() as f64,
            height: height * self.rows.len() as f64,
        };
        self.cells(&mut svg, &plane, [width, height]);
        for (row, name) in thinned(&self.rows) {
            let y = px(plane.top + (row as f64 + 0.5) * height + 4.0);
            svg.text([left - 8.0, y], "text-anchor=\"end\"", &name);
        }
        let (bottom, longest) = (plane.bottom(), text_width(longest(&self.columns)));
        let turned = longest > width;
        for (column, name) in thinned(&self.columns) {
            let (x, y) = (px(left + (column as f64 + 0.5) * width), px(bottom + 16.0));
            match turned {
                false => svg.text([x, y], "text-anchor=\"middle\"", &name),
                true => {
                    let turn = format!("text-anchor=\"end\" transform=\"rotate(-45 {x} {y})\"");
                    svg.text([x + 4.0, y], &turn, &name);
                }
            }
        }
        let slanted = if turned { longest * std::f64::consts::FRAC_1_SQRT_2 } else { 0.0 };
        let below = px(bottom + 38.0 + slanted);
        let middle = [px(left + plane.width / 2.0), below];
        svg.text(middle, "font-size=\"13\" text-anchor=\"middle\"", &self.x);
        svg.upright([20.0, px(plane.top + plane.height / 2.0)], &self.y);
        self.colour_bar(&mut svg, &plane);
        let whole = (plane.right() + 104.0).ceil();
        svg.whole([whole, (below + 12.0).ceil()], whole, "")
    }

    /// The cells, a path per colour, in a group whose units are cells and which has all names and values.
    fn cells(&self, svg: &mut Svg, plane: &Plane, [width, height]: [f64; 2]) {
        let [low, high] = self.ends();
        let mut paths: BTreeMap<u8, String> = BTreeMap::new();
        for (row, values) in self.values.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
                let path = paths.entry((share * LEVELS).round() as u8).or_default();
                // Writing to a string cannot fail.
                let _ = write!(path, "M{column} {row}h1v1h-1z");
            }
        }
        let list = |names: &[String]| {
            names.iter().map(|name| escape::markup(name)).collect::<Vec<_>>().join("&#10;")
        };
        let numbers = |row: &Vec<f64>| row.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
        let (left, top) = (plane.left, plane.top);
        svg.add(format_args!(
            "<g class=\"cells\" transform=\"translate({left} {top}) scale({width} {height})\" data-x=\"{}\" \
             data-y=\"{}\" data-label=\"{}\" data-columns=\"{}\" data-rows=\"{}\" data-values=\"{}\">\n",
            escape::markup(&self.x),
            escape::markup(&self.y),
            escape::markup(&self.label),
            list(&self.columns),
            list(&self.rows),
            self.values.iter().map(numbers).collect::<Vec<_>>().join("&#10;")
        ));
        for (level, path) in paths {
            let colour = self.colour(f64::from(level) / LEVELS);
            svg.add(format_args!("<path fill=\"{colour}\" d=\"{path}\"/>\n"));
        }
        svg.add(format_args!("</g>\n"));
        if self.rows.len().max(self.columns.len()) <= MOST_CELLS {
            let style = "class=\"cell\" font-size=\"10\" text-anchor=\"middle\"";
            for (row, values) in self.values.iter().enumerate() {
                for (column, value) in values.iter().enumerate() {
                    let x = px(left + (column as f64 + 0.5) * width);
                    let y = px(top + (row as f64 + 0.5) * height + 3.5);
                    svg.text([x, y], style, &format!("{value:.*}", self.decimals()));
                }
            }
        }
        plane.frame(svg);
    }

    /// The scale, to the right of the plane.
    fn colour_bar(&self, svg: &mut Svg, plane: &Plane) {
        let (x, height) = (px(plane.right() + 20.0), plane.height.min(200.0));
        let steps = 50;
        for step in 0..steps {
            let colour = self.colour(1.0 - (f64::from(step) + 0.5) / f64::from(steps));
            let y = px(plane.top + height * f64::from(step) / f64::from(steps));
            // A little more than its share, so that nothing shines through between two.
            let tall = px(height / f64::from(steps) + if step + 1 < steps { 0.5 } else { 0.0 });
            svg.add(format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"{tall}\" fill=\"{colour}\"/>"
            ));
        }
        let [low, high] = self.ends();
        for (share, value) in [(0.0, high), (0.5, (low + high) / 2.0), (1.0, low)] {
            let y = px(plane.top + share * (height - 8.0) + 8.0);
            let decimals =
                if (high - low) < 4.0 { self.decimals().max(1) } else { self.decimals() };
            svg.text([x + 18.0, y], "", &format!("{value:.decimals$}"));
        }
        svg.upright([px(plane.right() + 84.0), px(plane.top + height / 2.0)], &self.label);
    }
}

/// Names that leave room for the table, with their places: where all would overlap, some of them.
fn thinned(names: &[String]) -> impl Iterator<Item = (usize, String)> {
    let every = names.len().div_ceil(MOST_NAMES).max(1);
    names.iter().map(|name| shortened(name, LONGEST_NAME)).enumerate().step_by(every)
}

/// A colour between two.
fn mixed(from: [u8; 3], to: [u8; 3], share: f64) -> String {
    let [red, green, blue] = [0, 1, 2].map(|channel| {
        let (from, to) = (f64::from(from[channel]), f64::from(to[channel]));
        (from + share * (to - from)).round() as u8
    });
    format!("#{red:02x}{green:02x}{blue:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_the_colour_of_their_value() {
        let heat = Heat {
            x: "predicted".to_owned(),
            y: "true".to_owned(),
            columns: vec!["a".to_owned(), "b".to_owned()],
            rows: vec!["a".to_owned(), "<b>".to_owned()],
            values: vec![vec![0.0, 50.0], vec![0.0, 100.0]],
            label: "%".to_owned(),
            scale: Scale::Sequential,
        };
        let svg = heat.svg("title");
        for wanted in [
            "<path fill=\"#ffffff\" d=\"M0 0h1v1h-1zM0 1h1v1h-1z\"/>",
            "<path fill=\"#468ccd\" d=\"M1 1h1v1h-1z\"/>",
            "data-rows=\"a&#10;&lt;b&gt;\" data-values=\"0 50&#10;0 100\"",
        ] {
            assert!(svg.contains(wanted), "{wanted} is not in {svg}");
        }
        let signed = Heat { scale: Scale::Signed, ..heat };
        assert_eq!(
            [0.0, 0.5, 1.0].map(|share| signed.colour(share)),
            ["#e1823c", "#ffffff", "#468ccd"]
        );
    }
}
