//! The command line: parse, then resolve, then run. Data goes to standard output, talk to standard
//! error; exit status 0 is success, 1 the user's mistake, 2 ours.

mod cli;
mod commands;
mod printer;

use clap::Parser;
use std::process::ExitCode;

/// A failure of the engine is reported as an error; the panic it travels by inside the bindings says
/// nothing more.
fn quiet_engine_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>();
        if text.and_then(|text| fedanchor::engine_message(text)).is_none() {
            default(info);
        }
    }));
}

fn main() -> ExitCode {
    // clap answers a wrong command line with 2, which means a fault of ours here.
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do if the terminal is gone.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    let printer = printer::Printer::new();
    quiet_engine_panics();
    match commands::run(cli, &printer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&error);
            let ours = error
                .downcast_ref::<fedanchor::Error>()
                .is_some_and(|error| matches!(error, fedanchor::Error::Engine { .. }));
            ExitCode::from(if ours { 2 } else { 1 })
        }
    }
}
