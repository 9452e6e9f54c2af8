//! Lists that read well as source, on a code host and in mdBook. Tables were rejected: a row is one line of source,
//! and with a sentence in it neither line nor table fits a screen.

/// The longest line.
const WIDTH: usize = 120;

/// An item of a list, with items below it, in lines that are not too long.
pub(crate) fn item(text: &str, below: &[String]) -> String {
    let mut lines = wrapped("- ", text);
    below.iter().for_each(|text| lines += &wrapped("  - ", text));
    lines
}

fn wrapped(start: &str, text: &str) -> String {
    let indent = " ".repeat(start.len());
    let (mut lines, mut line) = (String::new(), start.to_owned());
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let mut word = word.to_owned();
        // What would begin a list at the start of a line stays with the word before it.
        while let Some(next) = words.next_if(|next| begins_list(next)) {
            word = format!("{word} {next}");
        }
        let is_first = line == start || line == indent;
        if !is_first && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &format!("{line}\n");
            line.clone_from(&indent);
        } else if !is_first {
            line.push(' ');
        }
        line += &word;
    }
    lines + &line + "\n"
}

fn begins_list(word: &str) -> bool {
    let number = word.strip_suffix(['.', ')']);
    ["-", "+", "*"].contains(&word)
        || word.starts_with('#')
        || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// As code.
pub(crate) fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

/// Code that links can point at.
pub(crate) fn target(id: &str, text: &str) -> String {
    format!("<a id=\"{id}\"></a>{}", code(text))
}

/// A description, and the default that it ends in, as in "Batch size [default: 10]".
pub(crate) fn split_default(text: &str) -> (String, Option<String>) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let ending = text.strip_suffix(']').or_else(|| text.strip_suffix("]."));
    match ending.and_then(|text| text.rsplit_once(" [default: ")) {
        Some((meaning, default)) => (meaning.to_owned(), Some(default.to_owned())),
        None => (text, None),
    }
}

/// Ends a sentence that is followed by another.
pub(crate) fn sentence(text: &str) -> String {
    match text.ends_with(['.', ':']) || text.is_empty() {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_short_and_begin_no_list() {
        let text = item(&format!("{} - b", "a".repeat(117)), &["c".to_owned()]);
        assert_eq!(text, format!("- {} -\n  b\n  - c\n", "a".repeat(117)));
        let text = item(&"word ".repeat(60), &["word ".repeat(60)]);
        assert!(text.lines().count() == 6 && text.lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn a_default_is_taken_from_the_end() {
        let split = |text| split_default(text);
        assert_eq!(split("Size\n of it [default: 10]."), ("Size of it".into(), Some("10".into())));
        assert_eq!(split("Size [default: `a`]"), ("Size".into(), Some("`a`".into())));
        assert_eq!(split("Size, [0, 1]."), ("Size, [0, 1].".into(), None));
    }
}
