//! Data sets of pictures in folders and in tables, complete and not.

mod names;

use crate::formats::{Options, open};
use crate::{DataSet, Reason, Skipped};
use image::{GrayImage, Luma, Rgb, RgbImage};
use std::fs;
use std::path::{Path, PathBuf};

struct Folder(tempfile::TempDir);

impl Folder {
    /// With a grey picture of 4 x 4 pixels in every one of these files, of the value of its number.
    fn new(pictures: &[&str]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (number, name) in pictures.iter().enumerate() {
            folder.picture(name, 4, 4, number as u8);
        }
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn picture(&self, name: &str, width: u32, height: u32, value: u8) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        GrayImage::from_pixel(width, height, Luma([value])).save(self.at(name)).unwrap();
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        fs::write(self.at(name), content).unwrap();
    }

    fn open(&self, options: &Options) -> DataSet {
        open(self.0.path(), options).unwrap()
    }

    fn failure(&self, options: &Options) -> String {
        open(self.0.path(), options).unwrap_err().to_string()
    }
}

fn share(share: f64) -> Options {
    Options { test_share: Some(share), ..Options::default() }
}

fn plain() -> Options {
    Options::default()
}

/// The value of every picture of a plain set.
fn values(set: &crate::ImageSet) -> Vec<u8> {
    (0..set.len()).map(|image| set.image(image)[0]).collect()
}

const PARTS: [&str; 7] = [
    "labelled/cat/a.png",
    "labelled/cat/b.png",
    "labelled/dog/a.png",
    "unlabelled/2.png",
    "unlabelled/1.bmp",
    "test/dog/a.png",
    "test/dog/b.png",
];

#[test]
fn labelled_unlabelled_and_test_pictures() {
    let folder = Folder::new(&PARTS);
    folder.write("labelled/notes.txt", "where they are from");
    folder.write("unlabelled/.hidden.png", "");
    let set = folder.open(&plain());
    assert_eq!(set.train.classes, ["cat", "dog"]);
    // A BMP file counts as colour, so all parts have three channels.
    assert_eq!((set.train.shape.channels, set.test.shape.channels), (3, 3));
    assert_eq!(
        (values(&set.train), set.train.labels.clone()),
        (vec![0, 1, 2], Some(vec![0, 0, 1]))
    );
    // Dogs alone: a class without test pictures is allowed here.
    assert_eq!((values(&set.test), set.test.labels.clone()), (vec![5, 6], Some(vec![1, 1])));
    let unlabelled = set.unlabelled.unwrap();
    assert_eq!((values(&unlabelled.images), unlabelled.images.labels), (vec![4, 3], None));
    assert_eq!((unlabelled.clients.len(), unlabelled.client_names.len()), (0, 0));
    let notes = Skipped { path: folder.at("labelled/notes.txt"), reason: Reason::NotAPicture };
    assert_eq!(set.skipped, [notes]);
    assert_eq!(set.normalisation, crate::Normalisation::measure(&set.train));
}

#[test]
fn one_folder_per_client_in_natural_order() {
    let folder = Folder::new(&[
        "labelled/cat/a.png",
        "labelled/cat/b.png",
        "unlabelled/site 10/a.png",
        "unlabelled/site 9/a.png",
        "unlabelled/site 9/b.png",
        "val/cat/a.png",
    ]);
    let unlabelled = folder.open(&plain()).unlabelled.unwrap();
    assert_eq!(unlabelled.client_names, ["site 9", "site 10"]);
    assert_eq!(unlabelled.clients, [vec![0, 1], vec![2]]);
    assert_eq!(values(&unlabelled.images), [3, 4, 2]);
    folder.picture("unlabelled/stray.png", 4, 4, 0);
    assert!(folder.failure(&plain()).contains("stray.png: file: expected only folders of clients"));
}

#[test]
fn a_share_of_the_labelled_pictures_is_the_test_part() {
    let mut names: Vec<String> =
        (0..10).map(|number| format!("labelled/cat/{number}.png")).collect();
    names.extend(["labelled/dog/a.png".to_owned(), "unlabelled/a.png".to_owned()]);
    let folder = Folder::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let set = folder.open(&share(0.3));
    assert_eq!((set.train.class_counts(), set.test.class_counts()), (vec![7, 1], vec![3, 0]));
    assert!(values(&set.test).iter().all(|value| !values(&set.train).contains(value)));
    let why = folder.failure(&plain());
    assert!(why.contains("test part") && why.contains("set data.test_share"), "{why}");
    folder.picture("test/cat/a.png", 4, 4, 0);
    assert!(folder.failure(&share(0.3)).contains("test has one: remove the key"));
    // The same for class folders in `train`.
    let folder = Folder::new(&["train/cat/a.png", "train/cat/b.png"]);
    assert_eq!(folder.open(&share(0.1)).test.len(), 1);
}

