//! Figures as values, and their drawing: a [`Chart`] or a [`Sheet`] of pictures becomes SVG, and SVG
//! becomes PNG.
//!
//! A chart says what is shown, not how: the same value is drawn here for a paper and by a script in the
//! page of a report. Drawing is left to `kuva`, and PNG files are made from the SVG by `resvg` with a font
//! of its own, so that a figure looks the same on every machine.
//!
//! ```
//! use fedanchor_draw::{Axis, Chart, Line, Lines, png};
//!
//! let line = Line::new("FedAnchor", vec![[0.0, 78.9], [1.0, 85.2]]);
//! let (x, y) = (Axis::new("round"), Axis::new("test accuracy (%)"));
//! let chart = Chart::Lines(Lines { x, y, lines: vec![line], references: Vec::new() });
//! let svg = chart.svg("Accuracy");
//! let bytes = png(&svg, 2.0)?;
//! # assert!(svg.contains("FedAnchor") && bytes.starts_with(b"\x89PNG"));
//! # Ok::<(), fedanchor_draw::DrawError>(())
//! ```

mod chart;
mod palette;
mod png;
mod sheet;
mod svg;

pub use chart::{Axis, Bars, Chart, Heat, Line, Lines, Points, Reference, Scale, Series, Swarm};
pub use palette::{class_colours, line_colour};
pub use png::{DrawError, png};
pub use sheet::{Picture, Sheet};
