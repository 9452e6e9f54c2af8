//! `fedanchor predict` and `fedanchor eval`: a trained model on pictures, and how right it is on labelled ones.

use super::copies::Compared;
use super::doubts;
use super::{findings, grouped, pictures, width};
use crate::cli::{EvalArgs, PredictArgs, PredictFormat};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor::model::{Assessment, assess};
use fedanchor_data::inspection::Duplicates;
use fedanchor_data::names::like;
use fedanchor_data::paths::shown;
use fedanchor_data::tables::csv;
use serde::Serialize;
use std::cmp::Reverse;

/// With more classes, the confusion matrix is wider than a terminal.
const MATRIX: usize = 12;
/// Confusions listed instead of the matrix.
const LISTED: usize = 15;

/// One line of the output.
#[derive(Serialize)]
struct Line<'a> {
    path: String,
    class: &'a str,
    confidence: f32,
    nearest: &'a str,
    cosine: f32,
}

/// An unreadable picture.
#[derive(Serialize)]
struct Failed<'a> {
    path: String,
    error: &'a str,
}

pub fn predict(args: &PredictArgs, printer: &Printer) -> Result<()> {
    let model = args.model.load()?;
    let paths = pictures::find(&args.images, printer)?;
    let path_width = paths.iter().map(|path| shown(path).chars().count()).max().unwrap_or(0);
    let (path_width, names) = (path_width.clamp(4, 60), model.classes());
    let class = width(names, 7);
    match args.format {
        _ if args.json => {}
        PredictFormat::Table => printer.line(format!(
            "{:path_width$}  {:class$}  confidence  {:class$}  cosine",
            "path", "class", "nearest"
        )),
        PredictFormat::Csv => printer.line("path,class,confidence,nearest,cosine"),
    }
    let mut failed = 0;
    pictures::predict(&model, &paths, printer, |path, prediction| {
        let path = shown(path);
        let prediction = match prediction {
            Ok(predicted) => predicted.prediction,
            Err(error) => {
                failed += 1;
                printer.failure(format!("error: {error}"));
                if args.json {
                    let error = error.to_string();
                    printer.line(serde_json::to_string(&Failed { path, error: &error })?);
                }
                return Ok(());
            }
        };
        let line = Line {
            path,
            class: &names[prediction.class()],
            confidence: prediction.confidence(),
            nearest: &names[prediction.anchor_class()],
            cosine: prediction.anchor_score(),
        };
        printer.line(match args.format {
            _ if args.json => serde_json::to_string(&line)?,
            PredictFormat::Table => format!(
                "{:path_width$}  {:class$}  {:>8.1} %  {:class$}  {:>6.3}",
                line.path,
                line.class,
                100.0 * line.confidence,
                line.nearest,
                line.cosine
            ),
            PredictFormat::Csv => {
                let (confidence, cosine) = (line.confidence.to_string(), line.cosine.to_string());
                let row = [&line.path, line.class, &confidence, line.nearest, &cosine];
                csv([row]).trim_end_matches('\n').to_owned()
            }
        });
        Ok(())
    })?;
    if failed > 0 {
        bail!("{failed} of {} pictures could not be read", paths.len());
    }
    Ok(())
}

/// What `eval --json` prints.
#[derive(Serialize)]
struct Evaluated {
    #[serde(flatten)]
    assessment: Assessment,
    /// Pictures that look like those of another class.
    #[serde(flatten)]
    labels: doubts::Found,
    /// Pictures that show the same, under two labels or in two parts.
    duplicates: Duplicates,
}

pub fn eval(args: &EvalArgs, printer: &Printer) -> Result<()> {
    let model = args.model.load()?;
    let mut compared = Compared::new(&model);
    let (set, name, files) = match &args.data {
        Some(path) => {
            let set = pictures::read_set(path, &model)?;
            (set, path.display().to_string(), pictures::files_of_set(path)?)
        }
        None => {
            let advice = "give labelled pictures after it";
            let (experiment, data) = super::data_of_run(&args.model, &model, advice, printer)?;
            let files = pictures::files_of_run(&experiment)?;
            compared.add("labelled", &data.train, &files.train)?;
            if let Some(unlabelled) = &data.unlabelled {
                compared.add("unlabelled", &unlabelled.images, &files.unlabelled)?;
            }
            (data.test, data.name, files.test)
        }
    };
    compared.add("test", &set, &files)?;
    let truth = set.require_labels("an evaluation")?;
    let truth = by_name(truth, &set.classes, model.classes(), &name)?;
    let assessment = assess(&model.predict(&pictures::of_set(&set))?, &truth, model.classes());
    let labels = doubts::of_labelled(&model, &set, &files)?;
    let duplicates = compared.duplicates(printer)?;
    let evaluated = Evaluated { assessment, labels, duplicates };
    args.output.print(printer, &evaluated, || {
        show(&evaluated.assessment, model.classes(), printer);
        if !(evaluated.labels.contradicted.is_empty() && evaluated.duplicates.near.is_empty()) {
            printer.line("");
        }
        doubts::show_contradicted(&evaluated.labels, printer);
        findings::duplicates(&evaluated.duplicates, printer);
    });
    Ok(())
}

