//! A test part drawn from the labelled pictures of a data set that has none.
//!
//! The draw has a stream of its own that no seed changes: whatever an experiment does, it never
//! trains on these pictures, and all experiments on the data set are tested on the same ones.

use super::listing::{Listing, Part};
use crate::formats::Options;
use crate::stream::SERVER;
use crate::{DataError, Purpose, Stream};
use rand::seq::SliceRandom;

impl Listing {
    /// Without a test part: the share of the labelled pictures, or a problem that says what else is
    /// possible.
    pub fn test_from_share(&mut self, options: &Options, otherwise: &str) {
        match options.test_share {
            Some(share) => draw(self, share),
            None => {
                let expected = format!(
                    "{otherwise}, or a share of the labelled pictures (set data.test_share, for \
                     example to 0.2)"
                );
                let none = "none of them";
                self.problems.push(DataError::malformed(&self.root, "test part", expected, none));
            }
        }
    }
}

/// Moves this share of every class to the test part: at least one picture of those classes that
/// have two or more, and never the last one.
fn draw(listing: &mut Listing, share: f64) {
    if !(share > 0.0 && share < 1.0) {
        let problem = format!("data.test_share must be between 0 and 1, found {share}");
        return listing.problems.push(DataError::Unusable(problem));
    }
    let labels = listing.train.labels.take().unwrap_or_default();
    let files = std::mem::take(&mut listing.train.files);
    let stream = Stream::new(0, Purpose::TestShare, 0, SERVER);
    let mut tested = vec![false; files.len()];
    for class in 0..listing.classes.len() {
        let mut members: Vec<usize> =
            (0..files.len()).filter(|&file| usize::from(labels[file]) == class).collect();
        members.shuffle(&mut stream.at(class as u64));
        let most = members.len().saturating_sub(1);
        let count = ((members.len() as f64 * share).round() as usize).max(1).min(most);
        members[..count].iter().for_each(|&file| tested[file] = true);
    }
    let (mut train, mut test) = (empty(), empty());
    for ((file, label), tested) in files.into_iter().zip(labels).zip(tested) {
        let part = if tested { &mut test } else { &mut train };
        part.files.push(file);
        part.labels.get_or_insert_default().push(label);
    }
    if test.files.is_empty() && !train.files.is_empty() {
        let root = listing.root.clone();
        let expected = "a class with two or more labelled pictures, to test on one of them";
        listing.problems.push(DataError::malformed(root, "test part", expected, "none"));
    }
    (listing.train, listing.test) = (train, test);
}

fn empty() -> Part {
    Part { files: Vec::new(), labels: Some(Vec::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        listing.train = Part { files, labels: Some(labels) };
        listing
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
}
