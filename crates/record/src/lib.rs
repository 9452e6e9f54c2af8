//! What a run folder contains, as plain records.
//!
//! `rounds.jsonl` holds what the algorithm did and is the same bytes for the same seed on the same kind
//! of CPU with as many compute threads; `timings.jsonl` holds what the machine did and never is. A
//! reader of run folders (tables, curves) needs this crate and no tensor library. Accuracies are
//! percentages. Keys of earlier versions are still read.

mod incidents;
mod keys;
mod latents;
mod line;
mod manifest;
mod samples;

pub use incidents::Incidents;
pub use keys::KeyRole;
pub use latents::{Latents, LatentsError, rounds_with_latents};
pub use line::Checksums;
pub use manifest::{BadLine, Manifest, Mismatch};
pub use samples::{Sample, SampleKind, Samples};

use serde::{Deserialize, Serialize};

/// Names of the files in a run folder.
pub mod files {
    /// The resolved config, written before round 1.
    pub const CONFIG: &str = "config.toml";
    /// One [`RoundRecord`](crate::RoundRecord) per line, each with a checksum.
    pub const ROUNDS: &str = "rounds.jsonl";
    /// One [`Timing`](crate::Timing) per line, each with a checksum.
    pub const TIMINGS: &str = "timings.jsonl";
    /// The [`Summary`](crate::Summary).
    pub const SUMMARY: &str = "summary.json";
    /// Class histogram of every client.
    pub const PARTITION: &str = "partition.csv";
    /// The [`Assignment`](crate::Assignment): which image is where.
    pub const ASSIGNMENT: &str = "partition.json";
    /// Test images by true class (rows) and predicted class (columns), final model.
    pub const CONFUSION: &str = "confusion.csv";
    /// Cosine between the classes' mean anchor latents, final model.
    pub const SIMILARITY: &str = "similarity.csv";
    /// The [`Manifest`](crate::Manifest).
    pub const CHECKSUMS: &str = "checksums.txt";
    /// The final model.
    pub const MODEL: &str = "model.safetensors";
    /// The [`Samples`](crate::Samples), where `record.samples` asks for them.
    pub const SAMPLES: &str = "samples.json";
    /// The folder of [`Latents`](crate::Latents), where `record.latents` asks for them.
    pub const LATENTS: &str = "latents";
    /// The latents of a round.
    pub fn latents(round: u32) -> String {
        format!("{LATENTS}/round-{round:06}.safetensors")
    }
    /// Those that every finished run has.
    pub const ALL: [&str; 9] =
        [CONFIG, ROUNDS, TIMINGS, SUMMARY, PARTITION, ASSIGNMENT, CONFUSION, SIMILARITY, MODEL];
}

/// One line of `rounds.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// The round, from 1; 0 is the state after pre-training.
    pub round: u32,
    /// Accuracy of the global model on the test images after this round, in percent.
    pub test_accuracy: f64,
    /// Mean cross entropy on the test images.
    pub test_loss: f64,
    /// Accuracy on the validation images, in percent, where `data.validation` holds any out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// Epochs of pre-training, in round 0 where it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrain_epochs: Option<u32>,
    /// The clients drawn.
    pub clients: Vec<u32>,
    /// How many of them sent an update, whether or not it was accepted.
    pub trained: usize,
    /// Samples of the clients whose answers were accepted, as they report them.
    pub seen: usize,
    /// Those that they kept: whose score passed the threshold.
    pub kept: usize,
    /// Standard deviation of the kept samples over these clients, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_deviation: Option<f64>,
    /// Accuracy of the anchor head's pseudo-labels; known only where the true labels are, in a
    /// simulation.
    pub anchor_head: LabelAccuracy,
    /// The same for the classification head, on the same samples.
    pub classifier_head: LabelAccuracy,
    /// Mean losses.
    pub losses: Losses,
    /// Bytes sent from the server to the clients.
    pub bytes_down: u64,
    /// Bytes sent from the clients to the server.
    pub bytes_up: u64,
    /// Accuracy of the broadcast model on the anchors, in percent: what the clients started from.
    #[serde(default)]
    pub anchor_accuracy_before: Option<f64>,
    /// Accuracy of the aggregated model on the anchors, in percent, before the server trains.
    #[serde(default)]
    pub anchor_accuracy: Option<f64>,
    /// Updates that were rejected, and why.
    #[serde(default, alias = "dropped")]
    pub rejected: Vec<ClientNote>,
    /// Clients that did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<u32>,
    /// Clients that could not train, and why.
    #[serde(default)]
    pub failed: Vec<ClientNote>,
    /// Clients excluded in this round for too many rejected updates: they are not drawn again.
    #[serde(default, alias = "set_aside")]
    pub excluded: Vec<u32>,
    /// What became of the round.
    #[serde(default)]
    pub outcome: Outcome,
    /// What a person should know: signs that the run fails to learn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Something about one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientNote {
    /// The client.
    pub client: u32,
    /// What happened.
    pub reason: String,
}

