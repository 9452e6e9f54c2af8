//! Questions about pictures that only a person can answer, with likely defaults.

use super::{labelled, part};
use crate::cli::InitArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::engine::model::MIN_SIDE;
use fedanchor_data::formats::MAX_SIDE;
use fedanchor_data::inspection::{Inspection, Part};
use fedanchor_data::{DataError, Fit};
use std::io::{BufRead, IsTerminal};

/// The settings of the experiment that differ from the preset's.
#[derive(Debug, PartialEq)]
pub(super) struct Answers {
    pub(super) size: usize,
    pub(super) fit: Fit,
    pub(super) mirror: bool,
    pub(super) clients: usize,
    /// Labelled pictures that become anchors; 0 for all.
    pub(super) anchors: usize,
}

impl Answers {
    /// Flags first, then questions, then defaults.
    pub(super) fn collect(
        args: &InitArgs,
        inspection: &Inspection,
        terminal: &mut Terminal,
    ) -> Result<Self> {
        let Some(labelled) = labelled(inspection) else { bail!("no labelled pictures") };
        let likely = likely_size(labelled).to_string();
        let size = ["Pixels per side of the network's images", "--size", &likely];
        let size = terminal.ask(args.size, size, |answer| integer(answer, MIN_SIDE, MAX_SIDE))?;
        let is_square = inspection.parts.iter().all(|part| part.square == part.pictures);
        let likely = Fit::Pad.to_string();
        let fit = ["Pictures that are not square: stretch, crop or pad", "--fit", &likely];
        let known = args.fit.or(is_square.then_some(Fit::Stretch));
        let fit = terminal.ask(known, fit, |answer| {
            answer.parse().map_err(|error: DataError| error.to_string())
        })?;
        let mirror =
            "Does a mirrored picture have the same class, unlike text, digits or signs: yes or no";
        let mirror = terminal.ask(args.mirror, [mirror, "--mirror", "no"], yes_or_no)?;
        let unlabelled = part(inspection, "unlabelled");
        let (pictures, anchors) = match unlabelled {
            Some(part) => (part.pictures, 0),
            None => {
                // A tenth of them, but at least two per class and at most as many as the smallest class has.
                let classes = inspection.classes.len();
                let smallest = labelled.by_class.iter().copied().min().unwrap_or(0);
                let each = (labelled.pictures / 10 / classes.max(1)).clamp(2, 25).min(smallest);
                let anchors = each * classes;
                (labelled.pictures.saturating_sub(anchors), anchors)
            }
        };
        let folders = unlabelled.map_or(0, |part| part.by_client.len());
        let most = pictures.max(1);
        let likely = (pictures / 150).clamp(2, 20).min(most).to_string();
        let clients =
            ["Simulated clients that share the unlabelled pictures", "--clients", &likely];
        let known = if folders > 0 { Some(folders) } else { args.clients };
        let clients = terminal.ask(known, clients, |answer| integer(answer, 1, most))?;
        Ok(Self { size, fit, mirror, clients, anchors })
    }
}

/// An integer in a range, or the problem with the answer.
fn integer(answer: &str, least: usize, most: usize) -> Result<usize, String> {
    match answer.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("expected an integer from {least} to {most}, got `{answer}`")),
    }
}

fn yes_or_no(answer: &str) -> Result<bool, String> {
    match answer.to_ascii_lowercase().as_str() {
        "yes" | "y" => Ok(true),
        "no" | "n" => Ok(false),
        _ => Err(format!("expected yes or no, got `{answer}`")),
    }
}

/// The size of the pictures if they are all equal and small, otherwise a size at which training is fast.
fn likely_size(part: &Part) -> usize {
    let (Some(width), Some(height)) = (part.width, part.height) else { return 32 };
    let alike = width.smallest == width.largest && height == width;
    let side = width.median.min(height.median) as usize;
    match side {
        16..=48 if alike => side,
        0..=48 => 32,
        _ => 64,
    }
}

/// Asks questions if a person is at the terminal.
pub(super) struct Terminal<'a> {
    printer: &'a Printer,
    /// `None` if nobody is asked.
    input: Option<Box<dyn BufRead + 'a>>,
}

