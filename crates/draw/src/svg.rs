//! Charts as SVG, drawn by `kuva`.

use crate::chart::{Axis, Bars, Chart, Heat, Line, Lines, Points, Scale};
use crate::palette::{class_colours, line_colour};
use kuva::backend::svg::SvgBackend;
use kuva::plot::annotations::TextAnnotation;
use kuva::plot::scatter::MarkerShape;
use kuva::plot::{BarPlot, Heatmap, LegendPosition, LinePlot, LineStyle, ScatterPlot};
use kuva::prelude::ColorMap;
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;
use std::sync::Arc;

/// Size of the area between the axes.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
/// Ticks on an axis of whole numbers at most.
const MOST_TICKS: f64 = 10.0;
const WHITE: [u8; 3] = [255, 255, 255];
const BLUE: [u8; 3] = [70, 140, 205];
const ORANGE: [u8; 3] = [225, 130, 60];
/// Side of a cell.
const CELL: f64 = 30.0;
/// Rows and columns of a table whose cells have their value written in them.
const MOST_CELLS: usize = 12;
/// Names on the vertical axis of a table.
const MOST_NAMES: usize = 40;
/// Characters of a name on an axis of a table.
const LONGEST_NAME: usize = 24;
/// Characters of the name of a group of bars.
const LONGEST_GROUP: usize = 64;
/// Width of a character on an axis.
const CHARACTER: f64 = 6.4;

impl Chart {
    /// Draws the chart.
    pub fn svg(&self, title: &str) -> String {
        // Names come from elsewhere, and XML has no way to write a control character.
        let control = |letter: char| letter.is_control() && !matches!(letter, '\t' | '\n' | '\r');
        self.drawn(title).replace(control, "\u{fffd}")
    }

    fn drawn(&self, title: &str) -> String {
        let (plots, layout) = match self {
            Self::Lines(lines) => lines.plots(),
            Self::Bars(bars) => bars.plots(),
            Self::Heat(heat) => heat.plots(),
            Self::Points(points) => points.plots(),
            Self::Sheet(sheet) => return sheet.svg(title),
        };
        let layout = layout
            .with_title(title)
            .with_font_family("DejaVu Sans, sans-serif")
            .with_title_size(15)
            .with_label_size(13)
            .with_tick_size(11)
            .with_body_size(11);
        in_tenths(&SvgBackend::new().render_scene(&render_multiple(plots, layout)))
    }
}

/// An SVG file with the coordinates of its paths to a tenth of a unit, which no one can see: kuva writes some of
/// them to 17 digits, and a page holds hundreds of curves.
fn in_tenths(svg: &str) -> String {
    const PATH: &str = "<path d=\"";
    let mut short = String::with_capacity(svg.len());
    for (place, part) in svg.split(PATH).enumerate() {
        let (path, rest) = match place {
            0 => ("", part),
            _ => part.split_at(part.find('"').unwrap_or(part.len())),
        };
        if place > 0 {
            short.push_str(PATH);
        }
        let words = path.split(' ').map(|word| match word.parse::<f64>() {
            Ok(number) if word.contains('.') => {
                let tenths = format!("{number:.1}");
                tenths.strip_suffix(".0").unwrap_or(&tenths).to_owned()
            }
            _ => word.to_owned(),
        });
        short.push_str(&words.collect::<Vec<_>>().join(" "));
        short.push_str(rest);
    }
    short
}

/// The dash patterns go through all colours before they repeat.
fn dashes(style: usize) -> LineStyle {
    match style % 4 {
        0 => LineStyle::Solid,
        1 => LineStyle::Custom("9 4".to_owned()),
        2 => LineStyle::Custom("2 3".to_owned()),
        _ => LineStyle::Custom("9 3 2 3".to_owned()),
    }
}

