//! A chart of a partition: one stacked bar per client, one colour per class, samples as length.
//!
//! A heat map for many clients was rejected: it does not show client sizes. Instead at most about
//! two hundred clients are drawn, evenly spaced over all of them, which shows skew as well as a
//! hundred thousand would.

use super::canvas::{Canvas, text_height, text_width};
use super::{Colour, FAINT, INK, MARGIN, TEXT, TITLE, shorten};
use crate::{DataError, Result};
use std::path::Path;

/// The approximate maximum number of bars.
const MOST_BARS: u32 = 200;
/// Length of the longest bar in pixels.
const WIDTH: u32 = 1000;
/// Height of all bars together in pixels, if there are enough of them.
const HEIGHT: u32 = 1000;

/// Neighbours differ in lightness as well as hue, for colour-blind readers.
const PALETTE: [Colour; 10] = [
    [0x44, 0x77, 0xaa], // blue
    [0xee, 0x99, 0x44], // orange
    [0x22, 0x88, 0x55], // green
    [0xdd, 0xcc, 0x66], // sand
    [0xaa, 0x33, 0x77], // purple
    [0x77, 0xcc, 0xee], // sky
    [0x8c, 0x56, 0x3b], // brown
    [0xee, 0x99, 0xaa], // rose
    [0x33, 0x33, 0x77], // indigo
    [0xaa, 0xaa, 0xaa], // grey
];

/// Writes the partition's histogram ([`crate::Partition::histogram`]) as a chart.
pub fn partition_chart(
    title: &str,
    histogram: &[Vec<u32>],
    classes: &[String],
    path: &Path,
) -> Result<()> {
    if histogram.is_empty() {
        return Err(DataError::Unusable("no clients to draw".into()));
    }
    let every = round_step(histogram.len() as u64, MOST_BARS) as usize;
    let shown: Vec<usize> = (0..histogram.len()).step_by(every).collect();
    let size = |client: usize| histogram[client].iter().map(|&count| u64::from(count)).sum();
    let longest: u64 = shown.iter().map(|&client| size(client)).max().unwrap_or(0).max(1);
    let bars = shown.len() as u32;
    let pitch = (HEIGHT / bars).clamp(5, 28);
    let legend = Legend::new(classes);

    let left = MARGIN + text_width(TEXT, &histogram.len().to_string()).max(text_height(TEXT)) + 12;
    let legend_top = MARGIN + text_height(TITLE) + 20;
    let heading_top = legend_top + legend.height() + 14;
    let top = heading_top + text_height(TEXT) + 16;
    let bottom = top + bars * pitch;
    let axis_end = bottom + 10 + text_height(TEXT);
    let right = left + WIDTH + MARGIN;
    let mut canvas = Canvas::new(
        right.max(MARGIN * 2 + text_width(TITLE, title)) + MARGIN,
        axis_end + 12 + text_height(TEXT) + MARGIN,
    );
    canvas.text(MARGIN, MARGIN, TITLE, INK, title);
    legend.draw(&mut canvas, legend_top);
    let heading = match every {
        1 => "client".into(),
        _ => format!("client (1 in {every} shown, {} in total)", histogram.len()),
    };
    canvas.text(MARGIN, heading_top, TEXT, INK, &heading);

    let at = |count: u64| left + (count * u64::from(WIDTH) / longest) as u32;
    let step = round_step(longest, 8);
    for count in (0..=longest).step_by(step as usize) {
        let label = count.to_string();
        canvas.rectangle(at(count), top, 1, bottom - top + 4, FAINT);
        let centred = at(count).saturating_sub(text_width(TEXT, &label) / 2);
        canvas.text(centred, bottom + 10, TEXT, INK, &label);
    }
    canvas.text(left, axis_end + 12, TEXT, INK, "samples");

    let bar = pitch - (pitch / 5).max(1);
    let label_step = round_step(u64::from(bars), HEIGHT.min(bars * pitch) / 24) as usize;
    for (row, &client) in shown.iter().enumerate() {
        let y = top + pitch * row as u32;
        if row % label_step == 0 {
            let label = client.to_string();
            let x = (left - 12).saturating_sub(text_width(TEXT, &label));
            let middle = (y + bar / 2).saturating_sub(text_height(TEXT) / 2);
            canvas.text(x, middle, TEXT, INK, &label);
        }
        let mut sum = 0;
        for (class, &count) in histogram[client].iter().enumerate() {
            let start = at(sum);
            sum += u64::from(count);
            canvas.rectangle(start, y, at(sum) - start, bar, colour(class, classes.len()));
        }
    }
    canvas.rectangle(left - 1, top, 1, bottom - top, INK);
    canvas.save(path)
}

