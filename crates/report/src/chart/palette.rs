//! Colours that people with any colour vision can tell apart, as far as their number allows.

/// Colours of lines: those of Okabe and Ito (2008) that stand out on white and on black, a violet and a grey. Lines differ
/// in their dash pattern as well.
const LINES: [&str; 8] =
    ["#009e73", "#d55e00", "#cc79a7", "#e69f00", "#808080", "#56b4e9", "#0072b2", "#7a5fb5"];

/// Colours of classes: neighbours differ in lightness as well as in hue.
const CLASSES: [[u8; 3]; 10] = [
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

/// The colour of a line, as `#rrggbb`.
pub(super) fn line_colour(style: usize) -> &'static str {
    LINES[style % LINES.len()]
}

/// One colour per class, as `#rrggbb`: a palette, and after it always the colour that is farthest from all
/// before, as people see distances.
pub(super) fn class_colours(classes: usize) -> Vec<String> {
    farthest_colours(classes).into_iter().map(hex).collect()
}

pub(super) fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn farthest_colours(classes: usize) -> Vec<[u8; 3]> {
    let mut colours: Vec<[u8; 3]> = CLASSES.into_iter().take(classes).collect();
    if classes <= colours.len() {
        return colours;
    }
    let levels = || (0..=255u8).step_by(15);
    let all = levels().flat_map(|red| {
        levels().flat_map(move |green| levels().map(move |blue| [red, green, blue]))
    });
    // Neither as pale as the paper nor as dark as the ink.
    let mut free: Vec<([u8; 3], [f64; 3], f64)> = all
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
fn perceived(colour: [u8; 3]) -> [f64; 3] {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_classes_have_colours_that_can_be_told_apart() {
        // White is 1 from black, and the nearest two of the ten of the palette are 0.1 apart.
        for (classes, least) in [(10, 0.1), (43, 0.09), (100, 0.06)] {
            let colours: Vec<[f64; 3]> =
                farthest_colours(classes).into_iter().map(perceived).collect();
            for (class, a) in colours.iter().enumerate() {
                let near = colours[..class].iter().map(|b| distance(a, b)).fold(1.0, f64::min);
                assert!(near > least, "class {class} of {classes}: {near}");
            }
        }
        assert_eq!(class_colours(2), ["#4477aa", "#ee9944"]);
        assert_eq!(class_colours(5000).len(), 5000);
    }
}
