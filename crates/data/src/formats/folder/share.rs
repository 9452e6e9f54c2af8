//! A test part drawn from the labelled pictures of a data set without one.
//!
//! The draw has its own stream, which no seed changes: no experiment ever
//! trains on these pictures, and all experiments on the data set are tested on the same ones.

use super::listing::{Listing, Part};
use crate::formats::Options;
use crate::stream::SERVER;
use crate::{DataError, Purpose, Stream};
use rand::seq::SliceRandom;

impl Listing {
    /// Moves the share of the options of every class to the test part: at least one picture of those classes that
    /// have two or more, and never the last one. Without a share, the problem names the alternatives.
    pub fn test_from_share(&mut self, options: &Options, otherwise: &str) {
        let root = self.root.clone();
        let Some(share) = options.test_share else {
            let expected = format!(
                "{otherwise}, or a share of the labelled pictures (set data.test_share, for example to 0.2)"
            );
            return self.problem(&root, "test part", &expected, "none of them");
        };
        if !(share > 0.0 && share < 1.0) {
            let problem = format!("data.test_share must be between 0 and 1, got {share}");
            return self.problems.push(DataError::Unusable(problem));
        }
        let Part { files, labels, .. } = std::mem::replace(&mut self.train, Part::labelled());
        let labels = labels.unwrap_or_default();
        let stream = Stream::new(0, Purpose::TestShare, 0, SERVER);
        let mut tested = vec![false; files.len()];
        for class in 0..self.classes.len() {
            let mut members: Vec<usize> =
                (0..files.len()).filter(|&file| usize::from(labels[file]) == class).collect();
            members.shuffle(&mut stream.at(class as u64));
            let max = members.len().saturating_sub(1);
            let count = ((members.len() as f64 * share).round() as usize).max(1).min(max);
            members[..count].iter().for_each(|&file| tested[file] = true);
        }
        self.test = Part::labelled();
        for ((file, label), tested) in files.into_iter().zip(labels).zip(tested) {
            let part = if tested { &mut self.test } else { &mut self.train };
            part.add([file], label);
        }
        if self.test.files.is_empty() && !self.train.files.is_empty() {
            let expected = "a class with two or more labelled pictures, to test on one of them";
            self.problem(&root, "test part", expected, "none");
        }
    }
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
}