/// The smallest of 1, 2, 5, 10, 20, ... that divides `length` into at most `pieces`.
fn round_step(length: u64, pieces: u32) -> u64 {
    let pieces = u64::from(pieces.max(1));
    let mut unit = 1;
    loop {
        for step in [unit, 2 * unit, 5 * unit] {
            if length / step <= pieces {
                return step;
            }
        }
        unit *= 10;
    }
}

/// The colour of a class: from the palette, or from the hue wheel if there are more classes.
fn colour(class: usize, classes: usize) -> Colour {
    if classes <= PALETTE.len() {
        return PALETTE[class % PALETTE.len()];
    }
    // The golden ratio keeps successive hues apart; three lightnesses keep similar hues apart.
    let hue = (class as f64 * 0.618_034).fract() * 6.0;
    let lightness = [0.42, 0.72, 0.57][class % 3];
    [0.0, 4.0, 2.0].map(|shift| {
        let distance = ((hue + shift) % 6.0 - 3.0).abs() - 1.0;
        let full = distance.clamp(0.0, 1.0);
        let saturation = 0.6 * (1.0 - (2.0 * lightness - 1.0_f64).abs());
        ((lightness + saturation * (full - 0.5)) * 255.0) as u8
    })
}

/// A coloured square and a name per class, in as many columns as fit.
struct Legend {
    names: Vec<String>,
    columns: usize,
    column_width: u32,
}

impl Legend {
    const SQUARE: u32 = 16;
    const ROW: u32 = 24;

    fn new(classes: &[String]) -> Self {
        let names: Vec<String> = classes.iter().map(|name| shorten(name)).collect();
        let widest = names.iter().map(|name| text_width(TEXT, name)).max().unwrap_or(0);
        let column_width = Self::SQUARE + 8 + widest + 24;
        Self { names, columns: (WIDTH / column_width).max(1) as usize, column_width }
    }

    fn height(&self) -> u32 {
        self.names.len().div_ceil(self.columns) as u32 * Self::ROW
    }

    fn draw(&self, canvas: &mut Canvas, top: u32) {
        for (class, name) in self.names.iter().enumerate() {
            let x = MARGIN + (class % self.columns) as u32 * self.column_width;
            let y = top + (class / self.columns) as u32 * Self::ROW;
            let colour = colour(class, self.names.len());
            canvas.rectangle(x, y, Self::SQUARE, Self::SQUARE, colour);
            canvas.text(x + Self::SQUARE + 8, y + 1, TEXT, INK, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_proportional_to_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chart.png");
        let classes = ["a".to_owned(), "b".to_owned()];
        partition_chart("Two", &[vec![30, 10], vec![0, 20]], &classes, &path).unwrap();
        let picture = image::open(&path).unwrap().into_rgb8();
        let count = |colour| picture.pixels().filter(|pixel| pixel.0 == colour).count();
        // Pitch 28, bar height 23; 40 samples are 1000 pixels. The legend's squares are 16 x 16.
        assert_eq!(count(PALETTE[0]), 750 * 23 + 256);
        assert_eq!(count(PALETTE[1]), (250 + 500) * 23 + 256);
    }

    #[test]
    fn of_many_clients_a_subset_is_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chart.png");
        let classes = ["only".to_owned()];
        partition_chart("Many", &vec![vec![1]; 100_000], &classes, &path).unwrap();
        // One in 500 is drawn: 200 bars, 5 apart.
        let picture = image::open(&path).unwrap().into_rgb8();
        let drawn = picture.pixels().filter(|pixel| pixel.0 == PALETTE[0]).count();
        assert_eq!(drawn, 200 * 1000 * 4 + 256);
        assert!(partition_chart("None", &[], &classes, &path).is_err());
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(round_step(8, 8), 1);
        assert_eq!(round_step(40, 8), 5);
        assert_eq!(round_step(498, 8), 100);
        assert_eq!(round_step(1_000_000, 8), 200_000);
    }

    #[test]
    fn a_hundred_classes_have_distinct_colours() {
        let mut colours: Vec<Colour> = (0..100).map(|class| colour(class, 100)).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 100);
    }
}
