//! Training on pictures of your own from a program, without the command line.
//!
//! `pictures FOLDER OUT [KEY=VALUE...]` trains on `FOLDER/labelled/CLASS`, `FOLDER/unlabelled` (or
//! `FOLDER/unlabelled/CLIENT`) and `FOLDER/test/CLASS` and writes a run folder, whose model then classifies the
//! first unlabelled pictures.

use fedanchor::engine::Device;
use fedanchor::{Federation, Model, Observer};
use fedanchor_data::{DataError, Partition, paths, pictures};
use fedanchor_record::{RoundRecord, Summary, Timing};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

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

    fn comparing(&mut self) {}

    fn notice(&mut self, text: &str) {
        println!("note: {text}");
    }
}

/// Clients that share the unlabelled pictures, unless each has a folder of its own.
const SIMULATED: usize = 10;

/// The number of clients: one per visible folder in `unlabelled`.
fn clients(folder: &Path) -> usize {
    // What is wrong with the folder, the run will say.
    let entries = std::fs::read_dir(folder.join("unlabelled")).into_iter().flatten().flatten();
    let visible = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    match visible.filter(|entry| entry.path().is_dir()).count() {
        0 => SIMULATED,
        folders => folders,
    }
}

/// Trains on the pictures in a folder; `settings` change keys of the experiment, as `--set` does.
pub fn train(folder: &Path, out: &Path, settings: &[String]) -> fedanchor::Result<Summary> {
    // As in a file that `fedanchor init` writes; every other key is the preset's.
    let clients = clients(folder);
    let experiment = format!(
        r#"
        preset = "best"
        rounds = 40
        data = {{ name = "pictures", path = '{}', size = 32, fit = "pad", anchors = 0, clients = {clients} }}
        partition.kind = "iid"
        augment.flip = false
        model.name = "small"
        client = {{ per_round = {}, epochs = 2, batch = 32 }}
        "#,
        paths::text(folder).map_err(DataError::from)?,
        clients.min(5)
    );
    let experiment = fedanchor::resolve(&experiment, settings)?;
    fedanchor::run(&experiment, out, None, &AtomicBool::new(false), &mut Lines)
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
