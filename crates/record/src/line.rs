//! Checksums of the lines of `rounds.jsonl` and `timings.jsonl`.
//!
//! Every line ends in a key `checksum` that covers the line itself and the checksum of the line before
//! it: a changed digit, a missing line and two swapped lines are all noticed. Readers that do not know the key
//! ignore it, and lines of earlier versions without it are accepted.

const KEY: &str = ",\"checksum\":\"";
/// Hexadecimal digits: 64 bits suffice against accidents, the only purpose.
const DIGITS: usize = 16;

/// The checksums of a file's lines, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checksums {
    last: String,
}

impl Checksums {
    /// Those of a file that ends in this line, damaged or not.
    pub fn after(line: &str) -> Self {
        Self { last: split(line).map_or_else(String::new, |(_, checksum)| checksum.to_owned()) }
    }

    /// Adds the checksum to a JSON object, which must have a key.
    pub fn seal(&mut self, json: &str) -> String {
        self.last = checksum(&self.last, json);
        let open = json.strip_suffix('}').unwrap_or(json);
        format!("{open}{KEY}{}\"}}", self.last)
    }

    /// Whether a line is intact and follows the line before it. A line without a checksum is
    /// accepted before the first line with one.
    pub fn accepts(&mut self, line: &str) -> bool {
        let Some((open, found)) = split(line) else { return self.last.is_empty() };
        self.last = checksum(&self.last, &format!("{open}}}"));
        self.last == found
    }
}

/// The problem if an unfinished run has these numbers of lines in `timings.jsonl` and `rounds.jsonl`. A run that was
/// killed between the two lacks the timing of its last round.
pub fn missing_timings(timings: usize, rounds: usize) -> Option<String> {
    (timings + 1 < rounds).then(|| {
        format!(
            "has {timings} of {rounds} lines: the others are missing, no result depends on them"
        )
    })
}

/// The object without its checksum and closing brace, and the checksum.
fn split(line: &str) -> Option<(&str, &str)> {
    let (open, rest) = line.rsplit_once(KEY)?;
    Some((open, rest.strip_suffix("\"}")?))
}

fn checksum(previous: &str, json: &str) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(previous.as_bytes());
    hash.update(json.as_bytes());
    hash.finalize().to_hex()[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<String> {
        let mut checksums = Checksums::default();
        (0..4).map(|round| checksums.seal(&format!("{{\"round\":{round},\"x\":70.9}}"))).collect()
    }

    #[test]
    fn the_last_timing_alone_may_be_missing() {
        let missing = |timings, rounds| missing_timings(timings, rounds).is_some();
        assert!(missing(0, 2) && missing(3, 5));
        assert!(!missing(0, 1) && !missing(4, 5) && !missing(5, 5));
    }

    fn accepted(lines: &[String]) -> usize {
        let mut checksums = Checksums::default();
        lines.iter().take_while(|line| checksums.accepts(line)).count()
    }

    #[test]
    fn every_change_is_noticed() {
        let whole = lines();
        assert_eq!(accepted(&whole), 4);
        assert!(whole[0].starts_with("{\"round\":0,\"x\":70.9,\"checksum\":\""), "{}", whole[0]);
        assert!(serde_json::from_str::<serde_json::Value>(&whole[2]).is_ok());
        // Any single character of any line.
        for line in 0..4 {
            for at in 0..whole[line].len() {
                let mut changed = whole.clone();
                let new = if &whole[line][at..=at] == "7" { "8" } else { "7" };
                changed[line].replace_range(at..=at, new);
                // A first line whose key is damaged looks like a line of an older version; then the
                // second does not follow it.
                let noticed = accepted(&changed);
                assert!(noticed <= line.max(1), "line {line}, character {at}: {noticed}");
            }
        }
        let mut swapped = whole.clone();
        swapped.swap(1, 2);
        assert_eq!(accepted(&swapped), 1);
        let mut missing = whole;
        missing.remove(1);
        assert_eq!(accepted(&missing), 1);
    }

    #[test]
    fn older_lines_have_none_and_stay_readable() {
        let old = ["{\"round\":0}".to_owned(), "{\"round\":1}".to_owned()];
        assert_eq!(accepted(&old), 2);
        // A run of an older version that was resumed: from then on every line has one.
        let mut checksums = Checksums::default();
        assert!(checksums.accepts(&old[0]));
        let sealed = checksums.seal("{\"round\":1}");
        assert_eq!(accepted(&[old[0].clone(), sealed.clone()]), 2);
        assert_eq!(accepted(&[sealed, old[1].clone()]), 1);
    }
}