fn with_axes(layout: Layout, x: &Axis, y: &Axis) -> Layout {
    let mut layout = layout
        .with_x_label(&x.label)
        .with_y_label(&y.label)
        .with_width(WIDTH)
        .with_height(HEIGHT)
        .with_legend_position(LegendPosition::OutsideRightTop)
        .with_legend_box(false);
    if let Some(min) = x.min {
        layout = layout.with_x_axis_min(min);
    }
    if let Some(max) = x.max {
        layout = layout.with_x_axis_max(max);
    }
    if let Some(min) = y.min {
        layout = layout.with_y_axis_min(min);
    }
    if let Some(max) = y.max {
        layout = layout.with_y_axis_max(max);
    }
    layout
}

/// The distance between ticks at whole numbers over a range: 1, 2 or 5, times a power of ten.
fn whole_step(range: f64) -> f64 {
    let mut step = 1.0;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle().take(60) {
        if range / step <= MOST_TICKS {
            break;
        }
        step *= factor;
    }
    step
}

/// The least and the greatest of some numbers; not finite if there are none.
fn ends(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), number| {
        (least.min(number), most.max(number))
    })
}

impl Lines {
    fn plots(&self) -> (Vec<Plot>, Layout) {
        let drawn = || self.lines.iter().filter(|line| line.shown && !line.points.is_empty());
        let mut plots: Vec<Plot> = drawn().map(line_plot).collect();
        let all = self.lines.iter().filter(|line| !line.points.is_empty()).count();
        let (first, last) =
            ends(self.lines.iter().flat_map(|line| &line.points).map(|point| point[0]));
        // A single point is drawn within an axis, not on an axis without length.
        let (first, last) =
            if first == last { ((first - 1.0).max(0.0), last + 1.0) } else { (first, last) };
        for (place, reference) in self.references.iter().enumerate() {
            let points = vec![(first, reference.value), (last, reference.value)];
            let plot = LinePlot::new()
                .with_data(points)
                .with_color("#555555")
                .with_stroke_width(1.0)
                .with_line_style(LineStyle::Custom(
                    ["4 3", "1 2", "10 3", "6 2 1 2"][place % 4].to_owned(),
                ))
                .with_legend(&reference.name);
            plots.push(Plot::Line(plot));
        }
        let layout = with_axes(Layout::auto_from_plots(&plots), &self.x, &self.y);
        let layout = match (self.x.min, self.x.max) {
            (None, None) if first < last => layout.with_x_axis_min(first).with_x_axis_max(last),
            _ => layout,
        };
        let layout = match self.x.whole && first < last {
            true => layout
                .with_x_tick_step(whole_step(last - first))
                .with_x_tick_format(TickFormat::Integer),
            false => layout,
        };
        let heights = drawn().flat_map(|line| &line.points).map(|point| point[1]);
        let bands = drawn().flat_map(|line| line.band.iter().flatten().copied());
        let (_, highest) = ends(heights.chain(bands));
        let layout = match self.y.whole && highest.is_finite() {
            true => {
                let low = self.y.min.unwrap_or(0.0);
                let step = whole_step(highest - low);
                layout
                    .with_y_tick_step(step)
                    .with_y_tick_format(TickFormat::Integer)
                    .with_y_axis_max(low + ((highest - low) / step).ceil().max(1.0) * step)
            }
            false => layout,
        };
        let layout = match plots.len() - self.references.len() {
            shown if shown < all => layout.with_subtitle(format!("{shown} of {all} lines shown")),
            _ => layout,
        };
        // Shares end at 100 %, even if a band reaches beyond.
        let highest = self.lines.iter().flat_map(|line| &line.points).map(|point| point[1]);
        let full = self.y.max.is_none() && self.y.label.contains('%');
        match full && highest.fold(0.0, f64::max) > 95.0 {
            true => (plots, layout.with_y_axis_max(100.0)),
            false => (plots, layout),
        }
    }
}

