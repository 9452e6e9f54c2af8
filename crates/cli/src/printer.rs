//! The one owner of standard output, standard error and progress bars.

use fedanchor_record::words::{is_hidden, printable};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{IsTerminal, Write};

/// Prints results to standard output, and what happens meanwhile to standard error.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    terminal: bool,
    quiet: bool,
}

impl Printer {
    pub fn new(quiet: bool) -> Self {
        Self { terminal: std::io::stderr().is_terminal() && !quiet, quiet }
    }

    /// For a command whose results go to a program: no progress bars, no questions.
    pub fn for_json(self, json: bool) -> Self {
        Self { terminal: self.terminal && !json, ..self }
    }

    /// A line of results. Names of classes, clients, files and runs come from elsewhere: on a terminal no character of
    /// them does anything, nor ends the line.
    pub fn line(&self, text: impl AsRef<str>) {
        self.try_line(text);
    }

    /// Results in several lines.
    pub fn text(&self, text: &str) {
        text.trim_end().lines().for_each(|line| self.line(line));
    }

    /// A line of results; `false` if its reader has gone away.
    pub fn try_line(&self, text: impl AsRef<str>) -> bool {
        let (mut out, text) = (std::io::stdout(), text.as_ref());
        let text = if out.is_terminal() { printable(text).into() } else { Cow::from(text) };
        match writeln!(out, "{text}") {
            Ok(()) => true,
            // No reason to fail; a full disk is.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => false,
            Err(error) => {
                to_stderr(&format!("error: standard output: {error}"));
                std::process::exit(1);
            }
        }
    }

    /// Results for a program.
    pub fn json(&self, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value);
        self.text(&text.expect("plain structs have a JSON form"));
    }

    /// A line about what happens; not with `--quiet`.
    pub fn status(&self, text: impl AsRef<str>) {
        if !self.quiet {
            to_stderr(&printable(text.as_ref()));
        }
    }

    /// A question to a person at the terminal; the answer goes on the same line.
    pub fn prompt(&self, text: impl AsRef<str>) {
        // Nothing is left to do if the terminal is gone.
        let _ = write!(std::io::stderr(), "{}", laid_out(text.as_ref()));
        let _ = std::io::stderr().flush();
    }

    /// Something that failed although the program continues; also with `--quiet`. Like an error, it may have several
    /// lines.
    pub fn failure(&self, text: impl AsRef<str>) {
        to_stderr(&laid_out(text.as_ref()));
    }

    /// What went wrong, with its causes.
    pub fn error(&self, error: &anyhow::Error) {
        to_stderr(&laid_out(&format!("error: {error:#}")));
    }

    /// Whether a person is watching.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A progress bar, invisible unless a person is watching.
    pub fn bar(&self, length: u64, template: &str) -> ProgressBar {
        let target =
            if self.terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        ProgressBar::with_draw_target(Some(length), target).with_style(style)
    }
}

fn to_stderr(text: &str) {
    // Nothing is left to do if the terminal is gone.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Text without hidden characters but the line breaks of an error's own layout: the names in it are escaped by whoever
/// made the error.
fn laid_out(text: &str) -> String {
    text.replace(|letter: char| is_hidden(letter) && letter != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let hostile = "cat\u{1b}[31m\u{9b}2J\rdog\ta\nb";
        let plain = "cat\u{fffd}[31m\u{fffd}2J\u{fffd}dog\u{fffd}a";
        assert_eq!(laid_out(hostile), format!("{plain}\nb"));
        assert_eq!(printable(hostile), format!("{plain}\u{fffd}b"));
        assert_eq!(laid_out("größe 100 %"), "größe 100 %");
    }
}
