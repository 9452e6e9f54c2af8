//! Which start suits the pictures: from scratch or on a pretrained trunk, found on the labelled pictures.

use super::super::pictures::watched;
use super::file::{self, About};
use super::{labelled, part};
use crate::cli::InitArgs;
use crate::printer::Printer;
use anyhow::Result;
use fedanchor::Experiment;
use fedanchor::engine::trunk::{Place, TrunkFile, names_a_file};
use fedanchor::experiment::RunLength;
use fedanchor::simulation::{Folds, Trial};
use fedanchor::trunk::Start as TrunkStart;
use fedanchor_data::features::Extractor;
use fedanchor_data::formats::{self, Options};
use fedanchor_data::inspection::Part;
use fedanchor_data::{DataSet, ImageSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// The trunk that is tried if it is on this machine.
const TRUNK: &str = "efficientnet-lite0";
/// How long a trial of one start may take.
const TIME: Duration = Duration::from_secs(60);
/// A start from scratch needs more epochs than one on a trunk: its trial may take longer for so many, but not longer than
/// this.
const ENOUGH: f64 = 100.0;
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// If it was tried for fewer, it may be better than it looked.
const SHORT: u32 = 60;
/// How long a run may take that trains a part of the trunk.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
const FOLDS: usize = 3;
/// The most labelled pictures per class in a trial.
const MOST: usize = 50;

/// The proposed start.
#[derive(Default)]
pub(super) struct Start {
    pub(super) trunk: Option<String>,
    /// Whether its last stage is trained.
    pub(super) unfreeze: bool,
    /// What speaks for it.
    pub(super) reason: Option<String>,
    /// Whether pictures are mirrored, where nobody was sure.
    pub(super) mirror: Option<bool>,
}

/// The start that was asked for, or the better one on held-out labelled pictures.
pub(super) fn choose(
    args: &InitArgs,
    about: &About,
    is_sure: bool,
    path: &Path,
    options: &Options,
    printer: &Printer,
    say: &dyn Fn(String),
) -> Result<Start> {
    match args.trunk.as_deref() {
        Some("none") => return Ok(Start::default()),
        Some(named) => {
            TrunkFile::read(&Place::find(named)?, args.size, None)?;
            let trunk = match names_a_file(named) {
                true => formats::seen_from(Path::new(named), &args.out)?,
                false => named.to_owned(),
            };
            let reason = Some("A pretrained trunk, as asked for.".to_owned());
            return Ok(Start { trunk: Some(trunk), reason, ..Start::default() });
        }
        None => {}
    }
    if Place::by_name(TRUNK).is_err() {
        let text = "no pretrained trunk on this machine: for photographs it is worth tens of points (`make trunks`, \
                    or `python -m fedanchor.trunks` with the Python package)";
        say(text.to_owned());
        return Ok(Start::default());
    }
    let read = |options: &Options| formats::open_labelled(path, MOST, options);
    let images = watched(printer, "decoding for a trial", options, read)?;
    let classes = images.class_counts();
    if classes.iter().any(|&count| count < 2) {
        say("a class has only one labelled picture: no trial of a pretrained trunk (--trunk decides)".to_owned());
        return Ok(Start::default());
    }
    let scratch = Candidate::new("from scratch", about, images, None, printer)?;
    let is_short = scratch.is_short();
    say("tried on labelled pictures that were held out:".to_owned());
    say(format!("  {scratch}"));
    // Whoever is better off with features of photographs has photographs, which may be mirrored.
    let photographs = About { trunk: Some(TRUNK), mirror: about.mirror || !is_sure, ..*about };
    let on_trunk = |what: &str, about: &About| {
        let encoder = TrunkStart::of(&resolved(about)?)?.extractor();
        let with_trunk = Options { features: encoder.clone(), size: None, ..options.clone() };
        let features = watched(printer, "encoding for a trial", &with_trunk, read)?;
        let candidate = Candidate::new(what, about, features, encoder.as_ref(), printer)?;
        say(format!("  {candidate}"));
        Ok::<_, anyhow::Error>(candidate)
    };
    let frozen = on_trunk(&format!("on the features of {TRUNK}"), &photographs)?;
    // Where a start from scratch is the right one, it is so by far; a few pictures can say anything.
    let (gain, by_chance) = scratch.gain_over(&frozen);
    if gain > 0.0 && gain <= by_chance {
        say(chance(-gain));
    }
    let (mut best, mut other) = match gain > by_chance {
        true => (scratch, frozen),
        false => (frozen, scratch),
    };
    if best.trunk.is_some() {
        let what = format!("training the last stage of {TRUNK}");
        let last = on_trunk(&what, &About { unfreeze: true, ..photographs })?;
        let (gain, by_chance) = last.gain_over(&best);
        // A run takes several times as long.
        if gain > by_chance {
            (best, other) = (last, best);
        } else if gain > 0.0 {
            say(chance(gain));
        }
    }
    if best.trunk.is_some() && is_short {
        say("not sure: a start from scratch needs more epochs than the trial had; `--trunk none` takes it".to_owned());
    }
    let (gain, _) = best.gain_over(&other);
    let difference = match gain < 0.0 {
        true => format!("within chance of {}", other.what),
        false => format!("{gain:.1} points more than {}", other.what),
    };
    let accuracy = best.accuracy(usize::MAX).0;
    let reason = format!(
        "Tried {}: {accuracy:.1} % of held-out labelled pictures, {difference}.",
        best.what
    );
    say(format!("proposed: {}", best.what));
    if best.trunk.is_none() {
        return Ok(Start { reason: Some(reason), ..Start::default() });
    }
    let mirror = (!is_sure).then_some(true);
    if mirror.is_some() {
        let text =
            "assumed: a mirrored photograph has the same class (--mirror false for text or signs)";
        say(text.to_owned());
    }
    Ok(Start { trunk: best.trunk, unfreeze: best.unfreeze, reason: Some(reason), mirror })
}

/// What is said of a difference that does not decide.
fn chance(gain: f64) -> String {
    let more = if gain > 0.0 { "more" } else { "fewer" };
    let points = gain.abs();
    format!(
        "  on the same pictures that is {points:.1} points {more}, not more than chance explains"
    )
}

/// A start that was tried, or not where it would take too long.
struct Candidate {
    what: String,
    trunk: Option<String>,
    unfreeze: bool,
    trial: Option<Trial>,
    most: u32,
    /// How long a run takes, encoding included.
    seconds: f64,
}

impl Candidate {
    fn new(
        what: &str,
        about: &About,
        images: ImageSet,
        encoder: Option<&Extractor>,
        printer: &Printer,
    ) -> Result<Self> {
        let experiment = resolved(about)?;
        let mut settings = experiment.clone();
        settings.data.anchors = 0;
        let alone = fedanchor::resolve("method.name = \"server-only\"", &[])?;
        settings.method = alone.method;
        settings.checks = alone.checks;
        let no_test = images.select(&[]);
        let data = DataSet::new("trial", images, no_test);
        let data = match encoder {
            Some(encoder) => data.with_trunk(encoder),
            None => data,
        };
        let folds = Folds::new(&settings, &data, FOLDS)?;
        let seconds = run_seconds(about, &experiment, folds.epoch, data.train.len(), encoder)?;
        let is_quick = !about.unfreeze || seconds <= PATIENCE.as_secs_f64();
        let time = match about.trunk {
            Some(_) => TIME,
            None => Duration::from_secs_f64(ENOUGH * folds.epoch).clamp(TIME, LONGEST),
        };
        if is_quick {
            printer.status(format!("trying {what} for about {} s", time.as_secs()));
        }
        let trial = is_quick.then(|| folds.validate(time)).transpose()?;
        let (trunk, unfreeze) = (about.trunk.map(str::to_owned), about.unfreeze);
        let most = experiment.pretrain.epochs;
        Ok(Self { what: what.to_owned(), trunk, unfreeze, trial, most, seconds })
    }

    /// On the first parts that were held out, with their pictures; nothing for a start that was not tried.
    fn accuracy(&self, parts: usize) -> (f64, usize) {
        self.trial.as_ref().map_or((0.0, 0), |trial| trial.accuracy(parts))
    }

    /// By how many points it is better on the parts that both were tried on, and how many are no more than chance.
    fn gain_over(&self, other: &Self) -> (f64, f64) {
        let parts = |one: &Self| one.trial.as_ref().map_or(0, |trial| trial.parts.len());
        let parts = parts(self).min(parts(other));
        let ((this, _), (that, count)) = (self.accuracy(parts), other.accuracy(parts));
        // The standard error of a share.
        (this - that, (that * (100.0 - that) / count.max(1) as f64).sqrt())
    }

    /// Whether it might do much better if it was tried for longer.
    fn is_short(&self) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.epochs < SHORT.min(self.most))
    }
}

