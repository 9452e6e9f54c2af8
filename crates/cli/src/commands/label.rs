//! `fedanchor label`: labels by a trained model, for a person to review.

use super::copies::Compared;
use super::doubts::{self, CHECK_PICTURES, Unlike};
use super::interrupt::{Interrupted, stop_on_interrupt, this_command};
use super::pictures::{self, AT_ONCE, PICTURES, Predicted};
use super::{counted, findings, grouped, write};
use crate::cli::LabelArgs;
use crate::printer::Printer;
use anyhow::{Context, Result, bail};
use fedanchor::Model;
use fedanchor::model::Prediction;
use fedanchor::simulation::{self, Assigned};
use fedanchor_data::formats::Files;
use fedanchor_data::inspection::{Duplicates, Location};
use fedanchor_data::thumbnail::jpeg;
use fedanchor_data::{Fit, ImageSet, Shape, paths, pictures as reading};
use fedanchor_report::{
    Proposal, Shown, label_studio_interface, label_studio_tasks, review_csv, review_page,
};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Anchors shown for each picture.
const NEAREST: usize = 3;
/// Pixels per side of a picture on the page.
const THUMBNAIL: Shape = Shape { side: 96, channels: 3 };

/// What `label --json` prints.
#[derive(Serialize)]
struct Labelled {
    pictures: usize,
    /// On which the heads differ.
    differ: usize,
    accepted: usize,
    csv: String,
    html: String,
    /// The tasks for Label Studio, if they were asked for.
    tasks: Option<String>,
    /// Labelled pictures that look like those of another class, and what to do about them.
    #[serde(flatten)]
    labels: doubts::Found,
    /// Pictures that show the same as a labelled or a test picture.
    duplicates: Duplicates,
    /// Pictures unlike every class, the most unlike first, and what to do about them.
    unlike: Vec<Unlike>,
    /// The score below which a picture is.
    usual_score: Option<f32>,
    unlike_advice: Option<&'static str>,
}

