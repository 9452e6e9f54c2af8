//! What an inspection finds in folders with everything wrong with them.

use super::*;
use crate::sample;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use std::fs;

fn digits() -> DataSet {
    sample::load().unwrap()
}

fn picture(set: &ImageSet, number: usize) -> GrayImage {
    GrayImage::from_raw(28, 28, set.image(number).to_vec()).unwrap()
}

fn print(picture: &DynamicImage, format: ImageFormat) -> Fingerprint {
    let mut file = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut file, format).unwrap();
    let shape = Shape { side: duplicates::SIDE, channels: 1 };
    let pixels = pictures::decode(file.get_ref(), Path::new("a"), shape, Fit::Stretch).unwrap();
    Fingerprint::new(blake3::hash(file.get_ref()), &pixels)
}

#[test]
fn near_duplicates_are_found_and_other_digits_are_not() {
    let set = digits();
    let of = |set: &ImageSet, number, format| print(&picture(set, number).into(), format);
    let tests: Vec<Fingerprint> =
        (0..300).into_par_iter().map(|number| of(&set.test, number, ImageFormat::Png)).collect();
    let train: Vec<Fingerprint> =
        (0..600).into_par_iter().map(|number| of(&set.train, number, ImageFormat::Png)).collect();
    let pairs = tests.iter().flat_map(|a| train.iter().map(move |b| a.near(b)));
    assert_eq!(pairs.filter(|near| *near).count(), 0);
    let again = (0..300).into_par_iter().map(|number| of(&set.test, number, ImageFormat::Jpeg));
    let found = again.zip(&tests).filter(|(again, print)| again.near(print)).count();
    assert!(found >= 290, "{found} of 300");
}

/// Dark pictures have hardly any edges, and are all alike on a small thumbnail.
#[test]
fn dark_pictures_with_different_patterns_are_not_near() {
    let side = duplicates::SIDE;
    let print = |bright: &dyn Fn(usize, usize) -> bool| {
        let pixels: Vec<u8> =
            (0..side * side).map(|at| if bright(at % side, at / side) { 13 } else { 10 }).collect();
        Fingerprint::new(blake3::hash(&pixels), &pixels)
    };
    let (across, down) = (print(&|_, y| y % 24 < 12), print(&|x, _| x % 24 < 12));
    assert!(!across.near(&down) && !down.near(&across));
    let almost = print(&|x, y| y % 24 < 12 && x > 0);
    assert!(across.near(&almost));
}

/// Blank pages, for example: all pairs of them would be too many to find and to read.
#[test]
fn of_many_pictures_that_look_the_same_each_is_listed_with_one() {
    let location = |number: u32| Location {
        path: format!("{number}.png").into(),
        part: "labelled",
        class: Some(["cat", "dog"][number as usize % 2].to_owned()),
    };
    let pixels = [200; duplicates::SIDE * duplicates::SIDE];
    let print = |number: u32| Fingerprint::new(blake3::hash(&number.to_le_bytes()), &pixels);
    let pictures: Vec<(Location, Fingerprint)> =
        (0..300).map(|at| (location(at), print(at))).collect();
    let near = duplicates::find(&pictures).near;
    assert!((150..=300).contains(&near.len()), "{}", near.len());
    assert!(near.iter().all(|pair| pair.first.class != pair.second.class));
    let listed = |(location, _): &(Location, Fingerprint)| {
        near.iter().any(|pair| pair.first == *location || pair.second == *location)
    };
    assert!(pictures.iter().all(listed));
}

