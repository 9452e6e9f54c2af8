//! Colours that people with any kind of colour vision can tell apart, and what takes their place without colour.

use fedanchor_report::Status;
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;

/// Blue, orange, green, purple, yellow and sky blue near those of Okabe and Ito, among the 256 colours that
/// most terminals have; each can be read on a dark and on a light ground.
const COLOURS: [u8; 6] = [32, 208, 36, 170, 178, 75];

/// Every line of a chart has a marker of its own as well, and its sign in the legend.
const MARKERS: [(Marker, &str); 6] = [
    (Marker::Braille, "⠒⠒"),
    (Marker::Dot, "••"),
    (Marker::Custom('+'), "++"),
    (Marker::Custom('×'), "××"),
    (Marker::Custom('o'), "oo"),
    (Marker::Custom('-'), "--"),
];

/// Styles, with or without colour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    colour: bool,
}

impl Palette {
    pub(super) fn new(colour: bool) -> Self {
        Self { colour }
    }

    /// The style, marker and sign of a line, counted from 0.
    pub(super) fn line(self, number: usize) -> (Style, Marker, &'static str) {
        let (marker, sign) = MARKERS[number % MARKERS.len()];
        (self.fill(number), marker, sign)
    }

    /// The colour of a line or a part of a bar, counted from 0.
    pub(super) fn fill(self, number: usize) -> Style {
        match self.colour {
            true => Style::new().fg(Color::Indexed(COLOURS[number % COLOURS.len()])),
            false => Style::new(),
        }
    }

    /// The most important words.
    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The least important ones.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// What is chosen.
    pub(super) fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn status(self, status: Status) -> Style {
        let colour = match status {
            Status::Missing => return self.faint(),
            Status::Running => 0,
            Status::Finished => 2,
            Status::Stopped => 1,
        };
        self.fill(colour).add_modifier(Modifier::BOLD)
    }
}
