//! Lines with bands, and values to compare them with.

use super::axis::{Axis, Plane, Range};
use super::palette::line_colour;
use super::svg::{Key, Svg, px};
use crate::escape;

/// Dash patterns of lines, one per colour.
const DASHES: [&str; 8] =
    ["none", "9 4", "2 3", "9 3 2 3", "5 2 2 2 2 2", "5 3", "none", "12 3 5 3"];
const REFERENCE_DASHES: [&str; 4] = ["4 3", "1 2", "10 3", "6 2 1 2"];

/// Lines over a common axis, with values to compare them with.
#[derive(Debug, Clone, PartialEq)]
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
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<[f64; 2]>,
    /// Lower and upper end of the band around each point; empty for none.
    pub band: Vec<[f64; 2]>,
    /// Which colour and dash pattern it has: the same in all figures of a report.
    pub style: usize,
    /// Whether it is drawn unless a reader asks for it.
    pub shown: bool,
}

/// A value to compare lines with.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    pub name: String,
    pub value: f64,
}

impl Line {
    /// A line without a band, in the first style.
    pub fn new(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        Self { name: name.into(), points, band: Vec::new(), style: 0, shown: true }
    }
}

impl Lines {
    /// Lines over rounds, without references.
    pub(crate) fn by_round(y: Axis, lines: Vec<Line>) -> Self {
        Self { x: Axis::new("round").whole(), y, lines, references: Vec::new() }
    }

    fn drawn(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| !line.points.is_empty())
    }

    /// How many lines are shown at first, and how many there are, if these are more.
    pub(crate) fn left_out(&self) -> Option<(usize, usize)> {
        let (shown, all) = (self.drawn().filter(|line| line.shown).count(), self.drawn().count());
        (shown < all).then_some((shown, all))
    }

    pub(super) fn svg(&self, title: &str) -> String {
        let lines: Vec<&Line> = self.drawn().collect();
        let left_out = self.left_out().map(|(shown, all)| format!("{shown} of {all} lines shown"));
        let points = || lines.iter().flat_map(|line| &line.points);
        let bands = lines.iter().flat_map(|line| line.band.iter().flatten().copied());
        let heights = points().map(|point| point[1]);
        let highest = heights.clone().fold(0.0, f64::max);
        let values = heights.chain(bands).chain(self.references.iter().map(|one| one.value));
        // Shares end at 100 %, even if a band reaches beyond.
        let full = self.y.label.contains('%') && (95.0..=100.0).contains(&highest);
        let y = Axis { max: self.y.max.or(full.then_some(100.0)), ..self.y.clone() };
        let y = Range::of(&y, values, true);
        let x = Range::of(&self.x, points().map(|point| point[0]), false);

        let mut svg = Svg::new(title, &left_out.unwrap_or_default());
        let plane = Plane { left: 68.0, top: svg.head + 4.0, width: 476.0, height: 300.0 };
        plane.draw_y(&mut svg, &self.y, &y);
        plane.draw_x(&mut svg, &self.x, &x, false);
        let mut keys = Vec::new();
        for line in lines {
            let place = |point: [f64; 2]| [plane.x(&x, point[0]), plane.y(&y, point[1])];
            line.draw(&mut svg, place);
            let sample = format!("<path d=\"M0 0h24\" {}/>", line.stroke());
            keys.push(Key { name: line.name.clone(), sample, shown: line.shown });
        }
        for (reference, dash) in self.references.iter().zip(REFERENCE_DASHES.iter().cycle()) {
            let Reference { name, value } = reference;
            let name = format!("{name} ({value:.2})");
            let stroke = format!(
                "class=\"reference\" stroke=\"#666666\" stroke-width=\"1.3\" stroke-dasharray=\"{dash}\""
            );
            let (left, at, right) = (plane.left, plane.y(&y, *value), px(plane.right()));
            svg.group(&name, true, &stroke);
            svg.add(format_args!("<path d=\"M{left} {at}L{right} {at}\"/></g>\n"));
            let sample = format!("<path d=\"M0 0h24\" {stroke}/>");
            keys.push(Key { name, sample, shown: true });
        }
        let label = format!("data-x=\"{}\"", escape::markup(&self.x.label));
        svg.finish([560.0, plane.bottom() + 48.0], plane.top, &keys, &label)
    }
}

