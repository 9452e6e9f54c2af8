//! The content of a run folder, as plain records.
//!
//! `rounds.jsonl` records the algorithm and is byte-identical for the same seed on the same kind
//! of CPU with the same number of compute threads; `timings.jsonl` records the machine and never is. A
//! reader of run folders (tables, curves) needs this crate and no tensor library. Accuracies are
//! percentages. Keys of earlier versions are still read. The doc comments are the reference of the keys in
//! `docs/run-folder.md`, which `cargo xtask docs` writes from the schemas derived here.

mod build;
mod incidents;
mod keys;
mod latents;
mod line;
mod manifest;
mod method;
mod samples;
pub mod words;

pub use build::{Build, BuildRounds};
pub use incidents::Incidents;
pub use keys::{KeyRole, with_current_keys};
pub use latents::{Latents, rounds_with_latents};
pub use line::{Checksums, missing_timings};
pub use manifest::Manifest;
pub use method::{ClientLabels, Losses, MethodProperties};
pub use samples::{Sample, SampleKind, Samples};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Names of the files in a run folder.
pub mod files {
    /// The resolved config, written before round 1.
    pub const CONFIG: &str = "config.toml";
    /// For a fleet of real clients: the identity of the run, and the coordinator's socket.
    pub const FLEET: &str = "fleet.json";
    /// For such a fleet: the fingerprint of the key that each client's name is bound to.
    pub const KEYS: &str = "node-keys.json";
    /// How many models a private fleet has published: its budget also counts rounds that were lost.
    pub const PUBLISHED: &str = "published";
    /// One [`RoundRecord`](crate::RoundRecord) per line, each with a checksum.
    pub const ROUNDS: &str = "rounds.jsonl";
    /// One [`Timing`](crate::Timing) per line, each with a checksum.
    pub const TIMINGS: &str = "timings.jsonl";
    /// The [`Summary`](crate::Summary).
    pub const SUMMARY: &str = "summary.json";
    /// Class histogram of every client.
    pub const PARTITION: &str = "partition.csv";
    /// The [`Assignment`](crate::Assignment) of images.
    pub const ASSIGNMENT: &str = "partition.json";
    /// Test images by true class (rows) and predicted class (columns), final model.
    pub const CONFUSION: &str = "confusion.csv";
    /// Cosine between the classes' mean anchor latents, final model.
    pub const SIMILARITY: &str = "similarity.csv";
    /// The [`Manifest`](crate::Manifest).
    pub const CHECKSUMS: &str = "checksums.txt";
    /// The final model.
    pub const MODEL: &str = "model.safetensors";
    /// The [`Samples`](crate::Samples), with `record.samples`.
    pub const SAMPLES: &str = "samples.json";
    /// The folder of [`Latents`](crate::Latents), with `record.latents`.
    pub const LATENTS: &str = "latents";
    /// The latents of a round.
    pub fn latents(round: u32) -> String {
        format!("{LATENTS}/round-{round:06}.safetensors")
    }
    /// The files with a checksum from the start of every run.
    pub const FIRST: [&str; 3] = [CONFIG, PARTITION, ASSIGNMENT];
    /// The files of every finished run.
    pub const ALL: [&str; 9] =
        [CONFIG, ROUNDS, TIMINGS, SUMMARY, PARTITION, ASSIGNMENT, CONFUSION, SIMILARITY, MODEL];
}

