//! The order of names with numbers in them.

use std::cmp::Ordering;

/// Compares names as people do: `client 9` before `client 10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.chars().next(), right.chars().next()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let ((x, after_x), (y, after_y)) = (number(left), number(right));
            (left, right) = (after_x, after_y);
            x.len().cmp(&y.len()).then(x.cmp(y))
        } else {
            (left, right) = (&left[x.len_utf8()..], &right[y.len_utf8()..]);
            x.cmp(&y)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then(a.cmp(b))
}

/// The number a text begins with, without leading zeros, and what follows.
fn number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].trim_start_matches('0'), &text[end..])
}

#[cfg(test)]
mod tests {
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
}
