//! PNG from SVG.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::sync::Arc;

/// Why no picture could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrawError {
    /// The SVG cannot be read.
    #[error("the figure cannot be drawn: {0}")]
    Svg(#[from] resvg::usvg::Error),
    /// The picture has no pixels or too many of them.
    #[error("a picture of {width} x {height} pixels cannot be made")]
    Size {
        /// Pixels across.
        width: f32,
        /// Pixels down.
        height: f32,
    },
    /// The PNG cannot be written.
    #[error("the figure cannot be written as PNG: {0}")]
    Png(String),
}

/// Draws SVG as PNG, `scale` pixels per unit, on white. Text is set in DejaVu Sans, never in a font of the
/// machine.
pub fn png(svg: &str, scale: f32) -> Result<Vec<u8>, DrawError> {
    let mut options = Options { font_family: "DejaVu Sans".to_owned(), ..Options::default() };
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let tree = Tree::from_str(svg, &options)?;
    let size = tree.size().to_int_size().scale_by(scale);
    let wrong = || DrawError::Size {
        width: tree.size().width() * scale,
        height: tree.size().height() * scale,
    };
    let size = size.ok_or_else(wrong)?;
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(wrong)?;
    pixels.fill(resvg::tiny_skia::Color::WHITE);
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| DrawError::Png(error.to_string()))
}
