//! The command line of fedanchor: parse, then resolve, then run. Results go to standard output, everything else to
//! standard error. The exit status is 0 for success, 1 for a mistake of the user, 2 for a failure of the program, 130 after
//! an interruption.
//!
//! It is a library so that other programs can extend it: register a method, then call [`main()`].

mod cli;
mod commands;
mod printer;

use clap::FromArgMatches;

use commands::Interrupted;
use fedanchor_record::Build;
use printer::{LogFormat, Printer};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

pub use cli::command;
pub use commands::{complete, new_folder, read_experiment, trained};

/// The build of this program, from its build script.
pub fn build() -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("FEDANCHOR_COMMIT").to_owned(),
        changed: env!("FEDANCHOR_CHANGED") == "true",
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    ExitCode::from(with_arguments(std::env::args_os()))
}

/// Runs a command line, which begins with the name of the program; returns the exit status.
pub fn with_arguments(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    build().declare();
    // clap would exit with 2, which means a failure of the program here.
    let parsed = command().try_get_matches_from(arguments);
    let cli = match parsed.and_then(|matches| cli::Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do if the terminal is gone.
            let _ = error.print();
            return u8::from(error.use_stderr());
        }
    };
    start_log(cli.verbose, cli.log_format);
    quiet_torch_panics();
    let printer = Printer::new(cli.quiet, cli.log_format);
    match commands::run(cli, &printer) {
        Ok(()) => 0,
        Err(error) if error.is::<Interrupted>() => {
            printer.failure(error.to_string());
            130
        }
        Err(error) => {
            printer.failure(format!("error: {error:#}"));
            let ours = matches!(error.downcast_ref(), Some(fedanchor::Error::Engine(_)));
            if ours { 2 } else { 1 }
        }
    }
}

/// Logs errors to standard error, and more with `-v` or `RUST_LOG`.
fn start_log(verbose: u8, format: LogFormat) {
    let level = match verbose {
        // A fleet's warnings are printed nowhere else.
        0 => "fedanchor_fleet=warn,error",
        1 => "fedanchor=info,fedanchor_engine=info,fedanchor_fleet=info,error",
        2 => "fedanchor=debug,fedanchor_engine=debug,fedanchor_fleet=debug,info",
        _ => "trace",
    };
    let asked = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.or_else(|| level.parse().ok()).unwrap_or_default();
    if format == LogFormat::Json {
        // Progress and errors are among the messages.
        let filter = filter.with_target("fedanchor_cli", LevelFilter::INFO);
        let lines = tracing_subscriber::fmt::layer().json().flatten_event(true);
        let lines = lines.with_writer(std::io::stderr).with_filter(filter);
        let _ = tracing_subscriber::registry().with(lines).try_init();
        return;
    }
    let colour = in_colour(std::io::stderr().is_terminal(), std::env::var_os("NO_COLOR"));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colour);
    let log = tracing_subscriber::registry().with(lines.with_filter(filter));
    // A program that calls `main` may have set up another log.
    let _ = log.try_init();
}

/// Whether to write in colour: on terminals, unless `NO_COLOR` is set. Clap follows the same rule, and progress bars have
/// no colour.
fn in_colour(terminal: bool, no_color: Option<OsString>) -> bool {
    terminal && no_color.is_none_or(|value| value.is_empty())
}

/// Failures of libtorch are reported as errors; the panics that carry them inside the bindings are not printed.
pub fn quiet_torch_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>();
        if text.and_then(|text| fedanchor::engine::torch_message(text)).is_none() {
            default(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_for_terminals_only_and_may_be_refused() {
        assert!(in_colour(true, None) && in_colour(true, Some("".into())));
        assert!(!in_colour(true, Some("1".into())));
        assert!(!in_colour(false, None) && !in_colour(false, Some("1".into())));
    }
}