impl Line {
    /// How it is stroked, in a figure and its legend.
    fn stroke(&self) -> String {
        let (colour, dash) = (line_colour(self.style), DASHES[self.style % DASHES.len()]);
        format!("stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"")
    }

    /// Draws the line and its band, with its values as attributes for the page.
    fn draw(&self, svg: &mut Svg, place: impl Fn([f64; 2]) -> [f64; 2]) {
        let axis = |axis: usize| joined(self.points.iter().map(|point| point[axis].to_string()));
        let place = |point: [f64; 2]| place(point).map(|at| at.to_string());
        let corner = |point: [f64; 2]| place(point).join(",");
        let colour = line_colour(self.style);
        let mut values = format!("data-x=\"{}\" data-y=\"{}\"", axis(0), axis(1));
        if !self.band.is_empty() {
            let spread =
                self.band.iter().map(|[low, high]| ((high - low) * 500.0).round() / 1000.0);
            values += &format!(" data-spread=\"{}\"", joined(spread.map(|one| one.to_string())));
        }
        svg.group(&self.name, self.shown, &values);
        if !self.band.is_empty() {
            let ends = || self.points.iter().zip(&self.band);
            let low = ends().map(|(point, ends)| [point[0], ends[0]]);
            let high = ends().rev().map(|(point, ends)| [point[0], ends[1]]);
            let around = joined(low.chain(high).map(corner));
            svg.add(format_args!(
                "<polygon points=\"{around}\" fill=\"{colour}\" fill-opacity=\"0.16\"/>"
            ));
        }
        if let [point] = self.points[..] {
            let [x, y] = place(point);
            svg.add(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>"));
        }
        let (points, stroke) = (joined(self.points.iter().copied().map(corner)), self.stroke());
        svg.add(format_args!("<polyline points=\"{points}\" fill=\"none\" {stroke}/></g>\n"));
    }
}

fn joined(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Chart;

    fn chart(lines: Vec<Line>) -> String {
        let (x, y) = (Axis::new("round").whole(), Axis::new("accuracy"));
        Chart::Lines(Lines { x, y, lines, references: Vec::new() }).svg("title")
    }

    #[test]
    fn values_are_attributes_and_lines_have_a_place_in_the_legend() {
        let points = vec![[0.0, 61.0], [1.0, 62.25]];
        let band = vec![[60.0, 62.0], [62.0, 62.5]];
        let svg = chart(vec![Line { band, ..Line::new("<one>", points) }]);
        for wanted in [
            "<g data-line=\"&lt;one&gt;\" data-x=\"0 1\" data-y=\"61 62.25\" data-spread=\"1 0.25\">",
            "<polyline points=\"68,",
            "<g data-key=\"&lt;one&gt;\" ",
        ] {
            assert!(svg.contains(wanted), "{wanted} is not in {svg}");
        }
    }

    #[test]
    fn a_single_round_is_a_marker_on_an_axis_of_whole_numbers() {
        let svg = chart(vec![Line::new("one", vec![[0.0, 61.0]])]);
        assert!(
            svg.contains("<circle") && svg.contains(">0</text>") && svg.contains(">1</text>"),
            "{svg}"
        );
        assert!(!svg.contains(">-0"), "{svg}");
    }

    #[test]
    fn a_figure_says_how_many_lines_it_leaves_out() {
        let line = |shown| Line { shown, ..Line::new("x", vec![[0.0, 1.0], [1.0, 2.0]]) };
        let svg = chart(vec![line(true), line(false)]);
        assert!(svg.contains("1 of 2 lines shown"));
        assert_eq!(svg.matches("display=\"none\"").count(), 2, "{svg}");
        assert!(!chart(vec![line(true)]).contains("lines shown"));
    }
}
