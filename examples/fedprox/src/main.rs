//! The whole command line of fedanchor, with one more method:
//!
//!     cargo run --locked -p fedprox -- run examples/fedprox/fedprox.toml

use std::process::ExitCode;

fn main() -> ExitCode {
    fedanchor::register(fedprox::REGISTRATION).expect("the name is free");
    fedanchor_cli::main()
}
