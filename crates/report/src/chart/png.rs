//! PNG from SVG.

use crate::error::{ReportError, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::fmt::Display;
use std::sync::Arc;

/// Draws SVG as PNG, `scale` pixels per unit, on white, with text in an embedded font.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>> {
    let mut options = Options { font_family: "DejaVu Sans".to_owned(), ..Options::default() };
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let wrong = |problem: &dyn Display| {
        ReportError::Other(format!("the figure cannot be drawn: {problem}"))
    };
    let tree = Tree::from_str(svg, &options).map_err(|error| wrong(&error))?;
    let size = tree.size().to_int_size().scale_by(scale);
    let pixels = size.and_then(|size| Pixmap::new(size.width(), size.height()));
    let mut pixels = pixels.ok_or_else(|| wrong(&"it has no pixels, or too many"))?;
    pixels.fill(resvg::tiny_skia::Color::WHITE);
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| wrong(&error))
}
