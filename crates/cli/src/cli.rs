//! The command line's arguments.

use crate::printer::{LogFormat, Printer};
use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};
use fedanchor::Resume;
use fedanchor::config::MAX_SEED;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::LazyLock;

const EXIT_STATUS: &str = "Exit status: 0 success; 1 mistake in the command line, settings, data or files; \
                           2 failure of the program or libtorch; 130 interrupted by Ctrl-C or SIGTERM";

/// The commands by what they are for, as the help lists them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Experiments", &["init", "run", "sweep", "watch", "data"]),
    ("Results", &["table", "compare", "report", "verify"]),
    ("Trained models", &["eval", "predict", "label", "export"]),
    ("Fleets of real clients", &["coordinator", "node"]),
    ("Other commands", &["model", "completions", "man", "help"]),
];

/// The version with the commit.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| crate::build().to_string());
    &VERSION
}

/// The command line. Its help lists the commands in groups, which clap does not do by itself.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let style = command.get_styles().get_header();
    let mut template = "{about}\n\n{usage-heading} {usage}\n\n".to_owned();
    for (group, names) in GROUPS {
        template += &format!("{style}{group}:{style:#}\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map_or("Print the help of a command".to_owned(), ToString::to_string);
            template += &format!("  {name:11}  {about}\n");
        }
        template.push('\n');
    }
    template += &format!("{style}Options:{style:#}\n{{options}}{{after-help}}");
    command.help_template(template)
}

/// Train one classifier from labelled anchors on a server and unlabelled images on clients
#[derive(Debug, Parser)]
#[command(name = "fedanchor", version = version(), propagate_version = true, after_help = EXIT_STATUS)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print log messages; repeat for more (`RUST_LOG` selects them by module)
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print results and errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Write log messages and progress as lines of text or of JSON
    #[arg(long, global = true, value_name = "TYPE", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Inspect pictures and write an experiment file for them
    Init(InitArgs),
    /// Run an experiment and write a run folder
    Run(RunArgs),
    /// Run all cells and seeds of a sweep file and print the table
    Sweep(SweepArgs),
    /// Follow runs in the terminal or in a browser
    Watch(WatchArgs),
    /// List, download, check, show and partition data sets
    #[command(subcommand)]
    Data(DataCommand),
    /// Print a table of runs: means over seeds and published numbers
    Table(TableArgs),
    /// Compare two experiments: settings, accuracy, traffic and time
    Compare(CompareArgs),
    /// Write a page about runs, with its figures and tables as files
    Report(ReportArgs),
    /// Check every file, record and checkpoint of runs
    Verify(VerifyArgs),
    /// Test a trained model on labelled images
    Eval(EvalArgs),
    /// Predict the classes of pictures with a trained model
    Predict(PredictArgs),
    /// Label pictures with a trained model, for a person to review
    Label(LabelArgs),
    /// Write a trained model as an ONNX file for other programs
    Export(ExportArgs),
    /// Run an experiment with the clients of a fleet
    Coordinator(CoordinatorArgs),
    /// Train on the images of this machine as clients of a fleet
    Node(NodeArgs),
    /// Print a model's layers and number of parameters
    Model(ModelArgs),
    /// Print the completions for a shell
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    Man {
        /// Folder to write the pages to
        #[arg(long, default_value = "man", value_name = "DIR")]
        out: PathBuf,
    },
}

impl Command {
    /// Whether it spends its time in libtorch.
    pub fn computes(&self) -> bool {
        use Command::{Coordinator, Eval, Label, Node, Predict, Run, Sweep};
        matches!(
            self,
            Run(_) | Sweep(_) | Coordinator(_) | Node(_) | Eval(_) | Predict(_) | Label(_)
        )
    }
}

/// For commands that print a table.
#[derive(Debug, Clone, Copy, Args)]
pub struct JsonArgs {
    /// Print JSON, with nothing omitted
    #[arg(long)]
    pub json: bool,
}

