//! The example trains and classifies.

#![allow(clippy::unwrap_used)]

use fedanchor_data::thumbnail::write_png;
use fedanchor_data::{ImageSet, sample};
use std::path::{Path, PathBuf};

/// Writes some images of the embedded sample: the first `skip` of a class are left out.
fn write(images: &ImageSet, folder: &Path, skip: usize, count: usize, by_class: bool) {
    for class in 0..3u16 {
        let of_class = images.labels.as_ref().unwrap().iter().enumerate();
        let of_class = of_class.filter(|(_, label)| **label == class).map(|(index, _)| index);
        let folder = if by_class { folder.join(format!("digit {class}")) } else { folder.into() };
        std::fs::create_dir_all(&folder).unwrap();
        for index in of_class.skip(skip).take(count) {
            let path = folder.join(format!("{class}-{index}.png"));
            write_png(images.shape, images.image(index), &path).unwrap();
        }
    }
}

#[test]
fn it_trains_on_pictures_and_classifies_others() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let data = sample::load().unwrap();
    write(&data.train, &at("data/labelled"), 0, 10, true);
    write(&data.train, &at("data/unlabelled"), 10, 40, false);
    write(&data.test, &at("data/test"), 0, 20, true);
    let summary = pictures::train(&at("data"), &at("run"), 2).unwrap();
    assert_eq!((summary.rounds, summary.anchors, summary.classes.len()), (2, 30, 3));
    assert!(summary.final_accuracy > 60.0, "{}", summary.final_accuracy);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(at("data/unlabelled"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let found = pictures::classify(&at("run"), &paths).unwrap();
    let right = |(path, (class, _)): &(&PathBuf, &(String, f32))| {
        class.ends_with(&path.file_name().unwrap().to_str().unwrap()[..1])
    };
    let right = paths.iter().zip(&found).filter(right).count();
    assert!(found.len() == 120 && right > 72, "{right} of {}", found.len());
}

/// The program, with a folder per client.
#[test]
fn clients_may_have_folders_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let data = sample::load().unwrap();
    write(&data.train, &at("data/labelled"), 0, 5, true);
    for (client, name) in ["north", "south"].iter().enumerate() {
        write(&data.train, &at("data/unlabelled").join(name), 5 + 10 * client, 10, false);
    }
    write(&data.test, &at("data/test"), 0, 5, true);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pictures"))
        .args([at("data"), at("run"), "1".into()])
        .env("FEDANCHOR_CACHE", "")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("15 labelled pictures, 2 clients\n"), "{text}");
    let north = at("data/unlabelled/north").display().to_string();
    let shown = text.lines().filter(|line| line.starts_with(&north) && line.contains(": digit "));
    assert_eq!(shown.count(), 5, "{text}");
}
