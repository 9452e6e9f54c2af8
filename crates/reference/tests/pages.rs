//! The committed pages say what the code says.

#![allow(clippy::unwrap_used)]

use fedanchor_reference::{COMMAND, pages};

#[test]
fn the_references_are_those_of_the_code() {
    for page in pages().unwrap() {
        let lines = page.found.lines().zip(page.expected.lines());
        let first = lines.enumerate().find(|(_, (found, expected))| found != expected);
        let (number, (found, expected)) = first.unwrap_or_default();
        assert!(
            page.found == page.expected,
            "{} differs from the code in line {}: run `{COMMAND}` and commit the page\n  page: {found}\n  code: {expected}",
            page.path.display(),
            number + 1,
        );
    }
}

#[test]
fn every_file_of_a_run_folder_is_described() {
    let pages = pages().unwrap();
    let page = pages.iter().find(|page| page.path.ends_with("docs/run-folder.md")).unwrap();
    for name in fedanchor_record::files::ALL {
        assert!(page.found.contains(&format!("| `{name}` |")), "docs/run-folder.md lacks {name}");
    }
}