/// Labels as the model numbers its classes, which are matched by name.
fn by_name(labels: &[u16], there: &[String], model: &[String], data: &str) -> Result<Vec<u16>> {
    let numbers: Vec<Option<u16>> = there
        .iter()
        .map(|name| model.iter().position(|known| known == name).map(|class| class as u16))
        .collect();
    let unknown = there.iter().zip(&numbers).filter(|(_, number)| number.is_none());
    let unknown: Vec<&str> = unknown.map(|(name, _)| name.as_str()).take(5).collect();
    if let [first, ..] = unknown[..] {
        let alike = like(first, model).map(|(like, how)| {
            format!("; `{first}` differs from `{like}` only {how}: rename its folder")
        });
        bail!(
            "{data}: unknown class `{}`: the model has {}{}",
            unknown.join("`, `"),
            model.join(", "),
            alike.unwrap_or_default()
        );
    }
    Ok(labels.iter().filter_map(|&label| numbers[usize::from(label)]).collect())
}

fn show(assessment: &Assessment, names: &[String], printer: &Printer) {
    let Assessment { images, classifier, anchors, calibration } = assessment;
    let percent = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    printer.line(format!(
        "{} images: accuracy {:.2} %, by the nearest anchors {:.2} %, calibration error {:.1} points",
        grouped(*images),
        classifier.accuracy,
        anchors.accuracy,
        calibration.error
    ));
    let width = width(names, 5);
    printer.line("");
    printer.line(format!("{:width$}   images  precision   recall", "class"));
    for score in &classifier.classes {
        printer.line(format!(
            "{:width$}  {:>7}  {:>9}  {:>7}",
            score.class,
            grouped(score.images),
            percent(score.precision),
            percent(score.recall)
        ));
    }
    if names.len() <= MATRIX {
        // A precision cuts the name.
        let cell = width.min(10);
        let head: Vec<String> = names.iter().map(|name| format!("{name:>cell$.cell$}")).collect();
        printer.line("");
        printer.line(format!("{:width$}  {}", "truth", head.join(" ")));
        for (name, row) in names.iter().zip(&classifier.confusion) {
            let row: Vec<String> = row.iter().map(|count| format!("{count:>cell$}")).collect();
            printer.line(format!("{name:width$}  {}", row.join(" ")));
        }
    } else {
        let all = classifier.confusion.iter().enumerate().flat_map(|(truth, row)| {
            row.iter().enumerate().map(move |(class, &count)| (count, truth, class))
        });
        let mut wrong: Vec<_> =
            all.filter(|&(count, truth, class)| truth != class && count > 0).collect();
        wrong.sort_by_key(|&(count, truth, class)| (Reverse(count), truth, class));
        printer.line("");
        printer.line("most frequent confusions (`--json` has all)");
        for (count, truth, class) in wrong.iter().take(LISTED) {
            printer.line(format!("{count:>7}  {} predicted as {}", names[*truth], names[*class]));
        }
    }
    printer.line("");
    printer.line("confidence    images  mean confidence  accuracy");
    for bin in calibration.bins.iter().filter(|bin| bin.images > 0) {
        printer.line(format!(
            "{:>3.0} to {:>3.0} %  {:>7}  {:>15}  {:>8}",
            bin.from,
            bin.to,
            grouped(bin.images),
            percent(bin.confidence),
            percent(bin.accuracy)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_matched_by_name() {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let model = names(&["cat", "cow", "dog"]);
        let found = by_name(&[0, 1, 0], &names(&["dog", "cat"]), &model, "pets").unwrap();
        assert_eq!(found, [2, 0, 2]);
        let error = by_name(&[0], &names(&["bird"]), &model, "pets").unwrap_err().to_string();
        assert_eq!(error, "pets: unknown class `bird`: the model has cat, cow, dog");
        let error = by_name(&[0], &names(&["Cat"]), &model, "pets").unwrap_err().to_string();
        assert_eq!(
            error,
            "pets: unknown class `Cat`: the model has cat, cow, dog; `Cat` differs from `cat` only in upper and \
             lower case: rename its folder"
        );
    }
}
