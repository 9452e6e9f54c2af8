//! What the final model and the data look like, one frame per experiment, of its first seed.

use super::{Figure, short};
use crate::chart::{Chart, Heat, Picture, Scale, Sheet};
use crate::history::History;
use crate::run_files::Matrix;
use crate::study::Section;
use fedanchor_record::SampleKind;

/// Clients in the figure of a partition at most.
const MOST_CLIENTS: usize = 200;

impl Figure {
    /// The same with a frame per experiment, of its first seed with the data that is drawn.
    fn by_run(self, section: &Section, draw: impl Fn(&History) -> Option<Chart>) -> Option<Self> {
        self.by_experiment(section, |experiment| experiment.runs.iter().find_map(&draw))
    }
}

/// Test images by true and predicted class.
pub(super) fn confusion(section: &Section) -> Option<Figure> {
    let draw = |run: &History| {
        let mut matrix = run.confusion.clone()?;
        for row in &mut matrix.values {
            let sum: f64 = row.iter().sum();
            let share = |count: f64| if sum > 0.0 { short(100.0 * count / sum) } else { 0.0 };
            row.iter_mut().for_each(|count| *count = share(*count));
        }
        let names = ["true class", "predicted class"];
        Some(Chart::Heat(heat(matrix, names, "% of the true class")))
    };
    let caption =
        "Test images of each true class by the class that the final model predicts, in percent.";
    Figure::new(section, "confusion", "Confusion matrix (%)", caption).by_run(section, draw)
}

/// Cosine between the classes' mean anchor latents.
pub(super) fn similarity(section: &Section) -> Option<Figure> {
    let draw = |run: &History| {
        let heat = heat(run.similarity.clone()?, ["class", "class"], "cosine");
        Some(Chart::Heat(Heat { scale: Scale::Signed, ..heat }))
    };
    let caption = "Cosine between the mean latents of the classes' anchors, final model. Classes that share \
                   a direction are easily confused.";
    Figure::new(section, "similarity", "Similarity of the anchors (cosine)", caption)
        .by_run(section, draw)
}

/// Samples by client and class.
pub(super) fn partition(section: &Section) -> Option<Figure> {
    let draw = |run: &History| {
        let mut matrix = run.partition.clone()?;
        let place = matrix.columns.iter().position(|column| column == "size");
        let sizes = place.map(|place| {
            matrix.columns.remove(place);
            matrix.values.iter_mut().map(|row| vec![row.remove(place)]).collect()
        });
        if matrix.columns.len() < 2 {
            // The classes are unknown: only the sizes.
            matrix.columns = vec!["any".to_owned()];
            matrix.values = sizes?;
        }
        let every = matrix.rows.len().div_ceil(MOST_CLIENTS).max(1);
        matrix.rows = matrix.rows.into_iter().step_by(every).collect();
        matrix.values = matrix.values.into_iter().step_by(every).collect();
        Some(Chart::Heat(heat(matrix, ["client", "class"], "samples")))
    };
    let caption =
        "Samples of each client by class. Of more than 200 clients, evenly spaced ones are shown.";
    Figure::new(section, "partition", "Partition (samples)", caption).by_run(section, draw)
}

fn heat(matrix: Matrix, [y, x]: [&str; 2], label: &str) -> Heat {
    let Matrix { rows, columns, values } = matrix;
    let [x, y, label] = [x, y, label].map(str::to_owned);
    Heat { x, y, columns, rows, values, label, scale: Scale::Sequential }
}

/// Real images: labelled wrongly with a high score, and left out.
pub(super) fn samples(section: &Section) -> Option<Figure> {
    let draw = |run: &History| {
        let samples = run.samples.as_ref()?;
        let rows = [
            (SampleKind::Wrong, "Kept although the pseudo-label is wrong, highest score first"),
            (SampleKind::KeptDoubtful, "Kept with the lowest scores"),
            (SampleKind::LeftOut, "Left out"),
        ];
        let rows = rows.into_iter().filter_map(|(kind, title)| {
            let of_kind = samples.samples.iter().filter(|sample| sample.kind == kind);
            let pictures = of_kind.map(|sample| {
                let truth = sample.truth.as_deref().filter(|truth| *truth != sample.label);
                let truth = truth.map(|truth| format!("is {truth}"));
                let score = format!("{:.2}", sample.score);
                let caption = [Some(sample.label.clone()), truth, Some(score)];
                let caption = caption.into_iter().flatten().collect();
                Picture { png: sample.png.clone(), caption }
            });
            let pictures: Vec<Picture> = pictures.collect();
            (!pictures.is_empty()).then(|| (title.to_owned(), pictures))
        });
        Some(Chart::Sheet(Sheet { columns: 8, rows: rows.collect() }))
    };
    let caption = "Images of clients in the last recorded round: pseudo-label, true class where it is another, \
                   and score.";
    Figure::new(section, "samples", "Images and their pseudo-labels", caption).by_run(section, draw)
}
