//! The only code that writes to standard output, standard error and progress bars.

use fedanchor_record::words::{is_hidden, printable};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{IsTerminal, Write};

/// How log messages and progress are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Prints results to standard output, and everything else to standard error.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    terminal: bool,
    quiet: bool,
    /// Whether progress and errors are log messages.
    logs: bool,
}

impl Printer {
    pub fn new(quiet: bool, format: LogFormat) -> Self {
        let logs = format == LogFormat::Json;
        Self { terminal: std::io::stderr().is_terminal() && !quiet && !logs, quiet, logs }
    }

    /// For a command whose results go to a program: no progress bars, no questions.
    pub fn for_json(self, json: bool) -> Self {
        Self { terminal: self.terminal && !json, ..self }
    }

    /// A line of results. It may contain names of classes, clients, files and runs: on a terminal, their control
    /// characters are replaced.
    pub fn line(&self, text: impl AsRef<str>) {
        self.try_line(text);
    }

    /// Results in several lines.
    pub fn text(&self, text: &str) {
        text.trim_end().lines().for_each(|line| self.line(line));
    }

    /// A line of results; `false` if the reader of the pipe has ended.
    pub fn try_line(&self, text: impl AsRef<str>) -> bool {
        let (mut out, text) = (std::io::stdout(), text.as_ref());
        let text = if out.is_terminal() { printable(text).into() } else { Cow::from(text) };
        match writeln!(out, "{text}") {
            Ok(()) => true,
            // Unlike a full disk, no reason to fail.
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

    /// A line about progress; not with `--quiet`.
    pub fn status(&self, text: impl AsRef<str>) {
        match text.as_ref() {
            _ if self.quiet => {}
            text if self.logs => tracing::info!("{text}"),
            text => to_stderr(&printable(text)),
        }
    }

    /// A question to the user; the answer goes on the same line.
    pub fn prompt(&self, text: impl AsRef<str>) {
        // Nothing is left to do if the terminal is gone.
        let _ = write!(std::io::stderr(), "{}", laid_out(text.as_ref()));
        let _ = std::io::stderr().flush();
    }

    /// An error, also with `--quiet`. It may have several lines.
    pub fn failure(&self, text: impl AsRef<str>) {
        match text.as_ref() {
            text if self.logs => tracing::error!("{text}"),
            text => to_stderr(&laid_out(text)),
        }
    }

    /// Whether a person is watching.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// A bar for the rounds of a run.
    pub fn round_bar(&self, rounds: u32) -> ProgressBar {
        self.bar(rounds.into(), "round {pos}/{len} [{bar:12}] {wide_msg}")
    }

    /// A progress bar, hidden unless a person is watching.
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

/// Text without hidden characters except line breaks, which belong to the layout of an error: names in errors are escaped
/// where the error is made.
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
