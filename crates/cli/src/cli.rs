//! What can be typed.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Trains one classifier from labelled anchors on a server and unlabelled images on clients.
#[derive(Debug, Parser)]
#[command(name = "fedanchor", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs an experiment and writes a run folder.
    Run(RunArgs),
    /// Lists, fetches, checks, shows and partitions data sets.
    #[command(subcommand)]
    Data(DataCommand),
    /// Runs every cell of a sweep file for every seed, and prints the table.
    Sweep(SweepArgs),
    /// Prints run folders as a table: mean and deviation over seeds, beside the published numbers.
    Table(TableArgs),
    /// Prints what sending the anchors costs, for the paper's data sets and models.
    Overhead,
    /// Prints a model's layers and number of parameters.
    Model(ModelArgs),
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The experiment, a TOML file; left out: the quick one on the embedded sample.
    pub experiment: Option<PathBuf>,
    /// Changes one key of the experiment, for example `--set client.batch=32`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Runs the experiment once for each of these seeds, for example `--seeds 0,1,2`: side by side on a
    /// GPU in bf16, one after the other elsewhere.
    #[arg(long, value_name = "SEEDS", value_delimiter = ',')]
    pub seeds: Vec<u64>,
    /// Goes on with the run in this folder after its last complete round; `--set rounds=N` extends it.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "seeds"])]
    pub resume: Option<PathBuf>,
    /// With `--resume`: goes on although settings, data or version differ.
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// The run folder to make [default: a new one under `runs`]; with `--seeds` the folder for them.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where to compute: `cpu` or `cuda:N` [default: the experiment's].
    #[arg(long)]
    pub device: Option<String>,
    /// Number format of activations: `f32` or `bf16` [default: the experiment's].
    #[arg(long)]
    pub precision: Option<String>,
    /// Threads that augment images; the records do not depend on it [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    /// The sweep, a TOML file.
    pub file: PathBuf,
    /// Runs these cells alone; `*` stands for anything [default: all].
    #[arg(value_name = "CELL")]
    pub cells: Vec<String>,
    /// Prints the names of the cells and runs nothing.
    #[arg(long)]
    pub list: bool,
    /// Runs these seeds instead of the file's.
    #[arg(long, value_name = "SEEDS", value_delimiter = ',')]
    pub seeds: Vec<u64>,
    /// Changes one key of every cell, for example `--set rounds=100`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// The folder for the runs, `CELL/seedN` each [default: `runs/` and the file's name].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Where to compute: `cpu` or `cuda:N` [default: the file's].
    #[arg(long)]
    pub device: Option<String>,
    /// Runs at once [default: 3 on a GPU in bf16, else 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub jobs: Option<u8>,
    /// Threads that augment images, for each run [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
}

#[derive(Debug, Args)]
pub struct TableArgs {
    /// Run folders, or folders that hold some.
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// How to write it.
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    pub format: TableFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TableFormat {
    Text,
    Markdown,
    Csv,
    Latex,
}

#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Lists the data sets that can be fetched.
    List,
    /// Fetches a data set's official files, verifies and unpacks them.
    Get(GetArgs),
    /// Reads a data set and says what is in it, or what is wrong with it.
    Check(PathArgs),
    /// Prints the class counts and writes a contact sheet as PNG.
    Show(ShowArgs),
    /// Deals a data set to clients as an experiment would, and prints and draws who holds what.
    Partition(PartitionArgs),
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// A name from `fedanchor data list`.
    pub name: String,
    /// The folder under which data sets are kept.
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub dir: PathBuf,
    /// Takes this file instead of downloading; repeat it for a set of several files.
    #[arg(long, value_name = "ARCHIVE", conflicts_with = "mirror")]
    pub from: Vec<PathBuf>,
    /// Downloads from this address instead of the official one.
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
}

#[derive(Debug, Args)]
pub struct PathArgs {
    /// The folder or file of a data set, or `sample` for the embedded one.
    pub path: PathBuf,
    /// Resizes all images to this many pixels a side.
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub data: PathArgs,
    /// The contact sheet to write.
    #[arg(long, default_value = "contact-sheet.png", value_name = "PNG")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct PartitionArgs {
    /// The experiment, a TOML file; left out: the quick one on the embedded sample.
    pub experiment: Option<PathBuf>,
    /// Changes one key, for example `--set partition.alpha=0.1`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Writes the histogram to this name with the endings `.csv` and `.png`.
    #[arg(long, default_value = "partition", value_name = "NAME")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct ModelArgs {
    /// `resnet18`, `wrn28x2`, `small` or `cnn`.
    pub name: String,
    /// Number of classes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..))]
    pub classes: u16,
    /// Channels of the images.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    pub channels: u8,
    /// Pixels a side of the images.
    #[arg(long, default_value_t = 32)]
    pub size: usize,
    /// Changes one key, for example `--set model.norm=group`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}