#[test]
fn everything_is_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let set = digits();
    let save = |name: &str, number: usize| {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        picture(&set.train, number).save(at(name)).unwrap();
    };
    for (name, number) in [
        ("labelled/nought/a.png", 0),
        ("labelled/one/a.png", 1),
        ("labelled/one/same.png", 0), // the same file under two labels
        ("labelled/one/b.png", 11),
        ("labelled/one/again.png", 11), // within a class: not reported
        ("unlabelled/x/a.png", 2),
        ("unlabelled/y/a.png", 3),
        ("unlabelled/y/near.jpg", 1), // looks like an anchor
        ("test/one/a.png", 2),        // the same file as a client's
    ] {
        save(name, number);
    }
    fs::write(at("unlabelled/y/text.jpg"), "a text").unwrap();
    fs::write(at("test/one/notes.txt"), "a text").unwrap();
    RgbImage::new(1, 1).save(at("labelled/one/dot.png")).unwrap();
    RgbImage::new(40, 20).save(at("unlabelled/x/wide.png")).unwrap();
    let found = inspect(folder.path(), &Options::default()).unwrap();
    assert_eq!(found.classes, ["nought", "one"]);
    let [labelled, unlabelled, test] = &found.parts[..] else { panic!("{:?}", found.parts) };
    assert_eq!((labelled.name.as_str(), &labelled.by_class[..]), ("labelled", &[1, 4][..]));
    assert_eq!((labelled.pictures, labelled.square, labelled.grey), (5, 5, 5));
    assert_eq!(unlabelled.by_client, [("x".to_owned(), 2), ("y".to_owned(), 2)]);
    assert_eq!((unlabelled.pictures, unlabelled.square, unlabelled.grey), (4, 3, 3));
    let width = Spread { smallest: 28.0, median: 28.0, largest: 40.0 };
    assert_eq!((unlabelled.width, unlabelled.aspect.unwrap().largest), (Some(width), 2.0));
    assert_eq!((test.pictures, &test.by_class[..]), (1, &[0, 1][..]));
    let names = |files: &[Skipped]| -> Vec<String> {
        files.iter().map(|file| format!("{}", file.path.file_name().unwrap().display())).collect()
    };
    assert_eq!(names(&found.unreadable), ["dot.png", "text.jpg"]);
    assert_eq!(names(&found.others), ["notes.txt"]);
    let shown = |location: &Location| {
        location.path.strip_prefix(folder.path()).unwrap().display().to_string()
    };
    let exact: Vec<Vec<String>> =
        found.duplicates.exact.iter().map(|group| group.iter().map(shown).collect()).collect();
    assert_eq!(
        exact,
        [
            ["labelled/nought/a.png", "labelled/one/same.png"],
            ["unlabelled/x/a.png", "test/one/a.png"]
        ]
    );
    let near: Vec<[String; 2]> = found
        .duplicates
        .near
        .iter()
        .map(|pair| [shown(&pair.first), shown(&pair.second)])
        .collect();
    assert_eq!(near, [["labelled/one/a.png", "unlabelled/y/near.jpg"]]);
    let advice = found.duplicates.advice.iter().map(|advice| advice.split(':').next().unwrap());
    let expected = ["under two labels", "in the test part and another", "labelled and unlabelled"];
    assert_eq!(advice.collect::<Vec<_>>(), expected);
    // The sizes differ, and a run without a size says so.
    assert!(found.refusal.unwrap().contains("wide.png: image size"));
    let options = Options { size: Some(28), ..Options::default() };
    let refusal = inspect(folder.path(), &options).unwrap().refusal.unwrap();
    assert!(refusal.starts_with("2 pictures cannot be read"), "{refusal}");
    let options = Options { skip_unreadable: true, ..options };
    let accepted = inspect(folder.path(), &options).unwrap();
    assert_eq!(accepted.refusal, None);
    let json = serde_json::to_value(&accepted).unwrap();
    assert_eq!(json["unreadable"][0]["reason"]["kind"], "too-small");
}

#[test]
fn data_that_a_run_refuses_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |path: &Path| inspect(path, &Options::default()).unwrap().refusal;
    assert!(refusal(folder.path()).unwrap().contains("needs a labelled and a test part"));
    let path = folder.path().join("a.png");
    GrayImage::new(4, 4).save(&path).unwrap();
    assert!(refusal(&path).is_some() && refusal(folder.path()).is_some());
    fs::create_dir_all(folder.path().join("test/cat")).unwrap();
    assert!(refusal(folder.path()).unwrap().contains("problems"));
    assert!(inspect(&folder.path().join("absent"), &Options::default()).is_err());
}

#[test]
fn a_survey_counts_every_picture_once() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["labelled/cat", "test/cat", "unlabelled"] {
        fs::create_dir_all(folder.path().join(part)).unwrap();
        for name in ["a.png", "b.png"] {
            GrayImage::new(4, 4).save(folder.path().join(part).join(name)).unwrap();
        }
    }
    let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = calls.clone();
    let progress = crate::Progress::new(move |done, all| log.lock().unwrap().push((done, all)));
    survey(folder.path(), &Options { progress, ..Options::default() }).unwrap();
    let mut calls = std::mem::take(&mut *calls.lock().unwrap());
    calls.sort_unstable();
    assert_eq!(calls, [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]);
}
