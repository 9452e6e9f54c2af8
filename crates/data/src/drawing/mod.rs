//! Pictures of data, as PNG files.
//!
//! [`contact_sheet`] shows images by class, to check data and labels by eye; [`partition_chart`]
//! shows how skewed the clients are, and [`histogram_csv`] writes its counts as a table.

mod canvas;
mod chart;
mod thumbnail;

pub use chart::partition_chart;
pub use thumbnail::{jpeg, png, write_png};

use crate::{DataError, ImageSet, Result};
use canvas::{Canvas, text_height, text_width};
use std::fmt::Write;
use std::path::Path;

/// Red, green, blue.
type Colour = [u8; 3];

const INK: Colour = [40, 44, 52];
const FAINT: Colour = [225, 228, 232];
/// Space around a picture.
const MARGIN: u32 = 28;
/// Scale of the font in titles, and in all other text.
const TITLE: u32 = 3;
const TEXT: u32 = 2;

/// Writes a sheet of images: one row per class with `columns` of its images or, without labels, some
/// of all images. They are spread evenly: neighbours are often frames of one film.
pub fn contact_sheet(title: &str, images: &ImageSet, columns: usize, path: &Path) -> Result<()> {
    if images.is_empty() {
        return Err(DataError::Unusable("no images to draw".into()));
    }
    let columns = columns.clamp(1, 50);
    let rows = sheet_rows(images, columns);
    // Small images are enlarged, less so if there are many rows.
    let side = images.shape.side as u32;
    let largest = if rows.len() <= 12 { 96 } else { 64 };
    let scale = (largest / side).max(1);
    let pitch = side * scale + 6;
    let names = images.labels.as_ref().map_or(&[][..], |_| &images.classes);
    let name_width = names.iter().map(|name| text_width(TEXT, &shorten(name))).max();
    let left = MARGIN + name_width.map_or(0, |width| width + 16);
    let top = MARGIN + text_height(TITLE) + 20;
    let title_width = text_width(TITLE, title);
    let mut canvas = Canvas::new(
        (left + pitch * columns as u32 - 6).max(MARGIN + title_width) + MARGIN,
        top + pitch * rows.len() as u32 - 6 + MARGIN,
    );
    canvas.text(MARGIN, MARGIN, TITLE, INK, title);
    for (row, members) in rows.iter().enumerate() {
        let y = top + pitch * row as u32;
        if let Some(name) = names.get(row) {
            let middle = y + (side * scale).saturating_sub(text_height(TEXT)) / 2;
            canvas.text(MARGIN, middle, TEXT, INK, &shorten(name));
        }
        for (column, &image) in members.iter().enumerate() {
            let x = left + pitch * column as u32;
            canvas.image(x, y, images.image(image), images.shape.side, scale);
        }
    }
    canvas.save(path)
}

/// The indices of the images in every row of a contact sheet.
fn sheet_rows(images: &ImageSet, columns: usize) -> Vec<Vec<usize>> {
    let Some(labels) = &images.labels else {
        let all: Vec<usize> = (0..images.len()).collect();
        return spread(&all, 10 * columns).chunks(columns).map(<[usize]>::to_vec).collect();
    };
    let mut rows = vec![Vec::new(); images.classes.len()];
    for (image, &label) in labels.iter().enumerate() {
        rows[usize::from(label)].push(image);
    }
    rows.iter().map(|row| spread(row, columns)).collect()
}

/// At most so many of the items, at even distances.
fn spread(items: &[usize], most: usize) -> Vec<usize> {
    let count = items.len().min(most);
    (0..count).map(|number| items[number * items.len() / count]).collect()
}

/// Writes the counts of [`partition_chart`] as a table: `client,size,<class names...>`.
pub fn histogram_csv(histogram: &[Vec<u32>], classes: &[String], path: &Path) -> Result<()> {
    let mut table = String::from("client,size");
    for name in classes {
        table.push(',');
        table.push_str(&quoted(name));
    }
    table.push('\n');
    for (client, counts) in histogram.iter().enumerate() {
        let size: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        write!(table, "{client},{size}").expect("writing to a string cannot fail");
        for count in counts {
            write!(table, ",{count}").expect("writing to a string cannot fail");
        }
        table.push('\n');
    }
    std::fs::write(path, table).map_err(|error| DataError::io(path, error))
}

/// A name as a field of a CSV file.
pub fn quoted(name: &str) -> String {
    if name.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name.into()
    }
}

/// A name shortened to fit next to a picture.
fn shorten(name: &str) -> String {
    const MOST: usize = 20;
    if name.chars().count() <= MOST {
        return name.into();
    }
    name.chars().take(MOST - 2).chain("..".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    /// Four 2x2 grey images of two classes; all pixels of image i are 10 * i.
    fn four(labels: Option<Vec<u16>>) -> ImageSet {
        ImageSet {
            shape: Shape { side: 2, channels: 1 },
            pixels: (0..16).map(|pixel| pixel / 4 * 10).collect(),
            labels,
            classes: vec!["cat".into(), "dog".into()],
        }
    }

    #[test]
    fn a_sheet_has_one_row_per_class() {
        let images = four(Some(vec![1, 0, 1, 1]));
        assert_eq!(sheet_rows(&images, 2), [vec![1], vec![0, 2]]);
        assert_eq!(sheet_rows(&four(None), 3), [vec![0, 1, 2], vec![3]]);
        assert_eq!(spread(&[4, 5, 6, 7, 8, 9, 10], 3), [4, 6, 8]);
        assert_eq!(spread(&[4, 5], 3), [4, 5]);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sheet.png");
        contact_sheet("Pets", &images, 2, &path).unwrap();
        let picture = image::open(&path).unwrap().into_rgb8();
        // Tiles of 96 pixels, 6 apart, to the right of three letters (34 wide, then 16 of space).
        let (left, top) = (28 + 34 + 16, 28 + 21 + 20);
        assert_eq!(picture.dimensions(), (left + 198 + 28, top + 198 + 28));
        assert_eq!(picture[(left, top)].0, [10; 3]);
        assert_eq!(picture[(left + 102, top)].0, [255; 3]);
        assert_eq!(picture[(left, top + 102)].0, [0; 3]);
        assert_eq!(picture[(left + 102 + 95, top + 102 + 95)].0, [20; 3]);
    }

    #[test]
    fn an_empty_set_is_an_error() {
        let empty = ImageSet { pixels: vec![], ..four(None) };
        let why = contact_sheet("", &empty, 2, Path::new("sheet.png")).unwrap_err();
        assert_eq!(why.to_string(), "no images to draw");
    }

    #[test]
    fn the_table_has_one_line_per_client() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("histogram.csv");
        let classes = ["cat".into(), "dog, \"big\"".into()];
        histogram_csv(&[vec![3, 4], vec![0, 1]], &classes, &path).unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "client,size,cat,\"dog, \"\"big\"\"\"\n0,7,3,4\n1,1,0,1\n"
        );
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shorten("aquarium_fish"), "aquarium_fish");
        assert_eq!(shorten("a name of many characters"), "a name of many cha..");
    }
}
