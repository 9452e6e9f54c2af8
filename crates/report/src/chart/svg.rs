//! An SVG that is being written: its title, texts, lines and legend.

use crate::escape;
use std::fmt::Write;

/// Space at the edges.
pub(super) const MARGIN: f64 = 16.0;
/// From one entry of a legend to the next.
const ROW: f64 = 19.0;
/// Characters of a name in a legend.
const LONGEST_NAME: usize = 48;

/// An SVG without its end.
pub(super) struct Svg {
    body: String,
    title: String,
    /// The height that title and subtitle take.
    pub(super) head: f64,
}

/// An entry of a legend.
pub(super) struct Key {
    pub(super) name: String,
    /// A sample of the line, from x = 0 to 24 around y = 0.
    pub(super) sample: String,
    pub(super) shown: bool,
}

/// A coordinate to a tenth of a unit: finer steps cannot be seen.
pub(super) fn px(value: f64) -> f64 {
    (value * 10.0).round() / 10.0 + 0.0
}

/// The width of a text with this number of characters.
pub(super) fn text_width(characters: usize) -> f64 {
    characters as f64 * 7.2
}

impl Svg {
    pub(super) fn new(title: &str, subtitle: &str) -> Self {
        let mut svg = Self { body: String::new(), title: escape::markup(title), head: 34.0 };
        svg.text([MARGIN, 22.0], "font-size=\"15\" font-weight=\"bold\"", title);
        if !subtitle.is_empty() {
            svg.text([MARGIN, 40.0], "class=\"count\" fill=\"#666666\"", subtitle);
            svg.head = 50.0;
        }
        svg
    }

    /// Adds markup.
    pub(super) fn add(&mut self, markup: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(markup);
    }

    /// Adds text at a place.
    pub(super) fn text(&mut self, [x, y]: [f64; 2], attributes: &str, text: &str) {
        let text = escape::markup(text);
        self.add(format_args!("<text x=\"{x}\" y=\"{y}\" {attributes}>{text}</text>\n"));
    }

    /// Adds the label of a vertical axis.
    pub(super) fn upright(&mut self, [x, y]: [f64; 2], text: &str) {
        let turned =
            format!("font-size=\"13\" text-anchor=\"middle\" transform=\"rotate(-90 {x} {y})\"");
        self.text([x, y], &turned, text);
    }

    /// Adds a line of an axis or a grid.
    pub(super) fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        let colour = if class == "grid" { "#e2e5e9" } else { "#808080" };
        self.add(format_args!(
            "<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\" stroke=\"{colour}\"/>\n"
        ));
    }

    /// Begins the group of a line, a colour of bars or a class, which can be switched on and off.
    pub(super) fn group(&mut self, name: &str, shown: bool, attributes: &str) {
        let (name, hidden) = (escape::markup(name), display(shown));
        self.add(format_args!("<g data-line=\"{name}\" {attributes}{hidden}>"));
    }

    /// Adds the legend at the right of a plane, and returns its width.
    fn legend(&mut self, keys: &[Key], [left, top]: [f64; 2], height: f64) -> f64 {
        let longest = keys.iter().map(|key| key.name.chars().count().min(LONGEST_NAME)).max();
        let Some(longest) = longest else { return 0.0 };
        let (column, rows) = (40.0 + text_width(longest), (height / ROW).max(1.0) as usize);
        let mut shown: usize = 0;
        for key in keys {
            let x = px(left + (shown / rows) as f64 * column);
            let y = px(top + 8.0 + (shown % rows) as f64 * ROW);
            let (name, hidden) = (escape::markup(&key.name), display(key.shown));
            self.add(format_args!(
                "<g data-key=\"{name}\" transform=\"translate({x} {y})\"{hidden}>{}",
                key.sample
            ));
            self.text([32.0, 4.0], "", &shortened(&key.name, LONGEST_NAME));
            self.add(format_args!("</g>"));
            shown += usize::from(key.shown);
        }
        shown.div_ceil(rows) as f64 * column
    }

    /// The whole SVG: `width` and `height` are those of the plane with its axes, `top` is where the plane begins. The
    /// page leaves out the title, and has the legend elsewhere.
    pub(super) fn finish(
        mut self,
        [width, height]: [f64; 2],
        top: f64,
        keys: &[Key],
        attributes: &str,
    ) -> String {
        let legend = self.legend(keys, [width, top], height - top);
        self.whole([(width + legend).ceil(), height.ceil()], width.ceil(), attributes)
    }

    /// The whole SVG, of this size, of which the page shows this part of the width and all below the title.
    pub(super) fn whole(self, [width, height]: [f64; 2], shown: f64, attributes: &str) -> String {
        let Self { body, title, head } = self;
        let top = head - 7.0;
        let below = height - top;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" aria-label=\"{title}\" \
             viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             data-plot=\"0 {top} {shown} {below}\" {attributes} \
             font-family=\"DejaVu Sans, sans-serif\" font-size=\"12\" fill=\"#222222\">\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}

/// The attribute of a group that is not shown.
fn display(shown: bool) -> &'static str {
    if shown { "" } else { " display=\"none\"" }
}

/// A name that leaves room for the figure.
pub(super) fn shortened(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest {
        return name.to_owned();
    }
    name.chars().take(longest - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("Ankle boot", 15), "Ankle boot");
        assert_eq!(shortened("a very long name of a class", 15), "a very long na…");
    }
}
