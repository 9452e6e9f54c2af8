//! Training on pictures of your own from a program, without the command line.
//!
//! `pictures FOLDER OUT [KEY=VALUE...]` trains on `FOLDER/labelled/CLASS`, `FOLDER/unlabelled` (or
//! `FOLDER/unlabelled/CLIENT`) and `FOLDER/test/CLASS` and writes a run folder, whose model then classifies the
//! first unlabelled pictures.

use fedanchor::engine::Device;
use fedanchor::{Experiment, Federation, Model, Observer, RunOptions};
use fedanchor_data::{DataError, Partition, paths, pictures};
use fedanchor_record::{RoundRecord, Summary, Timing};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Prints what happens, a line per round.
struct Lines;

#[allow(clippy::print_stdout)] // it is what this example shows
impl Observer for Lines {
    fn started(&mut self, federation: &Federation, clients: Option<&Partition>) {
        let clients = clients.map_or(0, |partition| partition.clients.len());
        println!("{} labelled pictures, {clients} clients", federation.split.anchors.len());
    }

    fn round(&mut self, record: &RoundRecord, _: &Timing) {
        println!("round {}: {:.1} %", record.round, record.test_accuracy);
    }

    fn notice(&mut self, text: &str) {
        println!("note: {text}");
    }
}

/// Clients that share the unlabelled pictures, unless each has a folder of its own.
const SIMULATED: usize = 10;

/// The folder of the clients' pictures, in British or American spelling.
pub fn unlabelled(folder: &Path) -> PathBuf {
    let names = ["unlabelled", "unlabeled"].map(|name| folder.join(name));
    let found = names.iter().find(|folder| folder.is_dir());
    found.unwrap_or(&names[0]).clone()
}

/// The number of clients: one per visible folder of unlabelled pictures.
fn clients(folder: &Path) -> usize {
    // What is wrong with the folder, the run will say.
    let entries = std::fs::read_dir(unlabelled(folder)).into_iter().flatten().flatten();
    let visible = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    match visible.filter(|entry| entry.path().is_dir()).count() {
        0 => SIMULATED,
        folders => folders,
    }
}

/// Trains on the pictures in a folder.
pub fn train(folder: &Path, out: &Path, rounds: u32) -> fedanchor::Result<Summary> {
    let clients = clients(folder);
    let path = paths::text(folder).map_err(DataError::from)?;
    // As in a file that `fedanchor init` writes; every other key is the preset's.
    let experiment = Experiment::from_values(json!({
        "preset": "best",
        "rounds": rounds,
        "data": {
            "name": "pictures", "path": path, "size": 32, "fit": "pad",
            "anchors": 0, "clients": clients,
        },
        "partition": { "kind": "iid" },
        "augment": { "flip": false },
        "model": { "name": "small" },
        "client": { "per_round": clients.min(5), "epochs": 2, "batch": 32 },
    }))?;
    fedanchor::run(&experiment, RunOptions::new(out), &mut Lines)
}

/// The classes of pictures by a trained model, with the probability of each.
pub fn classify(run: &Path, paths: &[PathBuf]) -> fedanchor::Result<Vec<(String, f32)>> {
    let model = Model::load(run, Device::Cpu)?;
    let (shape, fit) = (model.description.shape, model.description.fit);
    let pixels: Vec<Vec<u8>> =
        paths.iter().map(|path| pictures::read(path, shape, fit)).collect::<Result<_, _>>()?;
    let images: Vec<&[u8]> = pixels.iter().map(Vec::as_slice).collect();
    let predictions = model.predict(&images)?;
    let class = |class: usize| model.classes()[class].clone();
    Ok(predictions.iter().map(|found| (class(found.class()), found.confidence())).collect())
}
