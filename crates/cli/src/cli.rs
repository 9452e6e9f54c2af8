//! The command line's arguments.

use clap::{Args, Parser, Subcommand, value_parser};
use fedanchor::config::MAX_SEED;
use std::path::PathBuf;
use std::sync::LazyLock;

const EXIT_STATUS: &str = "\
Exit status:
  0    everything was done
  1    the command line, a setting, the data or a file is wrong; the message says what to change
  2    the program or libtorch failed
  130  interrupted by Ctrl-C or SIGTERM; the message says how to resume";

/// The version with the commit.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| crate::build().to_string());
    &VERSION
}

/// Train one classifier from labelled anchors on a server and unlabelled images on clients
#[derive(Debug, Parser)]
#[command(name = "fedanchor", version = version(), propagate_version = true, after_help = EXIT_STATUS)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Log what happens inside; repeat for more detail (`RUST_LOG` sets it by module)
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print results and errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Look at pictures and write an experiment file for them
    Init(InitArgs),
    /// Run an experiment and write a run folder
    Run(RunArgs),
    /// Train on the images of this machine for a fleet: answer a coordinator through a Unix socket
    Node(NodeArgs),
    /// Run an experiment with the clients of a fleet, whose images stay with them
    Coordinator(CoordinatorArgs),
    /// Watch a run, or all runs in a folder: in the terminal, as lines in a pipe, or in a browser
    Watch(WatchArgs),
    /// List, download, check, show and partition data sets
    #[command(subcommand)]
    Data(DataCommand),
    /// Run every cell of a sweep file for every seed, and print the table
    Sweep(SweepArgs),
    /// Print run folders as a table: mean and deviation over seeds, beside the published numbers
    Table(TableArgs),
    /// Write a report over run folders: one page with figures, each also as SVG and PNG, tables as CSV and LaTeX
    Report(ReportArgs),
    /// Check that runs are what was written: every file, every record, every checkpoint
    Verify(VerifyArgs),
    /// Compare two experiments: settings, accuracy in relation to the seeds' spread, traffic and time
    Compare(CompareArgs),
    /// Test a trained model on labelled images
    Eval(EvalArgs),
    /// Predict the classes of pictures with a trained model
    Predict(PredictArgs),
    /// Label pictures with a trained model, for a person to review
    Label(LabelArgs),
    /// Write a trained model as a file for other programs
    Export(ExportArgs),
    /// Print what sending the anchors costs, for the paper's data sets and models
    Overhead(JsonArgs),
    /// Print a model's layers and number of parameters
    Model(ModelArgs),
    /// Print the completions of a shell, which then completes commands and options with the Tab key
    Completions(CompletionsArgs),
    /// Write the manual pages, one per command
    Man(ManArgs),
}