/// One line of `rounds.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundRecord {
    /// Number of the round, from 1; 0 is the state after pre-training.
    pub round: u32,
    /// Accuracy of the global model on all test images after this round, in percent.
    pub test_accuracy: f64,
    /// Mean cross entropy of the same model on the test images.
    pub test_loss: f64,
    /// Accuracy of the same model on the validation images, in percent; missing without `data.validation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// In round 0: epochs of pre-training, where it ends by itself (`pretrain.fitted`); otherwise missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrain_epochs: Option<u32>,
    /// In round 0: properties of the method; missing in the other rounds and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<MethodProperties>,
    /// Numbers of the clients drawn.
    pub clients: Vec<u32>,
    /// Names of the clients drawn, in the same order; missing if the data has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_names: Vec<String>,
    /// Number of them that sent an update, accepted or not.
    pub trained: usize,
    /// Samples of the clients whose answers were accepted, as these clients report them.
    pub seen: usize,
    /// Number of these samples that were kept because their score passed the threshold, as reported.
    pub kept: usize,
    /// Standard deviation of the kept samples over the clients whose answers were accepted; missing if there are
    /// fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_deviation: Option<f64>,
    /// Pseudo-labels of these clients by class, kept or not; missing without `record.label_counts`, and where clients
    /// do not label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub label_counts: Vec<u32>,
    /// Accuracy of the anchor head's pseudo-labels; its values are `null` for methods without an anchor
    /// head, and where the clients' images have no true labels.
    pub anchor_head: LabelAccuracy,
    /// Accuracy of the classification head's labels on the same samples.
    pub classifier_head: LabelAccuracy,
    /// Mean losses by name; `null` for a loss that was not computed, or whose mean is not finite.
    pub losses: Losses,
    /// Encoded size of the messages from the server to the clients, in bytes.
    pub bytes_down: u64,
    /// Encoded size of the messages from the clients to the server, in bytes.
    pub bytes_up: u64,
    /// Accuracy of the broadcast model on the anchors, in percent. `null` if
    /// `checks.anchor_margin` is 0 or if no update was accepted.
    #[serde(default)]
    pub anchor_accuracy_before: Option<f64>,
    /// Accuracy of the aggregated model on the anchors, in percent, before the server trains; `null` as above.
    #[serde(default)]
    pub anchor_accuracy: Option<f64>,
    /// Updates that were rejected.
    #[serde(default, alias = "dropped")]
    pub rejected: Vec<ClientNote>,
    /// Clients that did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<u32>,
    /// The reasons, if known: in a fleet of real clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<ClientNote>,
    /// Clients whose updates were clipped to the norm that `checks.clip` allows.
    #[serde(default, alias = "shortened", skip_serializing_if = "Vec::is_empty")]
    pub clipped: Vec<u32>,
    /// Clients that could not train.
    #[serde(default)]
    pub failed: Vec<ClientNote>,
    /// Numbers of the clients excluded in this round for too many rejected updates; they are not drawn again.
    #[serde(default, alias = "set_aside")]
    pub excluded: Vec<u32>,
    /// Tests of the model that was broadcast, that of the round before, on labelled images of clients; missing without
    /// `record.sites`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<SiteTest>,
    /// What all rounds so far cost in privacy; missing without `privacy`. Records of such a run leave out which clients
    /// took part, and what they sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacySpent>,
    /// Outcome of the round.
    #[serde(default)]
    pub outcome: Outcome,
    /// Notes on the accuracies: signs that the run fails to learn, or that another build
    /// took over; missing if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A note on one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientNote {
    /// Number of the client.
    pub client: u32,
    /// What happened.
    pub reason: String,
}

/// A test of the model where a client's labelled images are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteTest {
    /// Number of the client.
    pub client: u32,
    /// Accuracy on its images, in percent.
    pub accuracy: f64,
    /// By class, the number of its images and of those that are classified right.
    pub classes: Vec<[u32; 2]>,
}

impl SiteTest {
    /// From the counts by class.
    pub fn new(client: u32, classes: Vec<[u32; 2]>) -> Self {
        let sum = |at: usize| classes.iter().map(|counts| f64::from(counts[at])).sum::<f64>();
        let accuracy = 100.0 * sum(1) / sum(0).max(1.0);
        Self { client, accuracy, classes }
    }

