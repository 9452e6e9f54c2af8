//! One file per subcommand.

mod compare;
mod data;
mod data_list;
mod drawings;
mod eval;
mod example;
mod export;
mod findings;
mod fleet;
mod init;
mod interrupt;
mod label;
mod model;
mod overhead;
mod partition;
mod pictures;
mod predict;
mod progress;
mod reading;
mod report;
mod rounds;
mod run;
mod shell;
mod sweep;
mod table;
mod verify;
mod watch;

pub use interrupt::Interrupted;

use crate::cli::{Cli, Command, DataCommand};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::Experiment;
use fedanchor::experiment::{Resolved, resolve_file};
use fedanchor_data::DataSet;
use fedanchor_record::files;
use std::path::Path;

/// What `fedanchor run` does without a file.
const QUICK: &str = include_str!("../../../../experiments/quick.toml");

pub fn run(cli: Cli, printer: &Printer) -> Result<()> {
    match cli.command {
        Command::Init(args) => init::init(&args, printer),
        Command::Run(args) => {
            run::wait_without_spinning();
            run::run(args, printer)
        }
        Command::Node(args) => {
            run::wait_without_spinning();
            fleet::node(args, printer)
        }
        Command::Coordinator(args) => {
            run::wait_without_spinning();
            fleet::coordinator(args, printer)
        }
        Command::Sweep(args) => {
            run::wait_without_spinning();
            sweep::sweep(args, printer)
        }
        Command::Eval(args) => {
            run::wait_without_spinning();
            eval::eval(&args, printer)
        }
        Command::Predict(args) => {
            run::wait_without_spinning();
            predict::predict(&args, printer)
        }
        Command::Label(args) => {
            run::wait_without_spinning();
            label::label(&args, printer)
        }
        Command::Export(args) => export::export(&args, printer),
        Command::Table(args) => table::table(&args, printer),
        Command::Report(args) => report::report(&args, printer),
        Command::Verify(args) => verify::verify(&args, printer),
        Command::Compare(args) => compare::compare(&args, printer),
        Command::Watch(args) => watch::watch(&args, printer),
        Command::Overhead(args) => overhead::overhead(args, printer),
        Command::Model(args) => model::model(&args, printer),
        Command::Completions(args) => shell::completions(&args, printer),
        Command::Man(args) => shell::man(&args, printer),
        Command::Data(DataCommand::List(args)) => {
            data_list::list(args, printer);
            Ok(())
        }
        Command::Data(DataCommand::Example(args)) => example::example(&args, printer),
        Command::Data(DataCommand::Get(args)) => data::get(args, printer),
        Command::Data(DataCommand::Check(args)) => data::check(&args, printer),
        Command::Data(DataCommand::Show(args)) => data::show(&args, printer),
        Command::Data(DataCommand::Partition(args)) => partition::partition(&args, printer),
    }
}

/// Resolves an experiment file [default: the quick experiment] with settings laid over it.
fn experiment(file: Option<&Path>, settings: &[String]) -> Result<Experiment> {
    Ok(resolved(file, settings)?.experiment)
}

/// The most bytes an experiment or sweep file may have.
const LONGEST: u64 = 1 << 24;

/// The same with notes about settings that have no effect.
fn resolved(file: Option<&Path>, settings: &[String]) -> Result<Resolved> {
    let (name, text) = match file {
        None => ("experiments/quick.toml".to_owned(), QUICK.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            let text = fedanchor_disk::read_text(path, LONGEST).with_context(|| name.clone())?;
            (name, text)
        }
    };
    let origin = if settings.is_empty() { name } else { format!("{name} with --set") };
    let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
    resolve_file(&text, folder, settings).with_context(|| origin)
}

/// Whether two paths are of one file that exists.
fn same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// A path as a shell takes it.
fn quoted_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), |quoted| quoted.into_owned())
}

/// The experiment and the data that a run was made with.
fn data_of_run(run: &Path) -> Result<(Experiment, DataSet)> {
    let config = run.join(files::CONFIG);
    if !config.is_file() {
        bail!("{}: not a run folder, so its data are not known", run.display());
    }
    let experiment = experiment(Some(&config), &[])?;
    let data = fedanchor::simulation::load(&experiment)?;
    Ok((experiment, data))
}

/// 12345678 as 12,345,678.
fn grouped(number: impl ToString) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 class`, `1,000 classes`.
fn counted(number: impl ToString, one: &str, many: &str) -> String {
    let number = number.to_string();
    let what = if number == "1" { one } else { many };
    format!("{} {what}", grouped(number))
}

/// Bytes as a person reads them.
fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

/// A run's config with every key, as this version reads it.
fn complete(config: &toml::Table) -> Option<String> {
    let experiment = fedanchor::resolve(&config.to_string(), &[]).ok()?;
    toml::to_string(&experiment).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_agree_with_their_nouns() {
        let classes = |number: usize| counted(number, "class", "classes");
        assert_eq!([0, 1, 2].map(classes), ["0 classes", "1 class", "2 classes"]);
        assert_eq!(classes(1_234_567), "1,234,567 classes");
    }
}
