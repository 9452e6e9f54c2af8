//! The subcommands.

mod copies;
mod data;
mod doubts;
mod drawings;
mod export;
mod findings;
mod fleet;
mod init;
mod interrupt;
mod label;
mod model;
mod pace;
mod partition;
mod pictures;
mod predict;
mod progress;
mod results;
mod run;
mod shell;
mod sweep;
mod watch;

pub use export::trained;
pub use interrupt::Interrupted;
pub use run::new_folder;

use crate::cli::{Cli, Command, DataCommand, TrainedArgs};
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::experiment::{Resolved, resolve_file, resolve_stored};
use fedanchor::trunk::Start;
use fedanchor::{Experiment, Model};
use fedanchor_data::{DataSet, Progress};
use fedanchor_record::{files, with_current_keys};
use indicatif::{HumanBytes, HumanCount};
use std::path::Path;
use std::thread::ScopedJoinHandle;

/// The experiment of `fedanchor run` without a file.
const QUICK: &str = include_str!("../../../../experiments/quick.toml");
/// The most bytes that an experiment or sweep file may have.
const LONGEST: u64 = 1 << 24;

pub fn run(cli: Cli, printer: &Printer) -> Result<()> {
    if cli.command.computes() {
        run::wait_without_spinning();
    }
    match cli.command {
        Command::Init(args) => init::init(&args, printer),
        Command::Run(args) => run::run(args, printer),
        Command::Sweep(args) => sweep::sweep(args, printer),
        Command::Watch(args) => watch::watch(&args, printer),
        Command::Data(DataCommand::List(args)) => data::list(args, printer),
        Command::Data(DataCommand::Example(args)) => data::example(&args, printer),
        Command::Data(DataCommand::Get(args)) => data::get(args, printer),
        Command::Data(DataCommand::Check(args)) => data::check(&args, printer),
        Command::Data(DataCommand::Show(args)) => data::show(&args, printer),
        Command::Data(DataCommand::Partition(args)) => partition::partition(&args, printer),
        Command::Table(args) => results::table(&args, printer),
        Command::Compare(args) => results::compare(&args, printer),
        Command::Report(args) => results::report(&args, printer),
        Command::Verify(args) => results::verify(&args, printer),
        Command::Eval(args) => predict::eval(&args, printer),
        Command::Predict(args) => predict::predict(&args, printer),
        Command::Label(args) => label::label(&args, printer),
        Command::Export(args) => export::export(&args, printer),
        Command::Coordinator(args) => fleet::coordinator(args, printer),
        Command::Node(args) => fleet::node(args, printer),
        Command::Model(args) => model::model(&args, printer),
        Command::Completions { shell } => shell::completions(shell, printer),
        Command::Man { out } => shell::man(&out, printer),
    }
}

/// Refuses a path that leads nowhere.
fn check_exists(path: &Path, advice: &str) -> Result<()> {
    // What cannot be looked at is reported where it is read.
    match path.try_exists() {
        Ok(false) => bail!("{}: no such file or folder: {advice}", path.display()),
        _ => Ok(()),
    }
}

/// Refuses a folder in the place of an experiment file.
fn check_not_a_folder(path: &Path) -> Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    let shown = path.display();
    let quoted = quoted_path(path);
    if path.join(files::CONFIG).exists() {
        bail!(
            "{shown}: is a run folder: repeat the run with `fedanchor run {quoted}/{}`",
            files::CONFIG
        );
    }
    bail!(
        "{shown}: is a folder: write an experiment file for the pictures in it with `fedanchor init {quoted}` first, \
         and run that file"
    )
}

/// Resolves an experiment file [default: the quick experiment] with settings, and notes settings that have no effect.
fn experiment(file: Option<&Path>, settings: &[String], printer: &Printer) -> Result<Experiment> {
    let Resolved { experiment, notes, .. } = read_experiment(file, settings)?;
    notes.iter().for_each(|note| printer.status(format!("note: {note}")));
    Ok(experiment)
}