pub fn label(args: &LabelArgs, printer: &Printer) -> Result<()> {
    let (csv, html) = (args.out.join("labels.csv"), args.out.join("labels.html"));
    if csv.exists() && !args.force {
        bail!(
            "{}: already exists, perhaps with reviewed labels: choose another folder with --out, or overwrite it \
             with --force",
            csv.display()
        );
    }
    super::check_exists(&args.folder, PICTURES)?;
    let model = args.model.load()?;
    let printer = &printer.for_json(args.output.json);
    let mut compared = Compared::new(&model);
    let Labels { anchors, files, usual } = labels(args, &model, &mut compared, printer)?;
    let paths = pictures::find(std::slice::from_ref(&args.folder), printer)?;
    // A folder that does not fit is reported before the work.
    let served = args.label_studio.as_deref().map(|root| served(&paths, root)).transpose()?;
    let (mut labelled, mut failed) = (Vec::new(), 0);
    let bar = printer.bar(paths.len() as u64, "labelling [{bar:30}] {pos} of {len} pictures");
    let stop = stop_on_interrupt(bar.clone(), *printer, "stopping after these pictures")?;
    let stopped = || -> Result<()> {
        if stop.load(Ordering::Relaxed) {
            bar.finish_and_clear();
            let advice = format!("start over with `{}`", this_command());
            let done = "no labels were written".to_owned();
            return Err(Interrupted { done, advice }.into());
        }
        Ok(())
    };
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    pictures::predict(&model, &paths, printer, |path, prediction| {
        stopped()?;
        bar.inc(1);
        let Predicted { prediction, pixels, input } = match prediction {
            Ok(predicted) => predicted,
            Err(error) => {
                failed += 1;
                bar.suspend(|| printer.failure(format!("error: {error}")));
                return Ok(());
            }
        };
        let mut proposal = proposal(absolute(path)?, &prediction, model.classes());
        if args.accept.is_some_and(|margin| proposal.margin >= margin) && proposal.agrees() {
            proposal.label.clone_from(&proposal.proposal);
        }
        labelled.push((path.clone(), proposal));
        let location = Location { path: path.clone(), part: "unlabelled", class: None };
        compared.add_one(location, model.description.shape, pixels, input)?;
        Ok(())
    })?;
    bar.finish_and_clear();

    labelled.sort_by(|(_, one), (_, other)| one.by_doubt(other));
    let (read, sorted): (Vec<PathBuf>, Vec<Proposal>) = labelled.into_iter().unzip();
    let mut shown = Vec::new();
    let latents = model.latents(&pictures::of_set(&anchors))?;
    for chosen in read[..args.page.min(read.len())].chunks(AT_ONCE) {
        stopped()?;
        // All were readable before.
        let pixels = pictures::read(chosen, &model.description);
        let pixels: Vec<Vec<u8>> = pixels.into_iter().collect::<Result<_, _>>()?;
        let images: Vec<&[u8]> = pixels.iter().map(Vec::as_slice).collect();
        for (path, near) in chosen.iter().zip(model.nearest(&latents, &images, NEAREST)?) {
            let picture = jpeg(THUMBNAIL, &reading::read(path, THUMBNAIL, Fit::Pad)?)?;
            let labels = anchors.require_labels("anchors")?;
            let anchors = near.into_iter().map(|(at, cosine)| {
                let class = &anchors.classes[usize::from(labels[at])];
                Ok((jpeg(anchors.shape, anchors.image(at))?, class.clone(), f64::from(cosine)))
            });
            shown.push(Shown { picture, anchors: anchors.collect::<Result<_>>()? });
        }
    }
    write(&csv, &review_csv(&sorted))?;
    let title = format!("Labels for {}", args.folder.display());
    write(&html, &review_page(&title, model.classes(), &sorted, &shown))?;
    let tasks = args.out.join("labels.json");
    if let Some(served) = &served {
        let paths: Vec<String> = read.iter().map(|path| served[path].clone()).collect();
        let run = args.model.run.file_name().unwrap_or(args.model.run.as_os_str());
        let version = format!("{} (fedanchor {})", run.to_string_lossy(), model.description.build);
        write(&tasks, &label_studio_tasks(&sorted, &paths, &version))?;
        write(&tasks.with_extension("xml"), &label_studio_interface(model.classes()))?;
    }
    let found = doubts::of_labelled(&model, &anchors, &files)?;
    let unlike = unlike(&sorted, usual);
    let labelled = Labelled {
        pictures: sorted.len(),
        differ: sorted.iter().filter(|proposal| !proposal.agrees()).count(),
        accepted: sorted.iter().filter(|proposal| !proposal.label.is_empty()).count(),
        csv: csv.display().to_string(),
        html: html.display().to_string(),
        tasks: served.is_some().then(|| tasks.display().to_string()),
        labels: found,
        duplicates: compared.duplicates(printer)?,
        unlike_advice: (!unlike.is_empty()).then_some(CHECK_PICTURES),
        unlike,
        usual_score: usual,
    };
    args.output.print(printer, &labelled, || show(&labelled, printer));
    let review = match &labelled.tasks {
        None => format!("review the labels in {}, and pass the file that it saves", labelled.html),
        Some(tasks) => format!(
            "import {tasks} into a project of Label Studio with the labelling interface {}, review the labels there, \
             and pass its JSON export",
            args.out.join("labels.xml").display()
        ),
    };
    printer.status(format!("next: {review} to `fedanchor init --labels`"));
    if failed > 0 {
        bail!("{failed} of {} pictures could not be read", paths.len());
    }
    Ok(())
}

fn show(labelled: &Labelled, printer: &Printer) {
    let Labelled { pictures, differ, accepted, csv, html, .. } = labelled;
    printer.line(format!(
        "{}, {} on which the heads differ, {} accepted; wrote {csv} and {html}",
        counted(*pictures, "picture", "pictures"),
        grouped(*differ),
        grouped(*accepted),
    ));
    doubts::show_contradicted(&labelled.labels, printer);
    findings::duplicates(&labelled.duplicates, printer);
    doubts::show_unlike(&labelled.unlike, labelled.usual_score.unwrap_or_default(), printer);
}