    /// The worst accuracy, the mean, and the best; `None` without tests.
    pub fn range(tests: &[Self]) -> Option<[f64; 3]> {
        let all = || tests.iter().map(|test| test.accuracy);
        let mean = all().sum::<f64>() / tests.len().max(1) as f64;
        let (worst, best) = (all().fold(100.0, f64::min), all().fold(0.0, f64::max));
        (!tests.is_empty()).then_some([worst, mean, best])
    }
}

/// What a private run has cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrivacySpent {
    /// Epsilon of all rounds so far.
    pub epsilon: f64,
    /// What is left of `privacy.epsilon`; missing without such a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<f64>,
    /// The probability with which epsilon may not hold.
    pub delta: f64,
    /// Deviation of the noise, as a multiple of the norm that updates are clipped to; with `privacy.quantile` that of sum
    /// and count together.
    pub noise: f64,
    /// The norm that the next round's updates are clipped to.
    pub clip: f64,
    /// Models published so far: the rounds, and those of a fleet that were published and then repeated after a restart.
    pub releases: u32,
}

/// The outcome of a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The clients' updates, if there were any, became part of the global model.
    #[default]
    #[serde(alias = "taken")]
    Applied,
    /// There were fewer valid answers than `checks.quorum`: the model is the same as before the round.
    NoQuorum,
    /// The aggregated model had lost more than `checks.anchor_margin` points on the anchors: the model is the
    /// same as before the round.
    RolledBack,
}

/// Accuracy of pseudo-labels in percent; `None` where there is no sample or the truth is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabelAccuracy {
    /// Over all samples of the drawn clients, in percent.
    pub all: Option<f64>,
    /// Over the kept ones, in percent.
    pub kept: Option<f64>,
}

/// One line of `timings.jsonl`: seconds by phase, memory, and the build that computed the round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// Number of the round, as in `rounds.jsonl`.
    pub round: u32,
    /// Seconds for preparing the broadcast: the anchors' latents.
    pub broadcast: f64,
    /// Seconds for the clients: pseudo-labels and local training.
    pub clients: f64,
    /// Seconds for checking updates and aggregating them.
    pub aggregate: f64,
    /// Seconds for the server's epochs on the anchors.
    pub server: f64,
    /// Seconds for testing.
    pub test: f64,
    /// Seconds for the whole round.
    pub total: f64,
    /// Largest resident memory of the process so far, in bytes.
    pub peak_memory: Option<u64>,
    /// Most memory held on the GPU so far, in bytes; `null` on a CPU.
    pub peak_gpu_memory: Option<u64>,
    /// The build of the program that computed the round; all of it is `unknown` in lines of earlier versions.
    #[serde(default)]
    pub build: Build,
}

