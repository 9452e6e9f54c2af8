//! `fedanchor predict`: the classes of pictures by a trained model.

use super::{pictures, width};
use crate::cli::{PredictArgs, PredictFormat};
use crate::printer::Printer;
use anyhow::{Result, bail};
use fedanchor_data::paths::shown;
use fedanchor_data::tables::csv;
use serde::Serialize;

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
    let format = if args.json { PredictFormat::Jsonl } else { args.format };
    let paths = pictures::find(&args.images, printer)?;
    let path_width = paths.iter().map(|path| shown(path).chars().count()).max().unwrap_or(0);
    let (path_width, names) = (path_width.clamp(4, 60), model.classes());
    let class = width(names, 7);
    match format {
        PredictFormat::Table => printer.line(format!(
            "{:path_width$}  {:class$}  confidence  {:class$}  cosine",
            "path", "class", "nearest"
        )),
        PredictFormat::Csv => printer.line("path,class,confidence,nearest,cosine"),
        PredictFormat::Jsonl => {}
    }
    let mut failed = 0;
    pictures::predict(&model, &paths, |path, prediction| {
        let path = shown(path);
        let prediction = match prediction {
            Ok(prediction) => prediction,
            Err(error) => {
                failed += 1;
                printer.failure(format!("error: {error}"));
                if format == PredictFormat::Jsonl {
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
        printer.line(match format {
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
            PredictFormat::Jsonl => serde_json::to_string(&line)?,
        });
        Ok(())
    })?;
    if failed > 0 {
        bail!("{failed} of {} pictures could not be read", paths.len());
    }
    Ok(())
}
