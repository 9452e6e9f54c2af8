//! Pictures that `eval` and `label` name for a person to look at: with labels that the others contradict, and unlike
//! every class.

use super::counted;
use super::pictures::{self, AT_ONCE};
use crate::printer::Printer;
use anyhow::Result;
use fedanchor::Model;
use fedanchor::model::{Prediction, doubts};
use fedanchor_data::ImageSet;
use fedanchor_data::paths::shown;
use serde::Serialize;
use std::path::PathBuf;

/// Pictures that are named; `--json` names all.
const NAMED: usize = 10;

/// A labelled picture that looks like those of another class.
#[derive(Serialize)]
pub(super) struct Contradicted {
    pub(super) path: String,
    pub(super) label: String,
    pub(super) other: String,
    /// How much higher its average cosine is with the pictures of the other class.
    pub(super) margin: f32,
}

/// A picture with a low score.
#[derive(Serialize)]
pub(super) struct Unlike {
    pub(super) path: String,
    pub(super) score: f64,
}

/// What labelled pictures say about each other.
#[derive(Serialize)]
pub(super) struct Found {
    /// Those that look like those of another class: all, or the surest if the model is weak.
    pub(super) contradicted: Vec<Contradicted>,
    /// The number of all.
    contradictions: usize,
    /// The share of the pictures that are nearest to the others of their class.
    recognised: Option<f64>,
    /// What to do about those that look like another class.
    advice: Option<&'static str>,
    #[serde(skip)]
    is_weak: bool,
}

/// Compares labelled pictures with each other. Without their files, they are named by their numbers.
pub(super) fn of_labelled(model: &Model, set: &ImageSet, files: &[PathBuf]) -> Result<Found> {
    let labels = set.require_labels("comparing labelled pictures")?;
    let latents = model.latents(&pictures::of_set(set))?;
    let found = doubts(&latents, labels, set.classes.len())?;
    let is_weak = found.is_weak();
    let class = |class: u16| set.classes[usize::from(class)].clone();
    let name = |image: usize| match files.len() == set.len() {
        true => shown(&files[image]),
        false => format!("image {image}"),
    };
    let named = found.contradicted.into_iter().map(|one| Contradicted {
        path: name(one.image),
        label: class(one.label),
        other: class(one.other),
        margin: one.margin,
    });
    let contradicted: Vec<Contradicted> = named.collect();
    Ok(Found {
        advice: (!contradicted.is_empty()).then_some(CHECK_LABELS),
        contradicted,
        contradictions: found.contradictions,
        recognised: found.recognised,
        is_weak,
    })
}

/// A score that 99 of 100 pictures like these reach with their best class: what is below it is unlike every class.
/// `None` without pictures. Of those that the model was trained on, it would be too high.
pub(super) fn usual_score(model: &Model, set: &ImageSet) -> Result<Option<f32>> {
    let mut scores: Vec<f32> = Vec::with_capacity(set.len());
    for inputs in pictures::of_set(set).chunks(AT_ONCE) {
        scores.extend(model.predict(inputs)?.iter().map(Prediction::anchor_score));
    }
    scores.sort_by(f32::total_cmp);
    Ok(scores.get(scores.len() / 100).copied())
}

/// What to do about labels that the other pictures contradict.
const CHECK_LABELS: &str = "look at them: correct a wrong label, or keep a right one, which shows what the \
                                       model has not learned";
/// What to do about pictures unlike every class.
pub(super) const CHECK_PICTURES: &str =
    "look at them: remove what belongs to no class, or label some of them if they do belong to one";

pub(super) fn show_contradicted(found: &Found, printer: &Printer) {
    let Found { contradicted, contradictions, recognised, is_weak, .. } = found;
    let lines = contradicted.iter().map(|one| {
        let Contradicted { path, label, other, margin } = one;
        format!("{path}: `{label}`, but {margin:.2} nearer to `{other}`")
    });
    let count = counted(*contradictions, "labelled picture", "labelled pictures");
    let mut head = format!("{count} nearer to another class");
    if *is_weak && *contradictions > 0 {
        printer.status(format!(
            "note: only {:.0} % of the labelled pictures are nearest to the others of their class: most of those \
             nearer to another are mistakes of the model, and only the surest are named",
            100.0 * recognised.unwrap_or_default()
        ));
        head += &format!(", of which these are the {} surest", contradicted.len());
    }
    show(&head, CHECK_LABELS, lines, printer);
}

pub(super) fn show_unlike(all: &[Unlike], usual: f32, printer: &Printer) {
    let lines = all.iter().map(|Unlike { path, score }| format!("{path}: {score:.2}"));
    let count = counted(all.len(), "picture", "pictures");
    let head = format!("{count} unlike every class, with a score below {usual:.2}");
    show(&head, CHECK_PICTURES, lines, printer);
}

fn show(head: &str, advice: &str, lines: impl ExactSizeIterator<Item = String>, printer: &Printer) {
    let count = lines.len();
    if count == 0 {
        return;
    }
    printer.line(format!("{head} ({advice})"));
    lines.take(NAMED).for_each(|line| printer.line(format!("  {line}")));
    if count > NAMED {
        printer.line(format!("  ... and {} more (--json lists all)", count - NAMED));
    }
}