#[test]
fn what_is_missing_is_found_before_any_picture_is_opened() {
    // Not pictures: opening them would be an error that names them.
    let folder = Folder::new(&[]);
    folder.write("labelled/cat/a.png", "no picture");
    let why = folder.failure(&plain());
    assert!(why.starts_with("2 problems:\n  "), "{why}");
    assert!(why.contains("unlabelled: folder: expected the clients' pictures"), "{why}");
    assert!(why.contains("rename `labelled` to `train`"), "{why}");
    assert!(why.contains("expected a folder `test` or `val` with one folder per class"), "{why}");
    folder.write("unlabelled/notes.txt", "no picture");
    folder.write("test/cow/a.png", "no picture");
    let why = folder.failure(&plain());
    assert!(why.contains("unlabelled: folder: expected the clients' pictures"), "{why}");
    assert!(why.contains("expected the classes of `labelled`, found an additional class `cow`"));
    let folder = Folder::new(&[]);
    folder.write("unlabelled/a.png", "no picture");
    assert!(folder.failure(&plain()).contains("labelled: "));
    folder.write("labelled/a.png", "no picture");
    assert!(folder.failure(&plain()).contains("found pictures without a class"));
    folder.write("train/cat/a.png", "no picture");
    assert!(folder.failure(&plain()).contains("one data set"), "{}", folder.failure(&plain()));
}

#[test]
fn unreadable_pictures_are_all_named_or_all_left_out() {
    let folder = Folder::new(&PARTS);
    folder.write("labelled/cat/text.jpg", "a text");
    folder.picture("unlabelled/dot.png", 1, 1, 0);
    let whole = fs::read(folder.at("test/dog/a.png")).unwrap();
    folder.write("test/dog/a.png", &whole[..whole.len() / 2]);
    let why = folder.failure(&plain());
    let expected = "3 pictures cannot be read (1 too small, 1 truncated, 1 unreadable): correct or \
                    remove them, or leave them out (set data.unreadable = \"skip\" or --skip-unreadable)\n  ";
    assert!(why.starts_with(expected), "{why}");
    assert!(why.contains("dot.png: too small: expected at least 2 pixels per side, found 1 x 1"));
    let skip = Options { skip_unreadable: true, ..plain() };
    let set = folder.open(&skip);
    assert_eq!((values(&set.train), values(&set.test)), (vec![0, 1, 2], vec![6]));
    assert_eq!(values(&set.unlabelled.unwrap().images), [4, 3]);
    let left_out: Vec<_> = set.skipped.iter().map(|file| file.reason.group()).collect();
    assert_eq!(left_out, ["unreadable", "truncated", "too small"]);
    // A class of which nothing is left cannot be learnt.
    folder.write("labelled/dog/a.png", "a text");
    assert!(folder.failure(&skip).contains("class 1 (dog): expected at least one image"));
}

#[test]
fn a_client_of_which_nothing_is_left_is_named() {
    let folder = Folder::new(&["labelled/cat/a.png", "test/cat/a.png", "unlabelled/north/a.png"]);
    folder.write("unlabelled/south/a.png", "a text");
    let skip = Options { skip_unreadable: true, ..plain() };
    assert!(folder.failure(&skip).contains("client south: expected at least one readable"));
    folder.picture("unlabelled/south/b.png", 4, 4, 9);
    assert_eq!(folder.open(&skip).unlabelled.unwrap().clients, [[0], [1]]);
}

#[test]
fn one_colour_picture_makes_all_parts_coloured() {
    let folder = Folder::new(&PARTS);
    fs::remove_file(folder.at("unlabelled/1.bmp")).unwrap();
    assert_eq!(folder.open(&plain()).train.shape.channels, 1);
    RgbImage::from_pixel(4, 4, Rgb([1, 2, 3])).save(folder.at("test/dog/c.png")).unwrap();
    let set = folder.open(&plain());
    assert_eq!(set.unlabelled.unwrap().images.image(0), [3; 48]);
    assert_eq!(set.test.image(2), [1, 2, 3].repeat(16));
}

