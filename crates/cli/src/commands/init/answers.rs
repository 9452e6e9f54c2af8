//! What only a person can say about pictures, with what is likely as the default.

use super::{labelled, part};
use crate::cli::InitArgs;
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_data::Fit;
use fedanchor_data::inspection::{Inspection, Part};
use std::io::{BufRead, IsTerminal};

/// The settings of the experiment that are not the preset's.
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
        terminal: &Terminal,
    ) -> Result<Self> {
        let pictures: Vec<&Part> = inspection.parts.iter().filter(|p| p.pictures > 0).collect();
        let Some(labelled) = labelled(inspection) else { bail!("no labelled pictures") };
        let size = match args.size {
            Some(size) => size,
            None => {
                terminal.ask("Pixels per side of the network's images", likely_size(labelled))?
            }
        };
        let square = pictures.iter().all(|part| part.square == part.pictures);
        let fit = match args.fit {
            Some(fit) => fit,
            None if square => Fit::Stretch,
            None => terminal.ask("Pictures that are not square: stretch, crop or pad", Fit::Pad)?,
        };
        let mirror = match args.mirror {
            Some(mirror) => mirror,
            None => {
                let question = "Is a mirrored picture still of its class? Not for text, digits or \
                                signs: yes or no";
                match terminal.ask(question, "no".to_owned())?.as_str() {
                    "yes" | "y" => true,
                    "no" | "n" => false,
                    other => bail!("expected yes or no, found `{other}`"),
                }
            }
        };
        let unlabelled = part(inspection, "unlabelled");
        let (clients, anchors) = match unlabelled {
            Some(part) if !part.by_client.is_empty() => (part.by_client.len(), 0),
            Some(part) => (Self::clients(args, part.pictures, terminal)?, 0),
            None => {
                // A tenth of them, but two per class at least and no more than the smallest class has.
                let classes = inspection.classes.len();
                let smallest = labelled.by_class.iter().copied().min().unwrap_or(0);
                let each = (labelled.pictures / 10 / classes.max(1)).clamp(2, 25).min(smallest);
                let anchors = each * classes;
                (Self::clients(args, labelled.pictures.saturating_sub(anchors), terminal)?, anchors)
            }
        };
        Ok(Self { size, fit, mirror, clients, anchors })
    }

    fn clients(args: &InitArgs, pictures: usize, terminal: &Terminal) -> Result<usize> {
        let likely = (pictures / 150).clamp(2, 20).min(pictures.max(1));
        match args.clients {
            Some(clients) => Ok(clients),
            None => terminal.ask("Simulated clients that share the unlabelled pictures", likely),
        }
    }
}

/// The size of the pictures if they are all alike and small, otherwise one that a network learns from fast.
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

/// Asks a person, where there is one.
pub(super) struct Terminal<'a> {
    printer: &'a Printer,
    asks: bool,
}

impl<'a> Terminal<'a> {
    pub(super) fn of(printer: &'a Printer, yes: bool) -> Self {
        Self { printer, asks: !yes && printer.is_terminal() && std::io::stdin().is_terminal() }
    }

    /// The answer, or the default for an empty line and where nobody is asked.
    fn ask<T: std::fmt::Display + std::str::FromStr>(
        &self,
        question: &str,
        likely: T,
    ) -> Result<T> {
        if !self.asks {
            return Ok(likely);
        }
        self.printer.prompt(format!("{question} [{likely}]: "));
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line)?;
        match line.trim() {
            "" => Ok(likely),
            answer => match answer.parse() {
                Ok(answer) => Ok(answer),
                Err(_) => bail!("{question}: `{answer}` is no answer; the likely one is {likely}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
