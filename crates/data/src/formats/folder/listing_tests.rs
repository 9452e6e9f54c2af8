//! Orders of names, and shares of the labelled pictures.

use super::*;

#[test]
fn numbers_are_compared_by_value() {
    let sorted = ["", "a", "a2", "a02", "a2b", "a10", "a10b1", "b", "b1.9", "b1.10", "é2"];
    let mut names = sorted;
    names.reverse();
    names.sort_by(|a, b| natural(a, b));
    // "a02" and "a2" are the same number: then the text decides.
    let expected = ["", "a", "a02", "a2", "a2b", "a10", "a10b1", "b", "b1.9", "b1.10", "é2"];
    assert_eq!(names, expected);
}

fn listing(counts: &[usize]) -> Listing {
    let mut listing = Listing::default();
    let (mut files, mut labels) = (Vec::new(), Vec::new());
    for (class, &count) in counts.iter().enumerate() {
        listing.classes.push(format!("c{class}"));
        for number in 0..count {
            files.push(format!("c{class}/{number}.png").into());
            labels.push(class as u16);
        }
    }
    listing.train = Part { files, labels: Some(labels), ..Part::default() };
    listing
}

fn draw(listing: &mut Listing, share: f64) {
    let options = Options { test_share: Some(share), ..Options::default() };
    listing.test_from_share(&options, "");
}

fn counts(part: &Part, classes: u16) -> Vec<usize> {
    let labels = part.labels.as_ref().unwrap();
    (0..classes).map(|class| labels.iter().filter(|&&label| label == class).count()).collect()
}

#[test]
fn every_class_gives_its_share_but_never_its_last_picture() {
    let mut parts = listing(&[100, 1, 2, 3]);
    draw(&mut parts, 0.2);
    assert_eq!(counts(&parts.test, 4), [20, 0, 1, 1]);
    assert_eq!(counts(&parts.train, 4), [80, 1, 1, 2]);
    assert!(parts.problems.is_empty());
    let mut all = [parts.train.files.clone(), parts.test.files.clone()].concat();
    all.sort();
    let mut expected = listing(&[100, 1, 2, 3]).train.files;
    expected.sort();
    assert_eq!(all, expected);
    let mut again = listing(&[100, 1, 2, 3]);
    draw(&mut again, 0.2);
    assert_eq!((again.test, again.train), (parts.test, parts.train));
    let mut most = listing(&[10]);
    draw(&mut most, 0.99);
    assert_eq!(counts(&most.test, 1), [9]);
}

#[test]
fn impossible_shares_are_problems() {
    for share in [0.0, 1.0, -0.1, f64::NAN] {
        let mut parts = listing(&[5]);
        draw(&mut parts, share);
        let problem = parts.problems[0].to_string();
        assert!(problem.starts_with("data.test_share must be between 0 and 1"), "{problem}");
    }
    let mut parts = listing(&[1, 1]);
    draw(&mut parts, 0.5);
    assert!(parts.problems[0].to_string().contains("two or more labelled pictures"));
}