impl<'a> Terminal<'a> {
    pub(super) fn new(printer: &'a Printer, asks: bool) -> Self {
        let asks = asks && printer.is_terminal() && std::io::stdin().is_terminal();
        let input = asks.then(|| Box::new(std::io::stdin().lock()) as Box<dyn BufRead>);
        Self { printer, input }
    }

    /// Whether a person is asked.
    pub(super) fn asks(&self) -> bool {
        self.input.is_some()
    }

    /// The known answer, or one to the question, which is repeated until `read` accepts the answer. `likely` is the answer
    /// for an empty line, and without a terminal; `flag` answers the question in advance.
    fn ask<T>(
        &mut self,
        known: Option<T>,
        [text, flag, likely]: [&str; 3],
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T> {
        if let Some(known) = known {
            return Ok(known);
        }
        loop {
            let mut line = Vec::new();
            if let Some(input) = &mut self.input {
                self.printer.prompt(format!("{text} [{likely}]: "));
                if input.read_until(b'\n', &mut line)? == 0 {
                    self.printer.prompt("\n");
                    bail!(
                        "{text}: the input ended without an answer: answer with {flag}, or accept all \
                         defaults with --yes"
                    );
                }
            }
            let line = String::from_utf8_lossy(&line);
            let answer = match line.trim() {
                "" => likely,
                answer => answer,
            };
            match read(answer) {
                Ok(answer) => return Ok(answer),
                Err(why) if self.input.is_none() => bail!("{text}: {why}"),
                Err(why) => self.printer.prompt(format!("{why}\n")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::LogFormat;
    use fedanchor_data::inspection::Spread;

    fn sized(width: (f64, f64), height: (f64, f64)) -> Part {
        let spread = |(smallest, largest): (f64, f64)| {
            Some(Spread { smallest, median: (smallest + largest) / 2.0, largest })
        };
        Part {
            name: "labelled".to_owned(),
            pictures: 2,
            by_class: vec![1, 1],
            by_client: Vec::new(),
            width: spread(width),
            height: spread(height),
            aspect: None,
            square: 0,
            grey: 0,
        }
    }

    #[test]
    fn small_pictures_of_one_size_keep_it() {
        assert_eq!(likely_size(&sized((28.0, 28.0), (28.0, 28.0))), 28);
        assert_eq!(likely_size(&sized((8.0, 8.0), (8.0, 8.0))), 32);
        assert_eq!(likely_size(&sized((20.0, 44.0), (20.0, 44.0))), 32);
        assert_eq!(likely_size(&sized((4000.0, 4000.0), (3000.0, 3000.0))), 64);
    }

    /// The answer to one question whose likely answer is 32, from what a person types, and what is left of it.
    fn answered(typed: &str) -> (Result<usize>, String) {
        let printer = Printer::new(true, LogFormat::Text);
        let mut left = typed.as_bytes();
        let mut terminal = Terminal { printer: &printer, input: Some(Box::new(&mut left)) };
        let question = ["Size", "--size", "32"];
        let answer = terminal.ask(None, question, |answer| integer(answer, 16, 100));
        drop(terminal);
        (answer, String::from_utf8(left.to_vec()).unwrap())
    }

    #[test]
    fn an_answer_that_cannot_be_used_is_asked_for_again() {
        for (typed, answer) in [
            ("48\nrest", 48),
            ("\nrest", 32),
            ("many\n8\n-1\n 101 \n64\nrest", 64),
            ("no\n\nrest", 32),
        ] {
            let (found, left) = answered(typed);
            assert_eq!((found.unwrap(), left.as_str()), (answer, "rest"), "{typed}");
        }
    }

    #[test]
    fn the_end_of_the_input_is_an_error_that_names_the_flag() {
        for typed in ["", "many\n", "8\n101\n"] {
            let why = answered(typed).0.unwrap_err().to_string();
            let expected = "Size: the input ended without an answer: answer with --size, or";
            assert!(why.starts_with(expected), "{why}");
        }
        // A last line need not have an end.
        assert_eq!(answered("64").0.unwrap(), 64);
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_said() {
        assert_eq!(integer("x", 1, 5), Err("expected an integer from 1 to 5, got `x`".to_owned()));
        assert_eq!((yes_or_no("Y"), yes_or_no("no")), (Ok(true), Ok(false)));
        assert_eq!(yes_or_no("1"), Err("expected yes or no, got `1`".to_owned()));
    }
}
