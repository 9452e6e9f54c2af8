//! A sheet of pictures: rows with a title, a line of text under each picture.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::fmt::Write;

/// Side of a picture on the sheet.
const SIDE: usize = 72;
/// From one picture to the next.
const PITCH: usize = 92;
/// Height of a line of text.
const LINE: usize = 13;
const MARGIN: usize = 16;
/// Characters that fit under a picture.
const FITS: usize = 15;

/// Rows of pictures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sheet {
    /// Pictures in one line at most.
    pub columns: usize,
    /// Title and pictures of each row.
    pub rows: Vec<(String, Vec<Picture>)>,
}

/// A picture and the text under it.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Draws the sheet.
    pub(crate) fn svg(&self, title: &str) -> String {
        let columns = self.columns.max(1);
        let width = 2 * MARGIN + columns * PITCH;
        let mut body = String::new();
        let mut y = MARGIN + 18;
        text(&mut body, MARGIN, y, 16, "start", title);
        y += 14;
        for (name, pictures) in &self.rows {
            if !name.is_empty() {
                y += 22;
                text(&mut body, MARGIN, y, 13, "start", name);
            }
            y += 10;
            for line in pictures.chunks(columns) {
                for (column, picture) in line.iter().enumerate() {
                    let x = MARGIN + column * PITCH;
                    let _ = write!(
                        body,
                        "<image x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" \
                         style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>",
                        picture.png
                    );
                    for (at, caption) in picture.caption.iter().enumerate() {
                        let below = y + SIDE + LINE * (at + 1);
                        text(&mut body, x + SIDE / 2, below, 10, "middle", &shortened(caption));
                    }
                }
                let captions = line.iter().map(|picture| picture.caption.len()).max().unwrap_or(0);
                y += SIDE + LINE * captions + 14;
            }
        }
        let height = y + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"DejaVu Sans, sans-serif\">\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>{body}</svg>"
        )
    }
}

fn text(body: &mut String, x: usize, y: usize, size: usize, anchor: &str, text: &str) {
    let _ = write!(
        body,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"#222\">{}</text>",
        escaped(text)
    );
}

/// Text as it may stand in SVG: without markup, and without the control characters that XML forbids.
fn escaped(text: &str) -> String {
    let plain = text.replace(|letter: char| letter.is_control(), " ");
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text that fits under a picture.
fn shortened(text: &str) -> String {
    if text.chars().count() <= FITS {
        return text.to_owned();
    }
    text.chars().take(FITS - 1).chain(['…']).collect()
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

    #[test]
    fn long_captions_are_cut() {
        assert_eq!(shortened("Ankle boot"), "Ankle boot");
        assert_eq!(shortened("a very long name of a class"), "a very long na…");
    }
}