fn line_plot(line: &Line) -> Plot {
    if let [[x, y]] = line.points[..] {
        let plot = ScatterPlot::new().with_data(vec![(x, y)]).with_color(line_colour(line.style));
        return Plot::Scatter(plot.with_size(4.0).with_legend(&line.name));
    }
    let plot = LinePlot::new()
        .with_data(line.points.iter().map(|point| (point[0], point[1])))
        .with_color(line_colour(line.style))
        .with_stroke_width(1.8)
        .with_line_style(dashes(line.style))
        .with_legend(&line.name);
    if line.band.is_empty() {
        return Plot::Line(plot);
    }
    let (low, high) = (line.band.iter().map(|ends| ends[0]), line.band.iter().map(|ends| ends[1]));
    Plot::Line(plot.with_band(low, high))
}

impl Bars {
    fn plots(&self) -> (Vec<Plot>, Layout) {
        let mut plot =
            BarPlot::new().with_legend(self.series.iter().map(|one| one.name.as_str()).collect());
        for (group, name) in self.groups.iter().enumerate() {
            let bars = self.series.iter().map(|series| {
                let value = series.values.get(group).copied().flatten().unwrap_or(0.0);
                (value, line_colour(series.style).to_owned())
            });
            plot = plot.with_group(shortened(name, LONGEST_GROUP), bars.collect::<Vec<_>>());
        }
        if self.stacked {
            plot = plot.with_stacked().with_width(0.5);
        }
        let plots = vec![Plot::Bar(plot)];
        let layout = with_axes(Layout::auto_from_plots(&plots), &self.x, &self.y);
        let lengths = self.groups.iter().map(|name| name.chars().count().min(LONGEST_GROUP));
        let longest = CHARACTER * lengths.max().unwrap_or(0) as f64;
        let groups = self.groups.len() as f64;
        if groups * (longest + CHARACTER) <= WIDTH - 200.0 {
            return (plots, layout);
        }
        // Names that would overlap are slanted, in a figure with room for them below and to the left.
        let bars = if self.stacked { 1.0 } else { self.series.len() as f64 };
        let width = (groups * (bars * 9.0).max(26.0)).max(WIDTH - 200.0);
        let slanted = longest * std::f64::consts::FRAC_1_SQRT_2;
        let layout = layout
            .with_x_tick_rotate(-45.0)
            .with_width(width + slanted + 220.0)
            .with_height(HEIGHT + slanted);
        (plots, layout)
    }
}

impl Heat {
    fn plots(&self) -> (Vec<Plot>, Layout) {
        let all = || self.values.iter().flatten().copied();
        let (low, high): (f64, f64) = match self.scale {
            Scale::Sequential => (0.0, all().fold(f64::MIN_POSITIVE, f64::max)),
            Scale::Signed => (-1.0, 1.0),
        };
        let colours = match self.scale {
            Scale::Sequential => sequential,
            Scale::Signed => signed,
        };
        // kuva takes the range of the values for its colours: a table whose values span less would have
        // other colours than the next. It also counts rows from the bottom.
        let (least, most) = all().fold((high, low), |(a, b), value| (a.min(value), b.max(value)));
        let share = move |value: f64| (value - low) / (high - low);
        let of_range = move |part: f64| colours(share(least + part * (most - least)));
        let rows: Vec<Vec<f64>> = self.values.iter().rev().cloned().collect();
        let plot = Heatmap::new()
            .with_data(rows)
            .with_color_map(ColorMap::Custom(Arc::new(of_range)))
            .with_legend(&self.label);
        let plots = vec![Plot::Heatmap(plot)];
        let names = |names: &[String]| {
            names.iter().map(|name| shortened(name, LONGEST_NAME)).collect::<Vec<_>>()
        };
        let (columns, rows) = (names(&self.columns), thinned(names(&self.rows)));
        let longest =
            |names: &[String]| names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        // The size is that of the whole figure: cells, names of rows and columns, titles, colour bar.
        let cells = |count: usize| (count as f64 * CELL).clamp(160.0, 560.0);
        let width = cells(columns.len()) + 7.0 * longest(&rows) as f64 + 170.0;
        let height = cells(rows.len()) + 5.0 * longest(&columns) as f64 + 120.0;
        let mut layout = with_axes(Layout::auto_from_plots(&plots), &self.x, &self.y)
            .with_x_categories(columns)
            .with_y_categories(rows.into_iter().rev().collect())
            .with_width(width)
            .with_height(height)
            .with_x_tick_rotate(-45.0);
        if self.rows.len() <= MOST_CELLS && self.columns.len() <= MOST_CELLS {
            for (row, values) in self.values.iter().rev().enumerate() {
                for (column, &value) in values.iter().enumerate() {
                    let text = format!("{value:.*}", self.decimals);
                    // A little below the middle: kuva sets text on its baseline.
                    let text = TextAnnotation::new(text, column as f64 + 1.0, row as f64 + 0.82);
                    let text = text.with_font_size(9);
                    layout = layout.with_annotation(text);
                }
            }
        }
        (plots, layout)
    }
}

