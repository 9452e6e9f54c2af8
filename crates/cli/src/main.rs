//! The `fedanchor` program.

fn main() -> std::process::ExitCode {
    fedanchor_cli::main()
}