#[test]
fn parts_of_other_sizes_need_a_size() {
    let folder = Folder::new(&PARTS);
    folder.picture("unlabelled/1.bmp", 8, 8, 0);
    folder.picture("unlabelled/2.png", 8, 8, 0);
    let why = folder.failure(&plain());
    assert!(why.contains("unlabelled part: expected colour images of 4 x 4 pixels"), "{why}");
    let sized = Options { size: Some(2), ..plain() };
    assert_eq!(folder.open(&sized).unlabelled.unwrap().images.len(), 2);
}

const TABLE: [&str; 6] = ["x/a.png", "x/b.png", "x/c.png", "x/d.png", "x/e.png", "x/f.png"];

fn table(content: &str) -> Result<DataSet, String> {
    let folder = Folder::new(&TABLE);
    folder.write("pictures.csv", content);
    let place = folder.0.path().display().to_string();
    open(&folder.at("pictures.csv"), &plain())
        .map_err(|error| error.to_string().replace(&format!("{place}/"), ""))
}

#[test]
fn a_table_lists_pictures() {
    let set = table(
        "split,path,client,label,remark\n\
         ,x/a.png,,dog,\ntrain,x/b.png,,cat,good\n,x/c.png,site 10,,\n,x/d.png,site 9,,\n\
         ,./x/d.png,site 9\ntest,x/e.png,,dog\n",
    )
    .unwrap();
    assert_eq!(
        (values(&set.train), set.train.classes),
        (vec![0, 1], vec!["cat".into(), "dog".into()])
    );
    assert_eq!(set.train.labels, Some(vec![1, 0]));
    assert_eq!((values(&set.test), set.test.labels), (vec![4], Some(vec![1])));
    let unlabelled = set.unlabelled.unwrap();
    assert_eq!(
        (unlabelled.client_names, unlabelled.clients),
        (vec!["site 9".into(), "site 10".into()], vec![vec![1], vec![0]])
    );
    assert_eq!(values(&unlabelled.images), [2, 3]);
    // Labels for all: server and clients share the pictures, as in `train/CLASS`.
    let set = table("path,label,split\nx/a.png,cat\nx/b.png,cat,test\n").unwrap();
    assert!(set.unlabelled.is_none());
    let set = table("path,label,split\nx/a.png,cat\nx/b.png,cat,test\nx/c.png\n").unwrap();
    assert_eq!((set.unlabelled.unwrap().clients.len(), set.test.len()), (0, 1));
}

#[test]
fn all_bad_lines_of_a_table_are_named() {
    let why = table(
        "path,label,client,split\nx/a.png,cat\nx/absent.png,cat\nx/b.png,cat,,tset\n\
         x/c.png,,,test\nx/a.png,dog\n,cat\nx/d.png,cow,,test\nx/e.png,,north\nx/f.png\n",
    )
    .unwrap_err();
    assert_eq!(
        why,
        "pictures.csv: 7 lines cannot be used\n  \
         line 3: path: no file `x/absent.png`\n  \
         line 4: split: expected `train` or `test`, found `tset`\n  \
         line 5: split `test`: expected a label\n  \
         line 6: label: `x/a.png` is on line 2 too with `cat`, here `dog`\n  \
         line 7: path: expected a file, found none\n  \
         line 8: label `cow`: expected the label of a training picture\n  \
         line 10: client: expected one, as for the other pictures without a label, found none"
    );
    let many = format!("path,label\n{}", "x/absent.png,cat\n".repeat(12));
    let why = table(&many).unwrap_err();
    assert!(
        why.starts_with("pictures.csv: 12 lines") && why.ends_with("\n  ... and 2 more"),
        "{why}"
    );
    let why = table("file,label\nx/a.png,cat\n").unwrap_err();
    assert!(why.contains("line 1: expected the columns path,label,client,split"), "{why}");
    let why = table("path,label\nx/a.png,cat\n").unwrap_err();
    assert!(why.contains("lines with the split `test` in pictures.csv"), "{why}");
    let why = table("path,label\n").unwrap_err();
    assert!(why.contains("label: expected training pictures with a label, found none"), "{why}");
}

#[test]
fn a_table_may_be_given_by_its_name_alone() {
    let folder = Folder::new(&TABLE);
    folder.write("p.CSV", "path,label,split\nx/a.png,cat\nx/b.png,cat,test\n");
    assert!(crate::formats::is_data_set(&folder.at("p.CSV")));
    assert!(!crate::formats::is_data_set(Path::new("absent.csv")));
}

