//! The experiment file, with comments for editing it.

use super::answers::Answers;
use super::{labelled, part};
use fedanchor_data::Normalisation;
use fedanchor_data::inspection::Inspection;
use std::path::Path;

/// Clients that train in a round on a CPU.
const PER_ROUND: usize = 5;

/// The contents of the file.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) inspection: &'a Inspection,
    pub(super) answers: &'a Answers,
    /// Whether a mirrored picture has the same class.
    pub(super) mirror: bool,
    /// The data set, relative to the file.
    pub(super) path: &'a str,
    pub(super) normalisation: &'a Normalisation,
    pub(super) test_share: Option<f64>,
    pub(super) device: &'a str,
    /// The trunk to start from, and why this or none.
    pub(super) trunk: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
    /// Whether its last stage is trained.
    pub(super) unfreeze: bool,
    /// Pixels per side that were asked for.
    pub(super) size: Option<usize>,
}

/// A line `key = value`, with a comment in the second column.
fn line(key: &str, value: impl std::fmt::Display, comment: &str) -> String {
    format!("{:<28} # {comment}\n", format!("{key} = {value}"))
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

pub(super) fn experiment(about: &About) -> String {
    let About { inspection, answers, .. } = about;
    let count = |part: Option<&fedanchor_data::inspection::Part>| part.map_or(0, |p| p.pictures);
    let mut text = format!(
        "# {} labelled pictures of {} classes, {} unlabelled, {} for testing.\n\
         # Every other key has the value of preset `best`; `fedanchor run FILE --set KEY=VALUE` changes one.\n\n\
         preset = \"best\"\n",
        count(labelled(inspection)),
        inspection.classes.len(),
        count(part(inspection, "unlabelled")),
        match about.test_share {
            Some(share) => format!("{:.0} % of the labelled", 100.0 * share),
            None => count(part(inspection, "test")).to_string(),
        },
    );
    let gpu = about.device != "cpu";
    if about.trunk.is_none() {
        let rounds = if gpu { 300 } else { rounds_on_cpu(about) };
        text += &line("rounds", rounds, "more rounds take longer and reach a higher accuracy");
    }
    text += &line("device", quoted(about.device), "cpu, or a GPU: cuda:0");
    text += &line("compare", true, "also train on the labelled pictures alone");
    text += &data(about);
    text += "\n[partition]\n";
    text += &line("kind", "\"iid\"", "how the simulation deals unlabelled pictures to clients");
    text += "\n[augment]\n";
    let comment =
        "true only if a mirrored picture has the same class, unlike text, digits or signs";
    text += &line("flip", about.mirror, comment);
    if let Some(reason) = about.reason {
        text += &format!("\n# {reason}\n");
    } else {
        text += "\n";
    }
    text += &match about.trunk {
        Some(trunk) => on_trunk(trunk, about.unfreeze, answers),
        None if gpu => on_gpu(answers),
        None => on_cpu(answers),
    };
    text
}

/// On features of a trunk, as chosen in preset `best`.
fn on_trunk(trunk: &str, unfreeze: bool, answers: &Answers) -> String {
    let mut text = String::from("[model]\n");
    text += &line("trunk", quoted(trunk), "every picture passes it once; a small network learns");
    if unfreeze {
        text +=
            &line("unfreeze", "\"last\"", "its last stage is trained in place of a small network");
    }
    text += "\n[client]\n";
    text += &line("per_round", answers.clients.min(10), "clients that train in a round");
    text
}

fn data(about: &About) -> String {
    let About { inspection, answers, path, normalisation, test_share, .. } = about;
    let name = path.trim_end_matches(".csv").rsplit('/').next().unwrap_or(path);
    let name = if name == "." { "pictures" } else { name };
    let mut text = String::from("\n[data]\n");
    text += &line("name", quoted(name), "in records and tables");
    let is_absolute = Path::new(path).is_absolute();
    let comment = if is_absolute { "the pictures" } else { "relative to this file" };
    text += &line("path", quoted(path), comment);
    let size = if about.trunk.is_some() { about.size } else { Some(answers.size) };
    if let Some(size) = size {
        let comment = "pixels per side: larger images show more and take longer";
        text += &line("size", size, comment);
    }
    let comment = "stretch, crop or pad pictures that are not square";
    text += &line("fit", quoted(&answers.fit.to_string()), comment);
    match answers.anchors {
        0 => text += &line("anchors", 0, "0: all labelled pictures"),
        anchors => text += &line("anchors", anchors, "labelled pictures drawn for the server"),
    }
    let by_client = part(inspection, "unlabelled").is_some_and(|part| !part.by_client.is_empty());
    let comment =
        if by_client { "one per subfolder" } else { "simulated, each with an equal share" };
    text += &line("clients", answers.clients, comment);
    if let Some(share) = test_share {
        text += &line("test_share", share, "of the labelled pictures, set aside for testing");
    }
    if !inspection.unreadable.is_empty() {
        let comment = format!("{} pictures cannot be read", inspection.unreadable.len());
        text += &line("unreadable", "\"skip\"", &comment);
    }
    let list = |values: &[f32]| {
        let values: Vec<String> = values.iter().map(|value| format!("{value:.4}")).collect();
        format!("[{}]", values.join(", "))
    };
    if about.trunk.is_some() {
        return text; // the trunk's own size and normalisation
    }
    let (mean, std) = (list(&normalisation.mean), list(&normalisation.std));
    text += "# measured on the labelled pictures\n";
    text += &format!("normalisation = {{ mean = {mean}, std = {std} }}\n");
    text
}

/// Twice as many where the pictures are small or few: measured on traffic signs of 32 pixels and digits.
fn rounds_on_cpu(about: &About) -> u32 {
    const LEAST: f64 = 40.0;
    const MOST: f64 = 80.0;
    /// Pictures of 32 pixels that clients are given in all rounds, in some seven minutes of two cores.
    const PICTURES: f64 = 100_000.0;
    let unlabelled = part(about.inspection, "unlabelled").map_or(0, |part| part.pictures) as f64;
    let Answers { size, clients, .. } = *about.answers;
    let drawn = PER_ROUND.min(clients) as f64 / clients.max(1) as f64;
    let per_round = unlabelled * drawn * (size as f64 / 32.0).powi(2);
    (PICTURES / per_round.max(1.0)).clamp(LEAST, MOST) as u32
}

/// Settings with which a short run on a CPU suffices.
fn on_cpu(answers: &Answers) -> String {
    let mut text = String::from("[model]\n");
    text += &line("name", "\"small\"", "small for a CPU; wrn28x2 or resnet18 for a GPU");
    text += "\n[batch_norm]\n";
    text += &line("statistics", "\"static-server\"", "measured on the labelled pictures");
    text += "\n[optimiser]\n";
    text += &line("lr", 0.1, "lower it if a note says that the run fails to learn");
    text += "\n[client]\n";
    text += &line("per_round", answers.clients.min(PER_ROUND), "clients that train in a round");
    text += &line("epochs", 2, "local epochs per round");
    text += &line("batch", 32, "pictures per step");
    text += "\n[method]\n";
    let comment = "stricter as the model improves; preset best ends at 0.95, for more rounds";
    text += &line("threshold", "{ rule = \"rising\", from = 0.6, to = 0.9 }", comment);
    text
}

fn on_gpu(answers: &Answers) -> String {
    let mut text = String::from("[model]\n");
    text += &line("name", "\"wrn28x2\"", "or resnet18, which is larger");
    text += "\n[client]\n";
    text += &line("per_round", answers.clients.min(10), "clients that train in a round");
    text
}