impl JsonArgs {
    /// Prints the result as JSON, or by `text`.
    pub fn print(self, printer: &Printer, result: &impl Serialize, text: impl FnOnce()) {
        if self.json { printer.json(result) } else { text() }
    }
}

/// For commands that train by an experiment or sweep file.
#[derive(Debug, Args)]
pub struct TrainingArgs {
    /// Override a key of the file, for example `--set client.batch=32`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Device to compute on: `cpu` or `cuda:N` [default: the file's]
    #[arg(long)]
    device: Option<String>,
    /// Number of threads per run that augment images; records do not depend on it [default: one per core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Write an event file for TensorBoard into the run folder
    #[arg(long)]
    pub tensorboard: bool,
}

impl TrainingArgs {
    /// The settings to lay over the file's.
    pub fn settings(&self) -> Vec<String> {
        let device = self.device.iter().map(|device| format!("device={device}"));
        self.settings.iter().cloned().chain(device).collect()
    }

    pub fn workers(&self) -> Option<usize> {
        self.workers.map(usize::from)
    }
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Resume the run in this folder after its last complete round; `--set rounds=N` extends it
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// With `--resume`: resume although settings, data or version differ
    #[arg(long, requires = "resume")]
    pub force: bool,
}

impl ResumeArgs {
    pub fn resume(&self) -> Resume {
        match &self.resume {
            None => Resume::No,
            Some(_) if self.force => Resume::Force,
            Some(_) => Resume::Yes,
        }
    }
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Folder of pictures (`labelled/CLASS`, `unlabelled`, `test/CLASS`), or a CSV file or a JSON export of Label
    /// Studio that lists them
    #[arg(default_value = ".")]
    pub folder: PathBuf,
    /// Experiment file to write
    #[arg(long, default_value = "experiment.toml", value_name = "FILE")]
    pub out: PathBuf,
    /// Overwrite the experiment file
    #[arg(long)]
    pub force: bool,
    /// Answer every question with its default
    #[arg(short, long)]
    pub yes: bool,
    /// Pixels per side of the network's images
    #[arg(long, value_name = "PIXELS")]
    pub size: Option<usize>,
    /// Make pictures square by `stretch`, `crop` or `pad`
    #[arg(long)]
    pub fit: Option<fedanchor_data::Fit>,
    /// Whether a mirrored picture has the same class, unlike text, digits or signs
    #[arg(long, value_name = "true|false")]
    pub mirror: Option<bool>,
    /// Number of simulated clients that share the unlabelled pictures
    #[arg(long, value_name = "N")]
    pub clients: Option<usize>,
    /// Pretrained trunk, by name or file, or `none` [default: what a trial on the labelled pictures finds better]
    #[arg(long, value_name = "TRUNK")]
    pub trunk: Option<String>,
    /// Without a test folder: share of the labelled pictures to test on [default: 0.2]
    #[arg(long, value_name = "SHARE")]
    pub test_share: Option<f64>,
    /// Labels for unlabelled pictures: a reviewed CSV file from `fedanchor label`, or a JSON export of Label Studio
    #[arg(long, value_name = "FILE")]
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
    /// Deal the unlabelled pictures to this many clients, with one folder per client
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    pub clients: Option<u16>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Experiment file (TOML) [default: the quick experiment on the embedded sample]
    pub experiment: Option<PathBuf>,
    /// Run folder to create; with `--seeds` the folder for one run per seed [default: a new one under `runs`]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run the experiment once per seed, for example `--seeds 0,1,2`: at the same time on a GPU in bf16, one after the
    /// other elsewhere
    #[arg(long, value_name = "SEEDS", value_delimiter = ',', value_parser = value_parser!(u64).range(..=MAX_SEED))]
    #[arg(conflicts_with = "resume")]
    pub seeds: Vec<u64>,
    #[command(flatten)]
    pub resume: ResumeArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Folder of unlabelled pictures, or one file of images; labels are not read
    #[arg(long, value_name = "PATH")]
    pub data: PathBuf,
    /// Unix socket to listen on; only its owner can open it
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Folder for the clients' state between rounds
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Name of the client, unique in the fleet [default: the name of the folder]
    #[arg(long, conflicts_with = "clients")]
    pub name: Option<String>,
    /// Act as several clients: a text file with one name of a folder below `--data` per line
    #[arg(long, value_name = "FILE")]
    pub clients: Option<PathBuf>,
    /// Folder of labelled pictures, one folder per class, to test the model on, for runs that ask for it (`record.sites`)
    #[arg(long, value_name = "DIR", conflicts_with = "clients")]
    pub test: Option<PathBuf>,
    /// Skip unreadable pictures
    #[arg(long)]
    pub skip_unreadable: bool,
    /// File of the trunk, for runs that have one [default: the trunk of that name on this machine]
    #[arg(long, value_name = "FILE")]
    pub trunk: Option<String>,
    /// File of the clients' loss, for runs that have one of their own (`client.loss`)
    #[arg(long, value_name = "FILE")]
    pub loss: Option<PathBuf>,
    /// Serve metrics for Prometheus (`/metrics`, `/healthz`) at a port or HOST:PORT; a port alone is for this machine only
    #[arg(long, value_name = "ADDR", value_parser = web_address)]
    pub metrics: Option<String>,
    /// Device to compute on: `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Number of threads that augment images [default: one per core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    pub workers: Option<u16>,
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// Experiment file (TOML), whose `data` are the labelled images of the server
    pub experiment: Option<PathBuf>,
    /// Unix socket for the transport; only its owner can open it
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Run folder to create
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// With `--resume`: free a client's name from the key of this fingerprint (its first 8 digits or more), since its
    /// node has a new key
    #[arg(long, value_name = "NAME=KEY", value_parser = released)]
    pub release: Vec<(String, String)>,
    /// Serve metrics for Prometheus (`/metrics`, `/healthz`) at a port or HOST:PORT; a port alone is for this machine only
    #[arg(long, value_name = "ADDR", value_parser = web_address)]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub resume: ResumeArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Run folder, or a folder that contains run folders; may not exist yet
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Print the current state, one line per run, and exit
    #[arg(long, conflicts_with = "web")]
    pub once: bool,
    /// Serve the report as a page that updates itself, at a port or HOST:PORT [default: a free port that only this
    /// machine can reach]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "0", value_parser = web_address)]
    pub web: Option<String>,
}

