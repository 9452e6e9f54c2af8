//! Which start suits the pictures: from scratch or on a pretrained trunk, found on the labelled pictures.

use super::super::pictures::watched;
use super::file::{self, About};
use super::{labelled, part};
use crate::cli::InitArgs;
use crate::printer::Printer;
use anyhow::Result;
use fedanchor::Experiment;
use fedanchor::engine::trunk::{Place, names_a_file};
use fedanchor::experiment::RunLength;
use fedanchor::simulation::{Trial, cross_validate};
use fedanchor::trunk::Start as TrunkStart;
use fedanchor_data::features::Extractor;
use fedanchor_data::formats::{self, Options};
use fedanchor_data::{DataSet, ImageSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// The trunk that is tried if it is on this machine.
const TRUNK: &str = "efficientnet-lite0";
/// How long a trial of one start may take.
const TIME: Duration = Duration::from_secs(40);
const FOLDS: usize = 3;
/// The most labelled pictures per class in a trial.
const MOST: usize = 50;

/// The proposed start.
#[derive(Default)]
pub(super) struct Start {
    pub(super) trunk: Option<String>,
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
            Place::find(named)?.check()?;
            let trunk = match names_a_file(named) {
                true => formats::seen_from(Path::new(named), &args.out)?,
                false => named.to_owned(),
            };
            let reason = Some("A pretrained trunk, as asked for.".to_owned());
            return Ok(Start { trunk: Some(trunk), reason, mirror: None });
        }
        None => {}
    }
    if Place::by_name(TRUNK).is_err() {
        say("no pretrained trunk on this machine: for photographs it is worth tens of points (`make trunks`)".to_owned());
        return Ok(Start::default());
    }
    let read = |options: &Options| formats::open_labelled(path, MOST, options);
    let images = watched(printer, "decoding for a trial", options, read)?;
    let classes = images.class_counts();
    if classes.iter().any(|&count| count < 2) {
        say("a class has only one labelled picture: no trial of a pretrained trunk (--trunk decides)".to_owned());
        return Ok(Start::default());
    }
    let scratch = Candidate::new(about, images, None, printer)?;
    // Whoever is better off with features of photographs has photographs, which may be mirrored.
    let photographs = About { trunk: Some(TRUNK), mirror: about.mirror || !is_sure, ..*about };
    let experiment = resolved(&photographs)?;
    let encoder = TrunkStart::of(&experiment)?.extractor();
    let with_trunk = Options { features: encoder.clone(), size: None, ..options.clone() };
    let features = watched(printer, "encoding for a trial", &with_trunk, read)?;
    let frozen = Candidate::new(&photographs, features, encoder.as_ref(), printer)?;
    say(format!("tried on {} labelled pictures that were held out:", scratch.trial.held_out));
    say(format!("  from scratch: {scratch}"));
    say(format!("  on the features of {TRUNK}: {frozen}"));
    let better = frozen.trial.accuracy > scratch.trial.accuracy;
    let (name, best, other) = match better {
        true => (format!("A pretrained trunk, {TRUNK}"), &frozen, &scratch),
        false => ("From scratch".to_owned(), &scratch, &frozen),
    };
    let reason = format!(
        "{name}: on held-out labelled pictures {:.1} %, the other start {:.1} %.",
        best.trial.accuracy, other.trial.accuracy
    );
    say(format!("proposed: {}{}", name[..1].to_lowercase(), &name[1..]));
    let mirror = (better && !is_sure).then_some(true);
    if mirror.is_some() {
        let text = "not sure: photographs count as the same class when mirrored (--mirror false for text or signs)";
        say(text.to_owned());
    }
    Ok(Start { trunk: better.then(|| TRUNK.to_owned()), reason: Some(reason), mirror })
}

/// A start that was tried.
struct Candidate {
    trial: Trial,
    most: u32,
    /// How long a run takes, encoding included.
    seconds: f64,
}

impl Candidate {
    fn new(
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
        let start = about.trunk.unwrap_or("from scratch");
        printer.status(format!("trying {start} for about {} s", TIME.as_secs()));
        let trial = cross_validate(&settings, &data, FOLDS, TIME)?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count =
            |part: Option<&fedanchor_data::inspection::Part>| part.map_or(0, |part| part.pictures);
        let (labelled, unlabelled, test) = (
            count(labelled(about.inspection)),
            count(part(about.inspection, "unlabelled")),
            count(part(about.inspection, "test")),
        );
        let tried = labelled.min(data.train.len());
        let length = RunLength::predict(&experiment, trial.epoch, tried, unlabelled, cores);
        let mut seconds = length.total();
        if let Some(encoder) = encoder {
            let picture = vec![128; encoder.format.vectors() * encoder.format.picture.bytes()];
            let mut times = Vec::new();
            for _ in 0..3 {
                let start = Instant::now();
                (encoder.encode)(&picture).map_err(anyhow::Error::msg)?;
                times.push(start.elapsed().as_secs_f64());
            }
            let fastest = times.into_iter().fold(f64::INFINITY, f64::min);
            seconds += fastest * (labelled + unlabelled + test) as f64 / cores as f64;
        }
        Ok(Self { trial, most: experiment.pretrain.epochs, seconds })
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Trial { accuracy, epochs, .. } = self.trial;
        let minutes = (self.seconds / 60.0).ceil().max(1.0);
        write!(f, "{accuracy:.1} %, a run takes about {minutes:.0} min")?;
        match epochs < self.most {
            true => write!(f, " (tried for {epochs} of {} epochs)", self.most),
            false => Ok(()),
        }
    }
}

fn resolved(about: &About) -> Result<Experiment> {
    Ok(fedanchor::resolve(&file::experiment(about), &[])?)
}