#[test]
fn formats_that_are_not_supported_are_named() {
    let folder = Folder::new(&PARTS);
    folder.write("unlabelled/photo.nef", "not looked at");
    folder.write("unlabelled/IMG_1.HEIC", "not looked at");
    let set = folder.open(&plain());
    assert_eq!(set.unlabelled.unwrap().images.len(), 2);
    let named: Vec<String> = set.skipped.iter().map(|file| file.reason.to_string()).collect();
    let advice = "is not supported: convert it to PNG, JPEG, TIFF, BMP, WebP, GIF or PNM";
    assert_eq!(named, [format!("HEIC {advice}"), format!("camera raw {advice}")]);
    // Under a supported name, the content decides.
    folder.write("unlabelled/3.jpg", b"\0\0\0\x18ftypheic\0\0\0\0");
    folder.write("unlabelled/4.tif", b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0");
    let why = folder.failure(&plain());
    assert!(why.starts_with("2 pictures cannot be read (2 unreadable)"), "{why}");
    for (file, format) in [("3.jpg", "HEIC"), ("4.tif", "BigTIFF")] {
        let what = format!(
            "{file}: unreadable: expected a PNG, JPEG, TIFF, BMP, WebP, GIF or PNM picture, found a {format} \
             picture, which is not supported: convert it"
        );
        assert!(why.contains(&what), "{why}");
    }
    // Nothing else there.
    let folder = Folder::new(&["labelled/cat/a.png", "test/cat/a.png"]);
    folder.write("unlabelled/scan.jxl", "");
    folder.write("labelled/dog/a.heic", "");
    let why = folder.failure(&plain());
    assert!(why.contains(
        "dog: folder: expected PNG, JPEG, TIFF, BMP, WebP, GIF or PNM pictures, found only HEIC"
    ));
    assert!(why.ends_with("found only JPEG XL pictures: convert them"), "{why}");
}

/// The names of pictures may be any bytes; those of classes and clients are written to records.
#[cfg(unix)]
#[test]
fn names_of_classes_and_clients_are_text() {
    use std::os::unix::ffi::OsStrExt;
    let name = |bytes| std::ffi::OsStr::from_bytes(bytes);
    let folder = Folder::new(&["labelled/cat/a.png", "test/cat/a.png", "unlabelled/north/a.png"]);
    let picture = fs::read(folder.at("labelled/cat/a.png")).unwrap();
    fs::write(folder.at("labelled/cat").join(name(b"caf\xe9.png")), &picture).unwrap();
    assert_eq!(folder.open(&plain()).train.len(), 2);
    for part in ["labelled", "unlabelled"] {
        let bad = folder.at(part).join(name(b"sm\xf8rrebr\xf8d"));
        fs::create_dir(&bad).unwrap();
        fs::write(bad.join("a.png"), &picture).unwrap();
        let why = folder.failure(&plain());
        assert!(
            why.contains(&format!("{part}/sm\\xF8rrebr\\xF8d: the path is not UTF-8")),
            "{why}"
        );
    }
}

#[test]
fn every_picture_is_counted_once() {
    let folder = Folder::new(&PARTS);
    folder.write("unlabelled/text.jpg", "a text");
    let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = calls.clone();
    let options = Options {
        skip_unreadable: true,
        cache: Some(crate::Cache::new(folder.at("cache"))),
        progress: crate::Progress::new(move |done, all| log.lock().unwrap().push((done, all))),
        ..plain()
    };
    // Decoded, and from the cache.
    for time in 0..2 {
        drop(folder.open(&options));
        let mut calls = std::mem::take(&mut *calls.lock().unwrap());
        calls.sort_unstable();
        assert_eq!(calls.last(), Some(&(8, 8)), "{calls:?}");
        assert_eq!(calls.len(), [8, 3][time], "{calls:?}");
    }
}

#[test]
fn one_size_is_noticed() {
    let folder = Folder::new(&PARTS);
    let one_size = |name: &str| crate::formats::has_one_size(&folder.at(name)).unwrap();
    assert!(one_size("") && one_size("unlabelled") && one_size("unlabelled/2.png"));
    folder.picture("unlabelled/3.png", 8, 8, 0);
    assert!(!one_size("") && !one_size("unlabelled") && one_size("labelled"));
    folder.picture("wide/1.png", 8, 6, 0);
    assert!(!one_size("wide") && !one_size("wide/1.png"));
}
