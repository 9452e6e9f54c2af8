//! Pictures of data as SVG files.

use anyhow::{Context, Result, ensure};
use fedanchor_data::{ImageSet, thumbnail};
use fedanchor_report::chart::{Chart, Picture, Sheet};
use std::path::Path;

/// Writes a sheet of images: one row per class with `columns` of its images or, without labels, some of all
/// images. They are spread evenly: neighbours are often frames of one film.
pub fn contact_sheet(title: &str, images: &ImageSet, columns: usize, path: &Path) -> Result<()> {
    ensure!(!images.is_empty(), "no images to draw");
    let mut rows = Vec::new();
    for (name, members) in sheet_rows(images, columns) {
        let mut pictures = Vec::new();
        for image in members {
            let bytes = thumbnail::png(images.shape, images.image(image as usize))?;
            pictures.push(Picture::new(&bytes, Vec::new()));
        }
        rows.push((name, pictures));
    }
    write(&Chart::Sheet(Sheet { columns, rows }), title, path)
}

/// Writes a chart.
pub(super) fn write(chart: &Chart, title: &str, path: &Path) -> Result<()> {
    fedanchor_disk::write(path, &[chart.svg(title).as_bytes()])
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// Name and images of every row of a contact sheet.
fn sheet_rows(images: &ImageSet, columns: usize) -> Vec<(String, Vec<u32>)> {
    if images.labels.is_none() {
        let all: Vec<u32> = (0..images.len() as u32).collect();
        return vec![(String::new(), spread(&all, 10 * columns))];
    }
    let rows = images.by_class().into_iter().map(|row| spread(&row, columns));
    images.classes.iter().cloned().zip(rows).collect()
}

/// At most so many of the items, at even distances.
fn spread(items: &[u32], most: usize) -> Vec<u32> {
    let count = items.len().min(most);
    (0..count).map(|number| items[number * items.len() / count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fedanchor_data::Shape;

    /// Four 2x2 grey images of two classes.
    fn four(labels: Option<Vec<u16>>) -> ImageSet {
        ImageSet {
            shape: Shape { side: 2, channels: 1 },
            pixels: (0..16).map(|pixel| pixel / 4 * 10).collect(),
            features: None,
            labels,
            classes: vec!["cat".into(), "dog".into()],
        }
    }

    /// An SVG file, which must be well-formed.
    fn drawn(path: &Path) -> String {
        let svg = std::fs::read_to_string(path).unwrap();
        roxmltree::Document::parse(&svg).unwrap();
        svg
    }

    #[test]
    fn a_sheet_has_one_row_per_class() {
        let images = four(Some(vec![1, 0, 1, 1]));
        let rows = [("cat".to_owned(), vec![1]), ("dog".to_owned(), vec![0, 2])];
        assert_eq!(sheet_rows(&images, 2), rows);
        assert_eq!(sheet_rows(&four(None), 3), [(String::new(), vec![0, 1, 2, 3])]);
        assert_eq!(spread(&[4, 5, 6, 7, 8, 9, 10], 3), [4, 6, 8]);
        assert_eq!(spread(&[4, 5], 3), [4, 5]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sheet.svg");
        contact_sheet("Pets", &images, 2, &path).unwrap();
        assert_eq!(drawn(&path).matches("<image ").count(), 3);
        let empty = ImageSet { pixels: vec![], ..four(None) };
        let why = contact_sheet("", &empty, 2, &path).unwrap_err();
        assert_eq!(why.to_string(), "no images to draw");
    }
}
