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
            canvas.rectangle(start, y, at(sum) - start, bar, legend.colours[class]);
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

/// One colour per class: the palette, and after it always the colour that is farthest from all
/// before, as people see distances.
fn colours(classes: usize) -> Vec<Colour> {
    let mut colours: Vec<Colour> = PALETTE.into_iter().take(classes).collect();
    if classes <= colours.len() {
        return colours;
    }
    let levels = || (0..=255u8).step_by(15);
    let all = levels().flat_map(|red| {
        levels().flat_map(move |green| levels().map(move |blue| [red, green, blue]))
    });
    // Neither as pale as the paper nor as dark as the ink.
    let mut free: Vec<(Colour, [f64; 3], f64)> = all
        .map(|colour| (colour, perceived(colour), f64::INFINITY))
        .filter(|(_, [lightness, ..], _)| (0.35..0.92).contains(lightness))
        .collect();
    let mut known = 0;
    while colours.len() < classes {
        for colour in &colours[known..] {
            let seen = perceived(*colour);
            free.iter_mut()
                .for_each(|(_, other, least)| *least = least.min(distance(&seen, other)));
        }
        known = colours.len();
        let farthest = free.iter().max_by(|a, b| a.2.total_cmp(&b.2)).map(|item| (item.0, item.2));
        match farthest {
            Some((colour, least)) if least > 0.0 => colours.push(colour),
            _ => colours.extend_from_within(..(classes - known).min(known)), // thousands of classes
        }
    }
    colours
}

fn distance(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// A colour in Oklab (B. Ottosson, 2020), where distances are about as people see them.
fn perceived(colour: Colour) -> [f64; 3] {
    let [red, green, blue] = colour.map(|value| {
        let value = f64::from(value) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    });
    let l = (0.412_221_47 * red + 0.536_332_54 * green + 0.051_445_99 * blue).cbrt();
    let m = (0.211_903_5 * red + 0.680_699_55 * green + 0.107_396_96 * blue).cbrt();
    let s = (0.088_302_46 * red + 0.281_718_84 * green + 0.629_978_7 * blue).cbrt();
    [
        0.210_454_26 * l + 0.793_617_79 * m - 0.004_072_05 * s,
        1.977_998_5 * l - 2.428_592_21 * m + 0.450_593_71 * s,
        0.025_904_04 * l + 0.782_771_77 * m - 0.808_675_77 * s,
    ]
}

/// A coloured square and a name per class, in as many columns as fit.
struct Legend {
    names: Vec<String>,
    colours: Vec<Colour>,
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
        let columns = (WIDTH / column_width).max(1) as usize;
        Self { colours: colours(names.len()), names, columns, column_width }
    }

    fn height(&self) -> u32 {
        self.names.len().div_ceil(self.columns) as u32 * Self::ROW
    }

    fn draw(&self, canvas: &mut Canvas, top: u32) {
        for (class, name) in self.names.iter().enumerate() {
            let x = MARGIN + (class % self.columns) as u32 * self.column_width;
            let y = top + (class / self.columns) as u32 * Self::ROW;
            canvas.rectangle(x, y, Self::SQUARE, Self::SQUARE, self.colours[class]);
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
    fn many_classes_have_colours_that_can_be_told_apart() {
        // White is 1 from black, and the nearest two of the ten of the palette are 0.1 apart.
        for (classes, least) in [(10, 0.1), (43, 0.09), (100, 0.06)] {
            let colours: Vec<[f64; 3]> = colours(classes).into_iter().map(perceived).collect();
            for (class, a) in colours.iter().enumerate() {
                let near = colours[..class].iter().map(|b| distance(a, b)).fold(1.0, f64::min);
                assert!(near > least, "class {class} of {classes}: {near}");
            }
        }
        assert_eq!(colours(3), PALETTE[..3]);
        assert_eq!(colours(5000).len(), 5000);
    }
}