/// From white to blue, on which black text can still be read.
fn sequential(share: f64) -> String {
    mixed(WHITE, BLUE, share)
}

/// From orange over white to blue.
fn signed(share: f64) -> String {
    if share < 0.5 {
        mixed(ORANGE, WHITE, 2.0 * share)
    } else {
        mixed(WHITE, BLUE, 2.0 * share - 1.0)
    }
}

/// A name that leaves room for the figure.
fn shortened(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest {
        return name.to_owned();
    }
    name.chars().take(longest - 1).chain(['…']).collect()
}

/// Every so many names, where they would overlap.
fn thinned(mut names: Vec<String>) -> Vec<String> {
    let every = names.len().div_ceil(MOST_NAMES).max(1);
    for (place, name) in names.iter_mut().enumerate() {
        if place % every != 0 {
            name.clear();
        }
    }
    names
}

/// A colour between two.
fn mixed(from: [u8; 3], to: [u8; 3], share: f64) -> String {
    let share = share.clamp(0.0, 1.0);
    let [red, green, blue] = [0, 1, 2].map(|channel| {
        let (from, to) = (f64::from(from[channel]), f64::from(to[channel]));
        (from + share * (to - from)).round() as u8
    });
    format!("#{red:02x}{green:02x}{blue:02x}")
}

