//! A page about an exported model, for those who use it elsewhere.
//!
//! It has only facts that the model file and its run folder hold: what is not recorded is not guessed. Without the run
//! folder, the page has the first part only.

use crate::error::Result;
use crate::escape::markdown;
use crate::history::History;
use crate::setup::Complete;
use std::fmt::Write;
use std::path::Path;

/// The page: `facts` are what the model file says, each with its name; `run` is the folder of its run.
pub fn model_card(
    title: &str,
    facts: &[(&str, String)],
    run: Option<&Path>,
    complete: Complete,
) -> Result<String> {
    let history = run.map(|folder| History::read(folder, false, complete)).transpose()?;
    let mut page = format!("# {}\n\n", markdown(title));
    list(&mut page, facts);
    match &history {
        Some(history) => of_run(&mut page, history),
        None => {
            page += "\nData and accuracy are in the folder of the run, which was not there at the export.\n";
        }
    }
    Ok(page)
}

fn list(page: &mut String, facts: &[(&str, String)]) {
    for (name, fact) in facts {
        let _ = writeln!(page, "- {name}: {}", markdown(fact));
    }
}

fn of_run(page: &mut String, history: &History) {
    let confusion = history.confusion.as_ref().filter(|matrix| matrix.rows == history.classes());
    let tested: Option<f64> = confusion.map(|matrix| matrix.values.iter().flatten().sum());
    let clients = history.partition.as_ref();
    let sizes = clients.and_then(|matrix| {
        let size = matrix.columns.iter().position(|column| column == "size")?;
        Some(matrix.values.iter().map(|row| row[size]).sum::<f64>())
    });
    let path = history.setup.config.get("data").and_then(|data| data.get("path")?.as_str());
    let mut data = Vec::new();
    if let Some(summary) = &history.summary {
        data.push(("Name", summary.data.clone()));
    }
    data.extend(path.map(|path| ("Place at the training", path.to_owned())));
    if let Some(summary) = &history.summary {
        data.push(("Labelled pictures", summary.anchors.to_string()));
        data.push(("Fingerprint of all pixels and labels", summary.data_fingerprint.clone()));
    }
    if let (Some(clients), Some(sizes)) = (clients, sizes) {
        data.push(("Pictures on clients", format!("{sizes}, on {} clients", clients.rows.len())));
    }
    data.extend(tested.map(|count| ("Test pictures", count.to_string())));
    *page += "\n## Data\n\n";
    list(page, &data);

    *page += "\n## Training\n\n";
    let last = history.last();
    let mut training = vec![("Rounds", format!("{} of {}", last.round, history.planned()))];
    if let Some(summary) = &history.summary {
        training.push(("Method", summary.method.clone()));
        training.push(("Network", format!("{}, {} weights", summary.model, summary.parameters)));
        training.push(("Seed", summary.seed.to_string()));
    }
    training.extend(history.builds().iter().map(|build| ("Build", build.to_string())));
    list(page, &training);

    *page += "\n## Test\n\n";
    let mut test = vec![("Accuracy", format!("{:.2} %", last.test_accuracy))];
    if let Some(floor) = history.summary.as_ref().and_then(|summary| summary.server_only_accuracy) {
        test.push(("The labelled pictures alone", format!("{floor:.2} %")));
    }
    let guess = (history.classes().len() as f64).ln();
    let error = match history.summary.as_ref().and_then(|summary| summary.calibration_error) {
        Some(error) => format!(
            "expected error {error:.1} points, the mean distance of confidence and accuracy in ten bins"
        ),
        None => "`fedanchor eval` computes the expected error from the test pictures".to_owned(),
    };
    // Without escapes, since it may name a command.
    let loss = format!(
        "{error}; mean cross entropy {:.3}, where a guess without a picture has {guess:.3}",
        last.test_loss
    );
    list(page, &test);
    let _ = writeln!(page, "- Calibration: {loss}");
    if let Some(warning) = history.summary.as_ref().and_then(|summary| summary.warning()) {
        let _ = writeln!(page, "- Warning: {}", markdown(&warning));
    }
    let Some(confusion) = confusion else { return };
    *page += "\n| class | test pictures | precision | recall |\n| --- | ---: | ---: | ---: |\n";
    for (class, name) in confusion.rows.iter().enumerate() {
        let row = &confusion.values[class];
        let predicted: f64 = confusion.values.iter().map(|row| row[class]).sum();
        let all: f64 = row.iter().sum();
        let percent = |of: f64| match of > 0.0 {
            true => format!("{:.1} %", 100.0 * row[class] / of),
            false => "-".to_owned(),
        };
        let (precision, recall) = (percent(predicted), percent(all));
        let _ = writeln!(page, "| {} | {all} | {precision} | {recall} |", markdown(name));
    }
    for problem in &history.problems {
        let _ = writeln!(page, "\nNote: {}", markdown(problem));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_run_the_page_says_so() {
        let facts = [("Classes", "a|b, c".to_owned())];
        let page = model_card("model.onnx", &facts, None, &|_| None).unwrap();
        assert!(
            page.starts_with("# model.onnx\n\n- Classes: a\\|b, c\n\nData and accuracy are in"),
            "{page}"
        );
    }
}