/// `summary.json`: the run in a few numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// The build that wrote the summary. Which rounds it computed is in `builds`.
    #[serde(flatten)]
    pub build: Build,
    /// Which build of the program computed which rounds: one, unless the run was resumed with another. Missing in
    /// summaries of earlier versions, whose builds are unknown.
    #[serde(default)]
    pub builds: Vec<BuildRounds>,
    /// Name of the method.
    pub method: String,
    /// Name of the data set.
    pub data: String,
    /// Name of the model.
    pub model: String,
    /// Weights of the model, without the anchor head and without running statistics.
    pub parameters: i64,
    /// Number of anchors on the server.
    pub anchors: usize,
    /// The seed.
    pub seed: u64,
    /// BLAKE3 hash of all pixels and labels: equal if two runs used the same data.
    pub data_fingerprint: String,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Rounds planned.
    pub rounds_planned: u32,
    /// Rounds completed.
    pub rounds: u32,
    /// Test accuracy after the last round, in percent.
    pub final_accuracy: f64,
    /// Accuracy on the validation images after the last round, in percent; missing without `data.validation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_validation_accuracy: Option<f64>,
    /// The best test accuracy of any round, in percent: optimistic, since it is chosen on the test images.
    pub best_accuracy: f64,
    /// Number of the round with the best test accuracy.
    pub best_round: u32,
    /// The expected calibration error on the test images after the last round, in points: the mean distance of
    /// confidence and accuracy, in ten bins. Missing in summaries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_error: Option<f64>,
    /// Test accuracy after pre-training, in percent.
    pub pretrained_accuracy: f64,
    /// The best test accuracy that the same model reaches on the anchors alone, in percent: the floor under the
    /// run. `null` without `compare`; for a curve by round, run `method.name=server-only`.
    pub server_only_accuracy: Option<f64>,
    /// The models that were trained on the anchors alone, of which `server_only_accuracy` is the best; missing
    /// without `compare`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_only: Vec<ServerOnlyTrial>,
    /// Bytes from server to clients in all rounds.
    pub bytes_down: u64,
    /// Bytes from clients to server in all rounds.
    pub bytes_up: u64,
    /// Seconds for pre-training, all rounds and the comparison, without loading the data.
    pub seconds: f64,
    /// Largest resident memory of the process, in bytes.
    pub peak_memory: Option<u64>,
    /// Most memory held on the GPU, in bytes; `null` on a CPU.
    pub peak_gpu_memory: Option<u64>,
    /// Threads that shared each operation of the server: sums are split by them, so records are the same
    /// bytes only for the same number.
    pub compute_threads: i32,
    /// Incidents in its rounds.
    #[serde(default, skip_serializing_if = "Incidents::is_empty")]
    pub incidents: Incidents,
    /// Of the test images of other classes, the share that a trigger turns into its class, in percent; missing unless
    /// `faults.kind` is `backdoor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backdoor_success: Option<f64>,
}

impl Summary {
    /// Whether the run is complete and no round changed the model.
    pub fn is_without_effect(&self) -> bool {
        let Self { rounds, rounds_planned, incidents, .. } = self;
        *rounds > 0 && rounds == rounds_planned && incidents.without_effect() == *rounds as usize
    }

    /// A warning about the accuracy, if the rounds changed nothing or made the model worse.
    pub fn warning(&self) -> Option<String> {
        let (start, end) = (self.pretrained_accuracy, self.final_accuracy);
        if self.is_without_effect() {
            return Some(format!("none of its {} rounds changed the model", self.rounds));
        }
        (end < start).then(|| {
            format!("the rounds made the model worse: {start:.2} % before them, {end:.2} % after")
        })
    }

    /// The contradiction between the summary and the record of the last round, if there is one.
    pub fn contradiction(&self, last: &RoundRecord) -> Option<String> {
        let Self { rounds, final_accuracy, .. } = self;
        let same = (last.round, last.test_accuracy) == (*rounds, *final_accuracy);
        (!same).then(|| {
            format!(
                "has {final_accuracy} % after round {rounds}, but the records end with {} % after round {}",
                last.test_accuracy, last.round
            )
        })
    }

    /// The best model trained on the anchors alone, if there was a comparison.
    pub fn best_server_only(&self) -> Option<&ServerOnlyTrial> {
        self.server_only.iter().max_by(|a, b| a.test_accuracy.total_cmp(&b.test_accuracy))
    }
}

/// A model trained on the anchors alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServerOnlyTrial {
    /// Epochs of pre-training.
    pub pretrain_epochs: u32,
    /// Rounds of server epochs after it, under the run's schedule.
    pub rounds: u32,
    /// Test accuracy, in percent.
    pub test_accuracy: f64,
}

/// `partition.json`: which training image is where, by index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// Indices of the training images that are anchors, from 0 in the order of the files.
    pub anchors: Vec<u32>,
    /// Indices of the images held out for validation; missing if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<u32>,
    /// For every client, the indices of its images. Unlabelled images are numbered after the labelled ones.
    pub clients: Vec<Vec<u32>>,
    /// Names of the clients; missing if the data has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_names: Vec<String>,
}