impl Points {
    fn plots(&self) -> (Vec<Plot>, Layout) {
        let colours = class_colours(self.swarms.len());
        let pairs = |points: &[[f64; 2]]| -> Vec<(f64, f64)> {
            points.iter().map(|point| (point[0], point[1])).collect()
        };
        let shown =
            || self.swarms.iter().zip(&colours).filter(|(swarm, _)| !swarm.points.is_empty());
        let swarms = shown().map(|(swarm, colour)| {
            let plot = ScatterPlot::new().with_data(pairs(&swarm.points)).with_color(colour);
            Plot::Scatter(plot.with_size(1.8).with_marker_opacity(0.75).with_legend(&swarm.name))
        });
        let centres = shown().map(|(swarm, colour)| {
            let plot = ScatterPlot::new().with_data(pairs(&[swarm.centre])).with_color(colour);
            Plot::Scatter(
                plot.with_size(9.0).with_marker(MarkerShape::Star).with_marker_stroke_width(1.0),
            )
        });
        let plots: Vec<Plot> = swarms.chain(centres).collect();
        let layout = with_axes(Layout::auto_from_plots(&plots), &Axis::new(""), &Axis::new(""));
        // The axes of an embedding measure nothing.
        let none = TickFormat::Custom(Arc::new(|_| String::new()));
        let layout = layout.with_tick_format(none).with_tick_length(0.0).with_show_grid(false);
        (plots, layout.with_width(560.0).with_height(440.0).with_box_axes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: Axis, y: Axis, lines: Vec<Line>) -> String {
        Chart::Lines(Lines { x, y, lines, references: Vec::new() }).svg("title")
    }

    /// The texts of a figure.
    fn texts(svg: &str) -> Vec<&str> {
        let texts = svg.split("<text").skip(1).filter_map(|part| part.split(['>', '<']).nth(1));
        texts.collect()
    }

    #[test]
    fn control_characters_do_not_break_the_file() {
        let line = Line::new("a\u{1b}[31m\u{7}b", vec![[0.0, 61.0], [1.0, 62.0]]);
        let svg = chart(Axis::new("x\u{0}"), Axis::new("y"), vec![line]);
        assert!(svg.contains("a\u{fffd}[31m\u{fffd}b") && !svg.contains('\u{1b}'), "{svg}");
        crate::png(&svg, 1.0).unwrap();
    }

    #[test]
    fn a_single_round_is_a_marker_on_an_axis_of_whole_numbers() {
        let line = Line::new("one", vec![[0.0, 61.0]]);
        let svg = chart(Axis::new("round").whole(), Axis::new("accuracy"), vec![line]);
        assert!(svg.contains("<circle"), "{svg}");
        let texts = texts(&svg);
        assert!(texts.contains(&"0") && texts.contains(&"1"), "{texts:?}");
        assert!(!texts.contains(&"-0.1"), "{texts:?}");
    }

    #[test]
    fn counts_have_whole_ticks() {
        let line = Line::new("one", vec![[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]);
        let y = Axis::new("rejected updates").from_zero().whole();
        let svg = chart(Axis::new("round").whole(), y, vec![line]);
        let numbers = texts(&svg).into_iter().filter_map(|text| text.parse::<f64>().ok());
        let broken: Vec<f64> = numbers.filter(|number| number.fract() != 0.0).collect();
        assert!(broken.is_empty() && !svg.contains(">0.5<"), "{broken:?}");
        let steps = [3.0, 10.0, 30.0, 50.0, 500.0, 501.0].map(whole_step);
        assert_eq!(steps, [1.0, 1.0, 5.0, 5.0, 50.0, 100.0]);
    }

    #[test]
    fn a_figure_says_how_many_lines_it_leaves_out() {
        let line = |shown| Line { shown, ..Line::new("x", vec![[0.0, 1.0], [1.0, 2.0]]) };
        let of = |lines| chart(Axis::new("round"), Axis::new("loss"), lines);
        assert!(of(vec![line(true), line(false)]).contains("1 of 2 lines shown"));
        assert!(!of(vec![line(true)]).contains("lines shown"));
    }

    #[test]
    fn names_that_would_overlap_are_slanted() {
        let of = |groups: Vec<String>| {
            let values = vec![Some(1.0); groups.len()];
            let series = vec![crate::Series { name: "s".to_owned(), values, style: 0 }];
            let (x, y) = (Axis::new(""), Axis::new("seconds"));
            Chart::Bars(Bars { x, y, groups, series, stacked: true }).svg("title")
        };
        assert!(!of(vec!["a".to_owned(), "b".to_owned()]).contains("rotate(-45"));
        let long = (0..12).map(|at| format!("experiment with a long name {at}")).collect();
        let svg = of(long);
        assert!(svg.contains("rotate(-45") && svg.contains("a long name 11"), "{svg}");
    }

    #[test]
    fn only_the_coordinates_of_paths_are_shortened() {
        let svg = "<text x=\"1.25\">7.123</text><path d=\"M 58.13 119.96 L 345.65000000000003 -0.02 Z\" \
                   stroke-width=\"1.85\" /><path d=\"\"/>";
        let short = "<text x=\"1.25\">7.123</text><path d=\"M 58.1 120 L 345.7 -0 Z\" \
                     stroke-width=\"1.85\" /><path d=\"\"/>";
        assert_eq!(in_tenths(svg), short);
    }
}