/// Reads an experiment file [default: the quick experiment] with settings.
pub fn read_experiment(file: Option<&Path>, settings: &[String]) -> Result<Resolved> {
    let (name, text) = match file {
        None => ("experiments/quick.toml".to_owned(), QUICK.to_owned()),
        Some(path) => {
            const ADVICE: &str =
                "`fedanchor init FOLDER` writes an experiment file for a folder of pictures";
            check_exists(path, ADVICE)?;
            check_not_a_folder(path)?;
            (path.display().to_string(), read_toml(path)?)
        }
    };
    let origin = if settings.is_empty() { name } else { format!("{name} with --set") };
    let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
    let of_run = file.is_some_and(|path| path.ends_with(files::CONFIG))
        && folder.join(files::ROUNDS).exists();
    let resolved = match of_run {
        true => resolve_stored(&text, settings),
        false => resolve_file(&text, folder, settings),
    };
    resolved.with_context(|| origin)
}

/// The text of an experiment or sweep file.
fn read_toml(path: &Path) -> Result<String> {
    fedanchor_disk::read_text(path, LONGEST).with_context(|| path.display().to_string())
}

/// Writes a text file.
fn write(path: &Path, text: &str) -> Result<()> {
    fedanchor_disk::write(path, &[text.as_bytes()]).with_context(|| path.display().to_string())
}

/// Whether two paths lead to the same existing file.
fn same_file(one: &Path, other: &Path) -> bool {
    let other = other.canonicalize();
    one.canonicalize().is_ok_and(|one| other.is_ok_and(|other| one == other))
}

fn check_seeds(seeds: &[u64]) -> Result<()> {
    match (1..seeds.len()).find(|&at| seeds[..at].contains(&seeds[at])) {
        Some(at) => bail!("seed {} is given twice", seeds[at]),
        None => Ok(()),
    }
}

/// The result of a thread; its panic is one of this thread.
fn joined<T>(thread: ScopedJoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A path quoted for a shell.
fn quoted_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), |quoted| quoted.into_owned())
}

/// The experiment of a run folder, and its data. Without them, `instead` says what else to give.
fn data_of_run(
    args: &TrainedArgs,
    model: &Model,
    instead: &str,
    printer: &Printer,
) -> Result<(Experiment, DataSet)> {
    let run = &args.run;
    let config = run.join(files::CONFIG);
    if !config.is_file() {
        bail!("{}: not a run folder, so its data are not known: {instead}", run.display());
    }
    let mut experiment = experiment(Some(&config), &[], printer)?;
    // No one set the path in this command, so advice about the key would not help.
    if let Some(path) = fedanchor::simulation::place(&experiment.data).filter(|path| !path.exists())
    {
        let (run, path) = (run.display(), path.display());
        bail!("{run}: its data are no longer at {path}: put them back, or {instead}");
    }
    let start = match &model.description.trunk {
        // The model has all weights of the trunk, which need not be there.
        Some(trunk) if model.trunk().is_none() => Start::Weights(trunk.clone()),
        _ => {
            experiment.model.trunk = args.trunk.clone().or(experiment.model.trunk);
            Start::of(&experiment)?
        }
    };
    let data = fedanchor::simulation::load_with(&experiment, start, Progress::default())?;
    Ok((experiment, data))
}

/// A count with separators: 12,345,678.
fn grouped(number: impl TryInto<u64>) -> String {
    HumanCount(number.try_into().ok().expect("counts are not negative")).to_string()
}

/// `1 class`, `1,000 classes`.
fn counted(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = grouped(number);
    let noun = if number == "1" { one } else { many };
    format!("{number} {noun}")
}

/// The width of a column of names that has at least this one.
fn width(names: &[String], least: usize) -> usize {
    names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(least)
}

/// `1.35 MiB`.
fn bytes(count: u64) -> String {
    HumanBytes(count).to_string()
}

/// A run's config with every key of this version.
pub fn complete(config: &toml::Table) -> Option<String> {
    let experiment = Experiment::from_values(with_current_keys(config.clone())).ok()?;
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