/// How long a run takes, encoding included, if an epoch on `tried` labelled pictures takes `epoch` seconds.
fn run_seconds(
    about: &About,
    experiment: &Experiment,
    epoch: f64,
    tried: usize,
    encoder: Option<&Extractor>,
) -> Result<f64> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = |part: Option<&Part>| part.map_or(0, |part| part.pictures);
    let [labelled, unlabelled, test] = [
        count(labelled(about.inspection)),
        count(part(about.inspection, "unlabelled")),
        count(part(about.inspection, "test")),
    ];
    let length =
        RunLength::predict(experiment, epoch, labelled.min(tried), unlabelled, cores).total();
    let Some(encoder) = encoder else { return Ok(length) };
    let picture = vec![128; encoder.format.vectors() * encoder.format.picture.bytes()];
    let mut fastest = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        (encoder.encode)(&picture).map_err(anyhow::Error::msg)?;
        fastest = start.elapsed().as_secs_f64().min(fastest);
    }
    Ok(length + fastest * (labelled + unlabelled + test) as f64 / cores as f64)
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let minutes = format!("a run takes about {:.0} min", (self.seconds / 60.0).ceil().max(1.0));
        match &self.trial {
            None => write!(f, "{}: not tried, {minutes}", self.what),
            Some(Trial { epochs, .. }) => {
                let (Self { what, most, .. }, (accuracy, held_out)) =
                    (self, self.accuracy(usize::MAX));
                write!(f, "{what}: {accuracy:.1} % of {held_out}, {minutes}")?;
                match epochs < most {
                    true => write!(f, " (tried for {epochs} of {most} epochs)"),
                    false => Ok(()),
                }
            }
        }
    }
}

fn resolved(about: &About) -> Result<Experiment> {
    Ok(fedanchor::resolve(&file::experiment(about), &[])?)
}
