//! A sheet of pictures: rows with a title, a line of text under each picture.

use super::svg::{MARGIN, Svg, shortened};
use crate::escape;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Side of a picture on the sheet.
const SIDE: f64 = 72.0;
/// From one picture to the next.
const PITCH: f64 = 92.0;
/// Height of a line of text.
const LINE: f64 = 13.0;
/// Characters that fit under a picture.
const FITS: usize = 15;

/// Rows of pictures.
#[derive(Debug, Clone, PartialEq)]
pub struct Sheet {
    /// Pictures in one line at most.
    pub columns: usize,
    /// Title and pictures of each row.
    pub rows: Vec<(String, Vec<Picture>)>,
}

/// A picture and the text under it.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// The picture as a PNG file in base64.
    pub png: String,
    /// Lines of text.
    pub caption: Vec<String>,
}

impl Picture {
    /// A picture from the bytes of a PNG file.
    pub fn new(png: &[u8], caption: Vec<String>) -> Self {
        Self { png: STANDARD.encode(png), caption }
    }
}

impl Sheet {
    pub(super) fn svg(&self, title: &str) -> String {
        let columns = self.columns.max(1);
        let mut svg = Svg::new(title, "");
        let mut y = svg.head;
        for (name, pictures) in &self.rows {
            if !name.is_empty() {
                y += 22.0;
                svg.text([MARGIN, y], "font-size=\"13\"", name);
            }
            y += 10.0;
            for line in pictures.chunks(columns) {
                for (column, picture) in line.iter().enumerate() {
                    let x = MARGIN + column as f64 * PITCH;
                    svg.add(format_args!(
                        "<image x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" \
                         style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
                        escape::markup(&picture.png)
                    ));
                    for (below, caption) in (1..).zip(&picture.caption) {
                        let at = [x + SIDE / 2.0, y + SIDE + LINE * f64::from(below)];
                        let caption = shortened(caption, FITS);
                        svg.text(at, "font-size=\"10\" text-anchor=\"middle\"", &caption);
                    }
                }
                let captions = line.iter().map(|picture| picture.caption.len()).max().unwrap_or(0);
                y += SIDE + LINE * captions as f64 + 14.0;
            }
        }
        let width = 2.0 * MARGIN + columns as f64 * PITCH;
        svg.whole([width, y + MARGIN], width, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_has_every_picture_and_its_text_as_text() {
        let picture = Picture::new(b"not decoded here", vec!["<b>".to_owned(), "0.93".to_owned()]);
        let rows = vec![("wrong".to_owned(), vec![picture; 3])];
        let sheet = Sheet { columns: 2, rows };
        let svg = sheet.svg("A & B");
        assert_eq!(svg.matches("<image").count(), 3);
        assert_eq!(svg.matches("&lt;b&gt;").count(), 3);
        assert!(svg.contains("A &amp; B") && !svg.contains("<b>"));
    }
}
