//! Run folders with chosen contents.

use fedanchor_record::{Build, Checksums, Incidents, Summary, files};
use fedanchor_report::{Table, find_runs};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A resolved config, shortened.
const CONFIG: &str = r#"preset = "paper"
seed = 0
rounds = 500
device = "cpu"
precision = "f32"
compare = false

[data]
name = "cifar10"
path = "data/cifar10"
anchors = 500

[partition]
kind = "lda"
alpha = 1000.0

[model]
name = "wrn28x2"

[client]
epochs = 5
batch = 10

[server]
epochs = 1

[method]
name = "fedanchor"
threshold = 0.6
client_mixup = true
server_mixup = false

[method.contrastive]
epochs = 1
"#;

/// A temporary folder for run folders.
pub struct Folders(TempDir);

/// How a run differs from the default one: replaced lines of the config, and its results.
pub struct Made<'a> {
    pub changes: &'a [(&'a str, &'a str)],
    pub last: f64,
    pub best: f64,
    /// Rounds completed; `None` for a run without a summary.
    pub rounds: Option<u32>,
}

impl Folders {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A finished run with this seed and final accuracy; its best round is one point better.
    pub fn run(&self, name: &str, seed: u64, last: f64, changes: &[(&str, &str)]) {
        let seed = format!("seed = {seed}");
        let mut all = vec![("seed = 0", seed.as_str())];
        all.extend(changes);
        self.make(name, Made { changes: &all, last, best: last + 1.0, rounds: Some(500) });
    }

    pub fn make(&self, name: &str, made: Made) {
        let folder = self.path(name);
        let mut config = CONFIG.to_owned();
        for (line, other) in made.changes {
            assert!(config.contains(line), "no `{line}` in the config");
            config = config.replace(line, other);
        }
        fs_err::create_dir_all(&folder).unwrap();
        fs_err::write(folder.join(files::CONFIG), &config).unwrap();
        let config: toml::Table = config.parse().unwrap();
        let number = |key: &str| u32::try_from(config[key].as_integer().unwrap()).unwrap();
        if let Some(rounds) = made.rounds {
            let planned = number("rounds");
            let rounds = rounds.min(planned);
            let summary = summary(number("seed").into(), rounds, planned, made.last, made.best);
            let text = serde_json::to_string(&summary).unwrap();
            fs_err::write(folder.join(files::SUMMARY), text).unwrap();
            let mut checksums = Checksums::default();
            let record = |round| checksums.seal(&format!("{{\"round\":{round}}}")) + "\n";
            let records: String = (0..=rounds).map(record).collect();
            fs_err::write(folder.join(files::ROUNDS), records).unwrap();
        }
    }

    /// The table over all folders.
    pub fn table(&self) -> Table {
        Table::new(&find_runs(&[self.path("")], &|_| None).unwrap())
    }

    /// Replaces the temporary path of the folders by `RUNS`.
    pub fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "RUNS/")
    }
}

fn summary(seed: u64, rounds: u32, rounds_planned: u32, last: f64, best: f64) -> Summary {
    Summary {
        backdoor_success: None,
        build: Build::default(),
        builds: Vec::new(),
        method: "as in the config".to_owned(),
        data: "as in the config".to_owned(),
        model: "as in the config".to_owned(),
        parameters: 1,
        anchors: 1,
        seed,
        data_fingerprint: "35d6fc94154a73218c01".to_owned(),
        classes: vec!["a".to_owned(), "b".to_owned()],
        rounds_planned,
        rounds,
        final_accuracy: last,
        final_validation_accuracy: None,
        best_accuracy: best,
        best_round: 1,
        calibration_error: Some(4.25),
        pretrained_accuracy: 5.0,
        server_only_accuracy: None,
        server_only: Vec::new(),
        bytes_down: 0,
        bytes_up: 0,
        seconds: 1.0,
        peak_memory: None,
        peak_gpu_memory: None,
        compute_threads: 1,
        incidents: Incidents::default(),
    }
}

/// Names of the folders, without their parents.
pub fn names<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    paths.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}
