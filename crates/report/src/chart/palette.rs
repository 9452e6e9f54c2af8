//! Colours that people with any colour vision can tell apart, as far as their number allows.

/// Colours of lines: those of Okabe and Ito (2008) that stand out on white and on black, a violet and a grey. Lines differ
/// in their dash pattern as well.
const LINES: [&str; 8] =
    ["#009e73", "#d55e00", "#cc79a7", "#e69f00", "#808080", "#56b4e9", "#0072b2", "#7a5fb5"];

/// Colours of classes: ten whose neighbours differ in lightness as well as in hue, and then always the one that is
/// farthest from all before in Oklab (B. Ottosson, 2020), where distances are about as people see them, but neither as pale
/// as the paper nor as dark as the ink.
const CLASSES: [&str; 100] = [
    "#4477aa", "#ee9944", "#228855", "#ddcc66", "#aa3377", "#77ccee", "#8c563b", "#ee99aa",
    "#333377", "#aaaaaa", "#ff00ff", "#8700ff", "#00ff00", "#004b00", "#ff0000", "#0000f0",
    "#3cc35a", "#a587ff", "#78001e", "#69ffc3", "#ffd2ff", "#ff0096", "#780096", "#0069ff",
    "#ff87ff", "#a58700", "#00a5ff", "#b44bd2", "#a578a5", "#3c5a5a", "#2da5a5", "#b4000f",
    "#4b3cc3", "#d2695a", "#c3f00f", "#694b87", "#5a3c00", "#b4f0ff", "#c3b4ff", "#e169c3",
    "#78d2a5", "#7869e1", "#2d6900", "#001ea5", "#b4b400", "#690f5a", "#005a96", "#878778",
    "#f0c3b4", "#00a500", "#ff6987", "#d2f0b4", "#d200a5", "#ff6900", "#693c4b", "#00f0ff",
    "#a500b4", "#e1005a", "#69e14b", "#78a569", "#7896c3", "#4b00a5", "#c300ff", "#4b2dff",
    "#d269ff", "#96004b", "#874bb4", "#786978", "#78782d", "#c34b00", "#b496d2", "#ffe12d",
    "#695a00", "#0087e1", "#b49669", "#1ec3c3", "#007878", "#b45a78", "#872d00", "#3c3c3c",
    "#c3b478", "#b4d2c3", "#e13cd2", "#d27800", "#2dff87", "#ffa5e1", "#87a5ff", "#6987ff",
    "#004b69", "#a5690f", "#a5e178", "#d24b96", "#d27896", "#781ec3", "#ff5af0", "#5a5ab4",
    "#c3d2ff", "#005ad2", "#78a500", "#964bff",
];

/// The colour of a line, as `#rrggbb`.
pub(super) fn line_colour(style: usize) -> &'static str {
    LINES[style % LINES.len()]
}

/// The colour of a class, as `#rrggbb`. More classes than there are colours share them.
pub(super) fn class_colour(class: usize) -> &'static str {
    CLASSES[class % CLASSES.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn many_classes_have_colours_that_can_be_told_apart() {
        // White is 1 from black, and the nearest two of the first ten are 0.1 apart.
        for (classes, least) in [(10, 0.1), (43, 0.09), (100, 0.06)] {
            let colours: Vec<[f64; 3]> = (0..classes)
                .map(|class| {
                    let hex = u32::from_str_radix(&class_colour(class)[1..], 16).unwrap();
                    let [_, colour @ ..] = hex.to_be_bytes();
                    perceived(colour)
                })
                .collect();
            for (class, a) in colours.iter().enumerate() {
                let near = colours[..class].iter().map(|b| distance(a, b)).fold(1.0, f64::min);
                assert!(near > least, "class {class} of {classes}: {near}");
            }
        }
        assert_eq!([0, 1, 4999].map(class_colour), ["#4477aa", "#ee9944", "#964bff"]);
    }
}
