//! Bars in groups. They lie on their side: names of data sets and experiments are long.

use super::axis::{Axis, Plane, Range};
use super::palette::line_colour;
use super::svg::{Key, Svg, px, shortened, text_width};
use crate::escape;

/// Thickness of a bar.
const BAR: f64 = 14.0;
/// Between two groups.
const GAP: f64 = 12.0;
/// Characters of the name of a group.
const LONGEST_NAME: usize = 48;

/// Bars in groups, next to each other or stacked.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The axis of the values.
    pub axis: Axis,
    /// Names of the groups, the first at the top.
    pub groups: Vec<String>,
    /// One bar per group each.
    pub series: Vec<Series>,
    /// Whether the bars of a group are stacked.
    pub stacked: bool,
}

/// The bars of one colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    /// A value per group, where there is one.
    pub values: Vec<Option<f64>>,
    /// Which colour it has.
    pub style: usize,
}

impl Bars {
    pub(super) fn svg(&self, title: &str) -> String {
        let value = |series: &Series, group: usize| series.values.get(group).copied().flatten();
        let total = |group| self.series.iter().filter_map(|series| value(series, group)).sum();
        let totals = (0..self.groups.len()).map(total).filter(|_| self.stacked);
        let single = self.series.iter().flat_map(|series| series.values.iter().flatten().copied());
        let range = Range::of(&self.axis, totals.chain(single), true);

        let mut svg = Svg::new(title, "");
        let names = || self.groups.iter().map(|name| shortened(name, LONGEST_NAME));
        let longest = names().map(|name| name.chars().count()).max().unwrap_or(0);
        let left = px((text_width(longest) + 20.0).max(68.0));
        let thickness = if self.stacked { BAR } else { BAR * self.series.len() as f64 };
        let height = (thickness + GAP) * self.groups.len() as f64;
        let plane = Plane { left, top: svg.head + 4.0, width: 420.0, height };
        plane.draw_x(&mut svg, &self.axis, &range, true);
        let top = |group: usize| plane.top + GAP / 2.0 + (thickness + GAP) * group as f64;
        for (group, name) in names().enumerate() {
            let middle = px(top(group) + thickness / 2.0 + 4.0);
            svg.text([left - 8.0, middle], "text-anchor=\"end\"", &name);
        }
        let (mut ends, mut keys) = (vec![0.0; self.groups.len()], Vec::new());
        for (place, series) in self.series.iter().enumerate() {
            let fill = format!("fill=\"{}\"", line_colour(series.style));
            svg.group(&series.name, true, &fill);
            for (group, name) in self.groups.iter().enumerate() {
                let Some(value) = value(series, group) else { continue };
                let (start, row) = match self.stacked {
                    true => (ends[group], top(group)),
                    false => (0.0, top(group) + BAR * place as f64),
                };
                ends[group] = start + value;
                let (x, y) = (plane.x(&range, start), px(row + 1.0));
                let (width, height) = (px(plane.x(&range, start + value) - x), BAR - 2.0);
                let text = escape::markup(&format!("{name}\u{2003}{}: {value}", series.name));
                svg.add(format_args!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"><title>{text}</title></rect>"
                ));
            }
            svg.add(format_args!("</g>\n"));
            let sample = format!("<rect x=\"8\" y=\"-6\" width=\"12\" height=\"12\" {fill}/>");
            keys.push(Key { name: series.name.clone(), sample, shown: true });
        }
        svg.line("axis", [left, plane.top], [left, px(plane.bottom())]);
        svg.finish([plane.right() + 24.0, plane.bottom() + 48.0], plane.top, &keys, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_their_lengths_and_values() {
        let series = |name: &str, values: [f64; 2]| Series {
            name: name.to_owned(),
            values: values.map(Some).to_vec(),
            style: 0,
        };
        let bars = |stacked| Bars {
            axis: Axis { max: Some(42.0), ..Axis::new("seconds").from_zero() },
            groups: vec!["short".to_owned(), "an experiment with a longer name".to_owned()],
            series: vec![series("a", [10.0, 20.0]), series("b", [5.0, 7.5])],
            stacked,
        };
        let widths = |svg: &str| -> Vec<String> {
            let bars = svg
                .lines()
                .filter(|line| line.starts_with("<g data-line"))
                .flat_map(|line| line.split("<rect").skip(1));
            bars.map(|bar| bar.split('"').nth(5).unwrap().to_owned()).collect()
        };
        for stacked in [false, true] {
            let svg = bars(stacked).svg("title");
            assert_eq!(widths(&svg), ["100", "200", "50", "75"]);
            assert!(
                svg.contains("an experiment with a longer name") && svg.contains("b: 7.5</title>"),
                "{svg}"
            );
        }
    }
}
