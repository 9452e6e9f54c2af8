//! Axes with ticks at round numbers, and the plane between two of them.

use super::svg::{Svg, px};

/// Ticks on an axis, at most.
const MOST_TICKS: f64 = 7.0;
/// Values beyond this are drawn there: differences of such numbers are still exact enough to draw.
const FARTHEST: f64 = 1e12;

/// An axis.
#[derive(Debug, Clone, PartialEq)]
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

impl Axis {
    /// An axis whose values decide where it begins and ends.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), min: None, max: None, whole: false }
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

/// The part of an axis that is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
    step: f64,
}

impl Range {
    /// From the least to the greatest of these values, or to the next ticks.
    pub(super) fn of(axis: &Axis, values: impl Iterator<Item = f64>, to_ticks: bool) -> Self {
        let values = values.map(|value| value.clamp(-FARTHEST, FARTHEST));
        let (least, most) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| (a.min(value), b.max(value)));
        let (mut low, mut high) = (axis.min.unwrap_or(least), axis.max.unwrap_or(most));
        if low >= high {
            // A single value lies within the axis.
            let middle = if least.is_finite() { least } else { 0.0 };
            let below = middle - 1.0;
            low = axis.min.unwrap_or(if middle >= 0.0 { below.max(0.0) } else { below });
            high = axis.max.unwrap_or(middle.max(low) + 1.0);
        }
        let step = round_step((high - low) / MOST_TICKS, axis.whole);
        if to_ticks && axis.min.is_none() {
            low = (low / step + 1e-9).floor() * step;
        }
        if to_ticks && axis.max.is_none() {
            high = (high / step - 1e-9).ceil() * step;
        }
        Self { low, high, step }
    }

    /// Where a value lies between the ends, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// The ticks, and how they are written.
    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let Self { low, high, step } = *self;
        let first = (low / step - 1e-6).ceil();
        let all = (0..=2 * MOST_TICKS as u32).map(move |place| (first + f64::from(place)) * step);
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        all.take_while(move |tick| *tick <= high + 1e-6 * step).map(move |tick| {
            match tick.abs() >= 1e7 {
                true => (tick, format!("{tick:e}")),
                false => (tick, format!("{:.decimals$}", tick + 0.0)),
            }
        })
    }
}

/// The least round number that is not below this: 1, 2 or 5 times a power of ten.
fn round_step(least: f64, whole: bool) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|&step| step >= least * (1.0 - 1e-9));
    let step = step.unwrap_or(10.0 * power);
    if whole { step.max(1.0) } else { step }
}

/// The area between two axes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Plane {
    pub(super) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// Where a value lies on the horizontal axis.
    pub(super) fn x(&self, range: &Range, value: f64) -> f64 {
        px(self.left + range.share(value) * self.width)
    }

    /// Where a value lies on the vertical axis.
    pub(super) fn y(&self, range: &Range, value: f64) -> f64 {
        px(self.bottom() - range.share(value) * self.height)
    }

    /// Draws a frame around the plane.
    pub(super) fn frame(&self, svg: &mut Svg) {
        let [x, y, width, height] = [self.left, self.top, self.width, self.height].map(px);
        svg.add(format_args!(
            "<rect class=\"axis\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
             stroke=\"#808080\"/>\n"
        ));
    }

    /// Draws the horizontal axis, with lines through the plane if wanted.
    pub(super) fn draw_x(&self, svg: &mut Svg, axis: &Axis, range: &Range, grid: bool) {
        let (top, bottom) = (px(self.top), px(self.bottom()));
        for (tick, text) in range.ticks() {
            let x = self.x(range, tick);
            match grid {
                true => svg.line("grid", [x, top], [x, bottom]),
                false => svg.line("axis", [x, bottom], [x, bottom + 4.0]),
            }
            svg.text([x, bottom + 18.0], "text-anchor=\"middle\"", &text);
        }
        svg.line("axis", [self.left, bottom], [px(self.right()), bottom]);
        let label = [px(self.left + self.width / 2.0), bottom + 38.0];
        svg.text(label, "font-size=\"13\" text-anchor=\"middle\"", &axis.label);
    }

    /// Draws the vertical axis with lines through the plane.
    pub(super) fn draw_y(&self, svg: &mut Svg, axis: &Axis, range: &Range) {
        for (tick, text) in range.ticks() {
            let y = self.y(range, tick);
            svg.line("grid", [self.left, y], [px(self.right()), y]);
            svg.text([self.left - 8.0, y + 4.0], "text-anchor=\"end\"", &text);
        }
        svg.line("axis", [self.left, px(self.top)], [self.left, px(self.bottom())]);
        svg.upright([20.0, px(self.top + self.height / 2.0)], &axis.label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis, values: &[f64]) -> Vec<String> {
        Range::of(axis, values.iter().copied(), true).ticks().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        let axis = Axis::new("");
        assert_eq!(ticks(&axis, &[61.3, 92.1]), ["60", "65", "70", "75", "80", "85", "90", "95"]);
        assert_eq!(
            ticks(&axis, &[0.0, 0.31]),
            ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30", "0.35"]
        );
        assert_eq!(ticks(&axis, &[-1.2, 0.9]), ["-1.5", "-1.0", "-0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(
            ticks(&axis.from_zero(), &[3.0]),
            ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]
        );
    }

    #[test]
    fn counts_have_whole_ticks() {
        let axis = Axis::new("").whole();
        assert_eq!(ticks(&axis, &[0.0, 2.0]), ["0", "1", "2"]);
        assert_eq!(ticks(&axis, &[3.0]), ["2", "3", "4"]);
        assert_eq!(ticks(&axis.clone().from_zero(), &[0.0]), ["0", "1"]);
        assert_eq!(ticks(&axis, &[0.0, 500.0]), ["0", "100", "200", "300", "400", "500"]);
    }

    #[test]
    fn any_values_have_an_axis() {
        for values in
            [&[][..], &[f64::MAX, f64::MIN], &[f64::MIN_POSITIVE], &[1e12, 1e12 + 1e-3], &[-3.0]]
        {
            let range = Range::of(&Axis::new(""), values.iter().copied(), true);
            assert!(range.low < range.high && range.ticks().count() > 0, "{range:?} of {values:?}");
            assert!(range.ticks().all(|(_, text)| text.len() < 20), "{values:?}");
        }
    }
}