/// Pictures with a score that those of the classes hardly ever have.
fn unlike(proposals: &[Proposal], usual: Option<f32>) -> Vec<Unlike> {
    let low = proposals.iter().filter(|one| usual.is_some_and(|usual| one.score < usual.into()));
    let mut found: Vec<Unlike> =
        low.map(|one| Unlike { path: one.path.clone(), score: one.score }).collect();
    found.sort_by(|a, b| a.score.total_cmp(&b.score));
    found
}

fn proposal(path: String, prediction: &Prediction, names: &[String]) -> Proposal {
    let (class, score) = (prediction.anchor_class(), prediction.anchor_score());
    let others = prediction.scores.iter().enumerate().filter(|(other, _)| *other != class);
    let second = others.map(|(_, &score)| score).fold(f32::NEG_INFINITY, f32::max);
    Proposal {
        path,
        label: String::new(),
        proposal: names[class].clone(),
        score: f64::from(score),
        margin: f64::from(score - second),
        classifier: names[prediction.class()].clone(),
        confidence: f64::from(prediction.confidence()),
    }
}

/// Labelled pictures: those in `--anchors`, or the anchors of the run.
struct Labels {
    anchors: ImageSet,
    files: Vec<PathBuf>,
    /// A score that pictures of the classes hardly ever fall below: in the run, its test pictures, on which the model
    /// was not trained.
    usual: Option<f32>,
}

/// Reads them, and adds them to the pictures that are compared; so are the test pictures of the run.
fn labels(
    args: &LabelArgs,
    model: &Model,
    compared: &mut Compared,
    printer: &Printer,
) -> Result<Labels> {
    if let Some(folder) = &args.anchors {
        let set = pictures::read_set(folder, model)?;
        set.require_labels("showing anchors")?;
        if let Some(other) = set.classes.iter().find(|class| !model.classes().contains(class)) {
            let classes = model.classes().join(", ");
            bail!("{}: unknown class `{other}`: the model has {classes}", folder.display());
        }
        let files = pictures::files_of_set(folder)?;
        compared.add("labelled", &set, &files)?;
        let usual = doubts::usual_score(model, &set)?;
        return Ok(Labels { anchors: set, files, usual });
    }
    let instead = "give labelled pictures with --anchors";
    let (experiment, data) = super::data_of_run(&args.model, model, instead, printer)?;
    let Assigned { split, .. } = simulation::assign(&experiment, &data)?;
    let anchors = data.train.select(&split.anchors);
    // Beside features there are only thumbnails.
    let got = anchors.features.as_ref().map_or(anchors.shape, |features| features.format.picture);
    if got != model.description.shape {
        let expected = model.description.shape;
        bail!("data of {}: the model expects {expected}, got {got}", args.model.run.display());
    }
    let Files { train: files, test, .. } = pictures::files_of_run(&experiment)?;
    compared.add("test", &data.test, &test)?;
    let files = match files.len() == data.train.len() {
        true => split.anchors.iter().map(|&at| files[at as usize].clone()).collect(),
        false => Vec::new(), // some could not be read
    };
    compared.add("labelled", &anchors, &files)?;
    let usual = doubts::usual_score(model, &data.test)?;
    Ok(Labels { anchors, files, usual })
}

/// The paths of pictures relative to the folder that Label Studio serves.
fn served(paths: &[PathBuf], root: &Path) -> Result<HashMap<PathBuf, String>> {
    super::check_exists(root, "give the folder that Label Studio serves with --label-studio")?;
    let folder = root.canonicalize().with_context(|| root.display().to_string())?;
    let relative = |path: &PathBuf| {
        let absolute = path.canonicalize().with_context(|| path.display().to_string())?;
        let Ok(inside) = absolute.strip_prefix(&folder) else {
            bail!(
                "{}: not below {}, so Label Studio cannot show it: give a folder that has all pictures with \
                 --label-studio",
                path.display(),
                root.display()
            );
        };
        Ok((path.clone(), paths::text(inside).unwrap_or_default().to_owned())) // others are not labelled
    };
    paths.iter().map(relative).collect()
}

/// The absolute path of a picture: the page may be saved anywhere.
fn absolute(path: &Path) -> Result<String> {
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    Ok(paths::text(&path)?.to_owned())
}