/// A name and the beginning of a fingerprint.
fn released(text: &str) -> Result<(String, String), String> {
    let pair = text.rsplit_once('=').filter(|(name, key)| !name.is_empty() && key.len() >= 8);
    let pair = pair.map(|(name, key)| (name.to_owned(), key.to_owned()));
    pair.ok_or_else(|| {
        "expected NAME=KEY, with the name and the fingerprint in `node-keys.json`".to_owned()
    })
}

/// An address to serve at. Other machines cannot reach a port without a host.
fn web_address(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
    match port.parse::<u16>() {
        Ok(port) if !host.is_empty() => Ok(format!("{host}:{port}")),
        _ => Err("expected a port or HOST:PORT".to_owned()),
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
    /// Folder for the runs, each in `CELL/seedN` [default: `runs/` and the file's name]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run these seeds instead of the file's
    #[arg(long, value_name = "SEEDS", value_delimiter = ',', value_parser = value_parser!(u64).range(..=MAX_SEED))]
    pub seeds: Vec<u64>,
    /// Number of runs at the same time [default: 3 on a GPU in bf16, otherwise 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..))]
    pub jobs: Option<u8>,
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// For commands that use a trained model.
#[derive(Debug, Args)]
pub struct TrainedArgs {
    /// Run folder, or a model file from one
    pub run: PathBuf,
    /// Device to compute on: `cpu` or `cuda:N`
    #[arg(long, default_value = "cpu")]
    device: String,
    /// File of the model's trunk, if it has one [default: the trunk of that name on this machine]
    #[arg(long, value_name = "FILE")]
    pub trunk: Option<String>,
}

impl TrainedArgs {
    pub fn load(&self) -> fedanchor::Result<fedanchor::Model> {
        let device = fedanchor::config::device(&self.device)?;
        fedanchor::Model::load_with(&self.run, self.trunk.as_deref(), device)
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
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PredictFormat {
    Table,
    Csv,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Run folder, or a model file from one
    pub run: PathBuf,
    /// File to write
    #[arg(long, default_value = "model.onnx", value_name = "FILE")]
    pub out: PathBuf,
    /// Overwrite a file with other content
    #[arg(long)]
    pub force: bool,
    /// Take 8-bit images and normalise them inside the graph
    #[arg(long)]
    pub raw_input: bool,
    /// File of the model's trunk, if it has one [default: the trunk of that name on this machine]
    #[arg(long, value_name = "FILE")]
    pub trunk: Option<String>,
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
    /// Labelled pictures to show for comparison: a folder with one subfolder per class [default: the run's anchors]
    #[arg(long, value_name = "DIR")]
    pub anchors: Option<PathBuf>,
    /// Accept a label if both heads agree and its cosine exceeds that of the second class by this margin [default:
    /// accept none]
    #[arg(long, value_name = "MARGIN")]
    pub accept: Option<f64>,
    /// Also write tasks for Label Studio, which serves the pictures below this folder, to `labels.json`, and its
    /// labelling interface to `labels.xml`
    #[arg(long, value_name = "DIR")]
    pub label_studio: Option<PathBuf>,
    /// Overwrite earlier labels
    #[arg(long)]
    pub force: bool,
    /// Number of pictures on the HTML page, the most doubtful first; the CSV file has all
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub page: usize,
    #[command(flatten)]
    pub output: JsonArgs,
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
    /// Folder to write; replaces an earlier report
    #[arg(long, default_value = "report", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Open the page in the browser
    #[arg(long)]
    pub open: bool,
    /// Average accuracies over this many rounds (5 in the paper)
    #[arg(long, default_value_t = 1, value_name = "ROUNDS", value_parser = value_parser!(u16).range(1..100))]
    pub smooth: u16,
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
    /// The same for another experiment
    pub b: PathBuf,
    /// Compare the rounds, traffic and time to this test accuracy [default: the lower final accuracy, rounded down]
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
    /// Download, verify and unpack a data set's official files
    Get(GetArgs),
    /// Write some pictures of the embedded sample as an example of your own pictures
    Example(ExampleArgs),
    /// Read a data set and report its contents and problems
    Check(PathArgs),
    /// Print the class counts and write a contact sheet (SVG)
    Show(ShowArgs),
    /// Partition a data set as an experiment does, and show the clients' class counts
    Partition(PartitionArgs),
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// Name from `fedanchor data list`
    pub name: String,
    /// Folder that holds the data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub dir: PathBuf,
    /// Use this file instead of downloading it; repeat for a data set of several files
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
    /// Without a test part: share of the labelled pictures to test on
    #[arg(long, value_name = "SHARE")]
    pub test_share: Option<f64>,
    /// Skip unreadable pictures
    #[arg(long)]
    pub skip_unreadable: bool,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub data: PathArgs,
    /// Contact sheet to write
    #[arg(long, default_value = "contact-sheet.svg", value_name = "SVG")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct PartitionArgs {
    /// Experiment file (TOML) [default: the quick experiment on the embedded sample]
    pub experiment: Option<PathBuf>,
    /// Override a key of the file, for example `--set partition.alpha=0.1`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Name of the histogram's files, without `.csv` and `.svg`
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
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u16).range(2..))]
    pub classes: u16,
    /// Channels of the images
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u8).range(1..))]
    pub channels: u8,
    /// Pixels per side of the images
    #[arg(long, default_value_t = 32)]
    pub size: usize,
    /// Set a key of the experiment, for example `--set model.norm=group`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    #[command(flatten)]
    pub output: JsonArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_help_lists_every_command_once() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        listed.retain(|name| *name != "help");
        let command = Cli::command();
        let all: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(listed.len(), all.len());
        assert_eq!(BTreeSet::from_iter(listed), all);
    }
}