/// What became of a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The global model took in the clients' updates, if there were any.
    #[default]
    #[serde(alias = "taken")]
    Applied,
    /// Too few valid answers: the model is what it was before.
    NoQuorum,
    /// The aggregated model had lost too much accuracy on the anchors: the model is what it was before.
    RolledBack,
}

/// Accuracy of pseudo-labels in percent; `None` where there is no sample or the truth is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelAccuracy {
    /// Over all samples of the drawn clients.
    pub all: Option<f64>,
    /// Over those that were kept.
    pub kept: Option<f64>,
}

/// Mean losses of a round; `None` for a loss that was not computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// L_fix on the clients that trained.
    pub client_fix: Option<f64>,
    /// L_mix on the clients that trained.
    pub client_mix: Option<f64>,
    /// L_fix of the last supervised epoch on the server: cross entropy.
    pub server_fix: Option<f64>,
    /// L_mix of that epoch, in FedAnchor (mix).
    pub server_mix: Option<f64>,
    /// The label contrastive loss of the last server epoch.
    pub server_contrastive: Option<f64>,
}

/// One line of `timings.jsonl`: seconds by phase, and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The round, as in [`RoundRecord`].
    pub round: u32,
    /// Preparing the broadcast: the anchors' latents.
    pub broadcast: f64,
    /// Pseudo-labels and local training.
    pub clients: f64,
    /// Checking updates and aggregating them.
    pub aggregate: f64,
    /// The server's epochs.
    pub server: f64,
    /// Testing.
    pub test: f64,
    /// The whole round.
    pub total: f64,
    /// Largest resident memory of the process so far, in bytes.
    pub peak_memory: Option<u64>,
    /// Most memory held on the GPU so far, in bytes.
    pub peak_gpu_memory: Option<u64>,
}

/// `summary.json`: the run in a few numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of the program.
    pub version: String,
    /// Name of the method.
    pub method: String,
    /// Name of the data set.
    pub data: String,
    /// Name of the model.
    pub model: String,
    /// Parameters of backbone and classifier, without the anchor head.
    pub parameters: i64,
    /// Number of anchors.
    pub anchors: usize,
    /// The seed.
    pub seed: u64,
    /// Fingerprint of pixels and labels.
    pub data_fingerprint: String,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Rounds planned.
    pub rounds_planned: u32,
    /// Rounds completed.
    pub rounds: u32,
    /// Test accuracy after the last round, in percent.
    pub final_accuracy: f64,
    /// Accuracy on the validation images after the last round, in percent, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_validation_accuracy: Option<f64>,
    /// The best test accuracy of any round, in percent: optimistic, since it is chosen on the test images.
    pub best_accuracy: f64,
    /// The round with it.
    pub best_round: u32,
    /// Test accuracy after pre-training, in percent.
    pub pretrained_accuracy: f64,
    /// The best test accuracy that the same model reaches on the anchors alone, in percent, where `compare`
    /// asks for it: the floor under the run.
    pub server_only_accuracy: Option<f64>,
    /// What was tried for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_only: Vec<ServerOnlyTrial>,
    /// Bytes from server to clients in all rounds.
    pub bytes_down: u64,
    /// Bytes from clients to server in all rounds.
    pub bytes_up: u64,
    /// Seconds for all rounds.
    pub seconds: f64,
    /// Largest resident memory, in bytes.
    pub peak_memory: Option<u64>,
    /// Most memory held on the GPU, in bytes; null on a CPU.
    pub peak_gpu_memory: Option<u64>,
    /// Threads that shared each tensor operation: sums are split by them, so records are the same
    /// bytes only for the same number.
    pub compute_threads: i32,
    /// What went wrong in its rounds.
    #[serde(default, skip_serializing_if = "Incidents::is_empty")]
    pub incidents: Incidents,
}

impl Summary {
    /// The best model on the anchors alone, where there was a comparison.
    pub fn best_server_only(&self) -> Option<&ServerOnlyTrial> {
        self.server_only.iter().max_by(|a, b| a.test_accuracy.total_cmp(&b.test_accuracy))
    }
}

/// A model trained on the anchors alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ServerOnlyTrial {
    /// Epochs of pre-training.
    pub pretrain_epochs: u32,
    /// Rounds of server epochs after it, under the run's schedule.
    pub rounds: u32,
    /// Its test accuracy, in percent.
    pub test_accuracy: f64,
}

/// `partition.json`: which training image is where, by index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The anchors on the server.
    pub anchors: Vec<u32>,
    /// The images held out for validation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<u32>,
    /// Every client's images. Unlabelled ones are numbered after the labelled ones.
    pub clients: Vec<Vec<u32>>,
    /// Names of the clients, where the data has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_names: Vec<String>,
}