/// Of a command that prints a table and takes nothing else.
#[derive(Debug, Clone, Copy, Args)]
pub struct JsonArgs {
    /// Print JSON instead of text for people, with nothing left out
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder to write the pages to
    #[arg(long, default_value = "man", value_name = "DIR")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Folder of pictures (`labelled/CLASS`, `unlabelled`, `test/CLASS`), or a CSV file that lists them
    #[arg(default_value = ".")]
    pub folder: PathBuf,
    /// Experiment file to write
    #[arg(long, default_value = "experiment.toml", value_name = "FILE")]
    pub out: PathBuf,
    /// Overwrite the experiment file
    #[arg(long)]
    pub force: bool,
    /// Take the likely answer to every question
    #[arg(short, long)]
    pub yes: bool,
    /// Pixels per side of the network's images
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// Make pictures square by `stretch`, `crop` or `pad`
    #[arg(long)]
    pub fit: Option<fedanchor_data::Fit>,
    /// Whether a mirrored picture is still of its class: not text, digits or signs
    #[arg(long, value_name = "true|false")]
    pub mirror: Option<bool>,
    /// Number of simulated clients that share the unlabelled pictures
    #[arg(long, value_name = "N")]
    pub clients: Option<usize>,
    /// Without a test folder: the share of the labelled pictures to test on [default: 0.2]
    #[arg(long, value_name = "SHARE")]
    pub test_share: Option<f64>,
    /// Labels for unlabelled pictures: a CSV file as `fedanchor label` writes it, after a person's review
    #[arg(long, value_name = "CSV")]
    pub labels: Option<PathBuf>,
    /// Device to compute on: `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu")]
    pub device: String,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ExampleArgs {
    /// Folder to create
    #[arg(default_value = "pictures")]
    pub out: PathBuf,
    /// Labelled pictures per class; the others are unlabelled
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub labelled: usize,
    /// Deal the unlabelled pictures to this many clients, each with a folder of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: Option<u16>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Experiment file (TOML) [default: the quick experiment on the embedded sample]
    pub experiment: Option<PathBuf>,
    /// Change one key of the experiment, for example `--set client.batch=32`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Run the experiment once per seed, for example `--seeds 0,1,2`: side by side on a GPU in bf16, one
    /// after the other elsewhere
    #[arg(long, value_name = "SEEDS", value_delimiter = ',', value_parser = value_parser!(u64).range(..=MAX_SEED))]
    pub seeds: Vec<u64>,
    /// Resume the run in this folder after its last complete round; `--set rounds=N` extends it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "seeds"])]
    pub resume: Option<PathBuf>,
    /// With `--resume`: resume although settings, data or version differ
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Run folder to create; with `--seeds` the folder that holds one run per seed [default: a new one
    /// under `runs`]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Device to compute on: `cpu` or `cuda:N` [default: the experiment's]
    #[arg(long)]
    pub device: Option<String>,
    /// Number format of activations: `f32` or `bf16` [default: the experiment's]
    #[arg(long)]
    pub precision: Option<String>,
    /// Number of threads that augment images; records do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
    /// Write an event file for TensorBoard into the run folder
    #[arg(long)]
    pub tensorboard: bool,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Folder of unlabelled pictures, or one file of images; labels are not read
    #[arg(long, value_name = "PATH")]
    pub data: PathBuf,
    /// Unix socket to answer on, which only its owner can open
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Folder for what the clients keep between their rounds
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Name of the client, which no other client of the fleet may have [default: the name of the folder]
    #[arg(long, conflicts_with = "clients")]
    pub name: Option<String>,
    /// Stand for several clients: a text file with the name of a folder below `--data` in each line
    #[arg(long, value_name = "FILE")]
    pub clients: Option<PathBuf>,
    /// Leave out pictures that cannot be read
    #[arg(long)]
    pub skip_unreadable: bool,
    /// Device to compute on: `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Number of threads that augment images [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// Experiment file (TOML), whose `data` are the labelled images of the server
    pub experiment: Option<PathBuf>,
    /// Unix socket for the transport, which only its owner can open
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Run folder to create
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Resume the run in this folder after its last complete round
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// With `--resume`: resume although settings, data or version differ
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Change one key of the experiment, for example `--set rounds=100`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Device to compute on: `cpu` or `cuda:N` [default: the experiment's]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of threads that augment images [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
    /// Write an event file for TensorBoard into the run folder
    #[arg(long)]
    pub tensorboard: bool,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Run folder, or a folder that contains run folders; it need not exist yet
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Print the current state, one line per run, and exit
    #[arg(long, conflicts_with = "web")]
    pub once: bool,
    /// Serve the report's page at this address, updating itself: a port, or HOST:PORT [default: a free port of
    /// this machine, not reachable from others]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "0", value_parser = web_address)]
    pub web: Option<String>,
}

/// An address to serve at. A port alone is one that other machines cannot reach.
fn web_address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
    match port.parse::<u16>() {
        Ok(port) if !host.is_empty() => Ok(format!("{host}:{port}")),
        _ => Err("expected a port or HOST:PORT; a folder comes before `--web`".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct SweepArgs {
    /// Sweep file (TOML)
    pub file: PathBuf,
    /// Run only these cells; `*` matches anything [default: all]
    #[arg(value_name = "CELL")]
    pub cells: Vec<String>,
    /// Print the names of the cells without running them
    #[arg(long)]
    pub list: bool,
    /// Run these seeds instead of the file's
    #[arg(long, value_name = "SEEDS", value_delimiter = ',', value_parser = value_parser!(u64).range(..=MAX_SEED))]
    pub seeds: Vec<u64>,
    /// Change one key of every cell, for example `--set rounds=100`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Folder for the runs, each in `CELL/seedN` [default: `runs/` and the file's name]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Device to compute on: `cpu` or `cuda:N` [default: the file's]
    #[arg(long)]
    pub device: Option<String>,
    /// Number of runs at once [default: 3 on a GPU in bf16, otherwise 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub jobs: Option<u8>,
    /// Number of threads per run that augment images [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
    /// Write an event file for TensorBoard into every run folder
    #[arg(long)]
    pub tensorboard: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// A trained model, and where to compute.
#[derive(Debug, Args)]
pub struct TrainedArgs {
    /// Run folder, or a model file from one
    pub run: PathBuf,
    /// Device to compute on: `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu")]
    device: String,
}

impl TrainedArgs {
    /// The device.
    pub fn device(&self) -> fedanchor::Result<fedanchor::engine::Device> {
        fedanchor::config::device(&self.device)
    }
}

#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: TrainedArgs,
    /// Folder with one subfolder per class, a data set (its test part is used), or one file of images
    /// [default: the test images of the run]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct PredictArgs {
    #[command(flatten)]
    pub model: TrainedArgs,
    /// Picture files, or folders of them
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = PredictFormat::Table)]
    pub format: PredictFormat,
    /// The same as `--format jsonl`: one JSON object per line
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PredictFormat {
    Table,
    Csv,
    Jsonl,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Run folder, or a model file from one
    pub run: PathBuf,
    /// Format: ONNX, weights of resnet18 for PyTorch under torchvision's names, or the model file itself
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// File to write [default: `model.onnx`, `model.pt` or `model.safetensors`]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Overwrite a file with other content
    #[arg(long)]
    pub force: bool,
    /// With `--format onnx`: take 8-bit images and normalise them inside the graph
    #[arg(long)]
    pub raw_input: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    Onnx,
    StateDict,
    Safetensors,
}

#[derive(Debug, Args)]
pub struct LabelArgs {
    #[command(flatten)]
    pub model: TrainedArgs,
    /// Folder of pictures
    pub folder: PathBuf,
    /// Folder to write `labels.csv` and `labels.html` to
    #[arg(long, default_value = "labels", value_name = "DIR")]
    pub out: PathBuf,
    /// Labelled pictures to show beside each one, a folder with one subfolder per class [default: the
    /// anchors of the run]
    #[arg(long, value_name = "DIR")]
    pub anchors: Option<PathBuf>,
    /// Accept labels on which both heads agree, with at least this margin of cosine to the second class;
    /// the others wait for a person [default: accept none]
    #[arg(long, value_name = "MARGIN")]
    pub accept: Option<f64>,
    /// Overwrite labels of an earlier time
    #[arg(long)]
    pub force: bool,
    /// Number of pictures in the HTML page, the most doubtful first; the CSV file has all
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub page: usize,
}

#[derive(Debug, Args)]
pub struct TableArgs {
    /// Run folders, or folders that contain run folders
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = TableFormat::Text, conflicts_with = "json")]
    pub format: TableFormat,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Run folders, or folders that contain run folders
    #[arg(required = true, value_name = "DIR")]
    pub folders: Vec<PathBuf>,
    /// Folder to write; an earlier report there is replaced
    #[arg(long, default_value = "report", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Open the page in the browser
    #[arg(long)]
    pub open: bool,
    /// Average accuracies over this many rounds, as the paper does over 5
    #[arg(long, default_value_t = 1, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..100))]
    pub smooth: u16,
    /// Round at which the methods' pseudo-labels are compared [default: the last]
    #[arg(long, value_name = "N")]
    pub round: Option<u32>,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Run folders, or folders that contain run folders
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Run folder, or a folder that contains the runs of one experiment
    pub a: PathBuf,
    /// The same of another experiment
    pub b: PathBuf,
    /// Compare what it takes to reach this test accuracy [default: the lower of both final accuracies,
    /// rounded down]
    #[arg(long, value_name = "PERCENT")]
    pub accuracy: Option<f64>,
    #[command(flatten)]
    pub output: JsonArgs,
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
    /// List the data sets that can be downloaded
    List(JsonArgs),
    /// Download a data set's official files, verify and unpack them
    Get(GetArgs),
    /// Write a small example of pictures of your own, from the embedded sample
    Example(ExampleArgs),
    /// Read a data set and report what is in it, or what is wrong with it
    Check(CheckArgs),
    /// Print the class counts and write a contact sheet as PNG
    Show(ShowArgs),
    /// Partition a data set as an experiment would, and show which client holds what
    Partition(PartitionArgs),
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// Name from `fedanchor data list`
    pub name: String,
    /// Folder that holds the data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub dir: PathBuf,
    /// Use this file instead of downloading; repeat it for a data set of several files
    #[arg(long, value_name = "ARCHIVE", conflicts_with = "mirror")]
    pub from: Vec<PathBuf>,
    /// Download from this address instead of the official one
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
}

#[derive(Debug, Args)]
pub struct PathArgs {
    /// Folder or file of a data set, or `sample` for the embedded one
    pub path: PathBuf,
    /// Resize all images to this many pixels per side
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// Make pictures square by `stretch`, `crop` or `pad` [default: stretch]
    #[arg(long)]
    pub fit: Option<fedanchor_data::Fit>,
    /// Test on this share of the labelled pictures, if there is no test part
    #[arg(long, value_name = "SHARE")]
    pub test_share: Option<f64>,
    /// Leave out unreadable pictures
    #[arg(long)]
    pub skip_unreadable: bool,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub data: PathArgs,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub data: PathArgs,
    /// Contact sheet to write
    #[arg(long, default_value = "contact-sheet.png", value_name = "PNG")]
    pub out: PathBuf,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct PartitionArgs {
    /// Experiment file (TOML) [default: the quick experiment on the embedded sample]
    pub experiment: Option<PathBuf>,
    /// Change one key, for example `--set partition.alpha=0.1`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Write the histogram to files of this name, with `.csv` and `.png` appended
    #[arg(long, default_value = "partition", value_name = "NAME")]
    pub out: PathBuf,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ModelArgs {
    /// `resnet18`, `wrn28x2`, `small` or `cnn`
    pub name: String,
    /// Number of classes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..))]
    pub classes: u16,
    /// Channels of the images
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    pub channels: u8,
    /// Pixels per side of the images
    #[arg(long, default_value_t = 32)]
    pub size: usize,
    /// Change one key, for example `--set model.norm=group`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    #[command(flatten)]
    pub output: JsonArgs,
}
