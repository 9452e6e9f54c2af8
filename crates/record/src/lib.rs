//! What a run folder contains, as plain records.
//!
//! `rounds.jsonl` holds what the algorithm did and is the same bytes for the same seed on the same
//! kind of CPU with as many compute threads; `timings.jsonl` holds what the machine did and never is. Whoever reads a run folder (tables,
//! curves, a later session) needs this crate and no tensor library. Accuracies are percentages.

use serde::{Deserialize, Serialize};

/// Names of the files in a run folder.
pub mod files {
    /// The resolved config, written before round 1.
    pub const CONFIG: &str = "config.toml";
    /// One [`RoundRecord`](crate::RoundRecord) a line.
    pub const ROUNDS: &str = "rounds.jsonl";
    /// One [`Timing`](crate::Timing) a line.
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
    /// The final model.
    pub const MODEL: &str = "model.safetensors";
    /// All of them.
    pub const ALL: [&str; 9] =
        [CONFIG, ROUNDS, TIMINGS, SUMMARY, PARTITION, ASSIGNMENT, CONFUSION, SIMILARITY, MODEL];
}

/// One line of `rounds.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// The round, from 1; 0 is the state after pre-training.
    pub round: u32,
    /// Percent of the test images that the global model classifies rightly after this round.
    pub test_accuracy: f64,
    /// Mean cross entropy on the test images.
    pub test_loss: f64,
    /// The clients drawn.
    pub clients: Vec<u32>,
    /// How many of them kept a sample and trained.
    pub trained: usize,
    /// Samples labelled by the drawn clients.
    pub seen: usize,
    /// Samples whose score passed the threshold.
    pub kept: usize,
    /// How often the pseudo-labels of the anchor head are right.
    pub anchor_head: LabelAccuracy,
    /// The same for the classification head's labels, on the same samples.
    pub classifier_head: LabelAccuracy,
    /// Mean losses.
    pub losses: Losses,
    /// Bytes sent from the server to the clients.
    pub bytes_down: u64,
    /// Bytes sent from the clients to the server.
    pub bytes_up: u64,
    /// Percent of the anchors that the aggregated model classifies rightly, before the server trains.
    #[serde(default)]
    pub anchor_accuracy: Option<f64>,
    /// Updates that did not count, and why.
    #[serde(default)]
    pub dropped: Vec<Dropped>,
    /// Clients set aside in this round for too many bad updates: they are not asked again.
    #[serde(default)]
    pub set_aside: Vec<u32>,
    /// What became of the round.
    #[serde(default)]
    pub outcome: Outcome,
}

/// An update that did not count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// Whose it was.
    pub client: u32,
    /// What was wrong with it.
    pub reason: String,
}

/// What became of a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The global model took the clients' updates in, if there were any.
    #[default]
    Taken,
    /// Too few good answers: the model is what it was before.
    NoQuorum,
    /// The aggregated model had lost too much on the anchors: the model is what it was before.
    RolledBack,
}

/// Percent of right pseudo-labels; `None` where there is no sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelAccuracy {
    /// Over all samples of the drawn clients.
    pub all: Option<f64>,
    /// Over those that were kept.
    pub kept: Option<f64>,
}

/// Mean losses of a round; `None` for a loss that had no part in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// L_fix on the clients that trained.
    pub client_fix: Option<f64>,
    /// L_mix on the clients that trained.
    pub client_mix: Option<f64>,
    /// L_fix of the last supervised epoch on the server: its plain cross entropy.
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
    /// What is sent: static statistics where asked for, and the anchors' latents.
    pub broadcast: f64,
    /// Pseudo-labels and local training.
    pub clients: f64,
    /// Averaging.
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
    /// Rounds that were to be run.
    pub rounds_planned: u32,
    /// Rounds that were run.
    pub rounds: u32,
    /// Test accuracy after the last round, in percent.
    pub final_accuracy: f64,
    /// The best test accuracy of any round, in percent: optimistic, since it is chosen on the test images.
    pub best_accuracy: f64,
    /// The round that had it.
    pub best_round: u32,
    /// Test accuracy after pre-training, in percent.
    pub pretrained_accuracy: f64,
    /// Test accuracy of the same model trained on the anchors alone for as many server epochs, in
    /// percent, where that was asked for.
    pub server_only_accuracy: Option<f64>,
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
}

/// `partition.json`: numbers of training images, by place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The anchors on the server.
    pub anchors: Vec<u32>,
    /// Every client's images.
    pub clients: Vec<Vec<u32>>,
}
