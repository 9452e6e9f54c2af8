//! The whole command line of fedanchor, with one more aggregation rule and one more threshold rule:
//!
//!     cargo run --locked -p rule -- run examples/rule/rules.toml

mod best_per_class;
mod geometric_median;

use fedanchor::{aggregation, labels::thresholds};
use std::process::ExitCode;

fn main() -> ExitCode {
    aggregation::register(geometric_median::REGISTRATION).expect("the name is free");
    thresholds::register(best_per_class::REGISTRATION).expect("the name is free");
    fedanchor_cli::main()
}
