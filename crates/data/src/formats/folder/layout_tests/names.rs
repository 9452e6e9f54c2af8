//! Which folders are clients and classes, and how they may be called.

use super::*;

#[test]
fn all_pictures_below_the_folder_of_a_client_are_the_clients() {
    let folder = Folder::new(&[
        "labelled/cat/a.png",
        "test/cat/a.png",
        "unlabelled/2024/january/3.png",
        "unlabelled/2024/january/late/1.png",
        "unlabelled/2024/b.png",
        "unlabelled/2025/june/a.png",
    ]);
    folder.write("unlabelled/2024/january/notes.txt", "no picture");
    folder.write("unlabelled/2024/.thumbnails/a.png", "no picture");
    let set = folder.open(&plain());
    assert_eq!(set.skipped.len(), 1);
    let unlabelled = set.unlabelled.unwrap();
    assert_eq!(unlabelled.client_names, ["2024", "2025"]);
    assert_eq!(unlabelled.clients, [vec![0, 1, 2], vec![3]]);
    assert_eq!(values(&unlabelled.images), [4, 2, 3, 5]);
    // Only there: in a class folder, a folder is a mistake. It is named once.
    folder.picture("labelled/dog/young/a.png", 4, 4, 0);
    let why = folder.failure(&plain());
    assert!(why.ends_with(
        "labelled/dog/young: path: expected pictures and no folder inside this folder, found a folder"
    ));
    assert!(!why.contains("problems"), "{why}");
}

#[test]
fn folders_may_have_american_names() {
    let names = ["labeled/cat/a.png", "unlabeled/north/a.png", "test/cat/a.png"];
    let folder = Folder::new(&names);
    let set = folder.open(&plain());
    assert_eq!((values(&set.train), set.unlabelled.unwrap().client_names.len()), (vec![0], 1));
    folder.picture("test/cow/a.png", 4, 4, 0);
    let why = folder.failure(&plain());
    assert!(why.contains("expected the classes of `labeled`, found an additional"), "{why}");
    fs::remove_dir_all(folder.at("test/cow")).unwrap();
    folder.picture("labelled/cat/b.png", 4, 4, 0);
    let why = folder.failure(&plain());
    assert!(
        why.ends_with(
            ": folders: expected one of `labelled` and `labeled`, found both: move the pictures into one"
        ),
        "{why}"
    );
    // What is missing is named in the same spelling.
    let why = Folder::new(&["labeled/cat/a.png"]).failure(&plain());
    assert!(why.contains("unlabeled: folder: ") && why.contains("rename `labeled`"), "{why}");
    let why = Folder::new(&["unlabeled/a.png", "test/cat/a.png"]).failure(&plain());
    assert!(why.contains("/labeled: "), "{why}");
}

#[test]
fn classes_that_look_the_same_are_named() {
    let folder = Folder::new(&["labelled/Caf\u{e9}/a.png", "unlabelled/a.png", "test/cat/a.png"]);
    folder.picture("labelled/Cat/a.png", 4, 4, 0);
    let why = folder.failure(&plain());
    let expected = "test: test part: expected the classes of `labelled`, found an additional class `cat`, which \
                    differs from `Cat` only in upper and lower case: rename one of them";
    assert!(why.ends_with(expected), "{why}");
    fs::rename(folder.at("test/cat"), folder.at("test/Cat")).unwrap();
    // The same name to a person, and another one to a computer.
    folder.picture("labelled/Cafe\u{301}/a.png", 4, 4, 0);
    let why = folder.failure(&plain());
    assert!(
        why.contains("labelled: folders: expected one folder per class, found `Cafe\u{301}` and")
    );
    assert!(
        why.ends_with("writes accented letters (NFC or NFD): move the pictures into one"),
        "{why}"
    );
    // Letters have classes that differ in case.
    let letters = Folder::new(&["train/a/1.png", "train/A/1.png", "test/a/1.png", "test/A/1.png"]);
    assert_eq!(letters.open(&plain()).train.classes, ["A", "a"]);
    // For all classes, what is missing is only named if nothing looks like it.
    let folder = Folder::new(&["train/Cat/1.png", "test/cat/1.png"]);
    assert!(folder.failure(&plain()).ends_with("rename one of them"));
}
