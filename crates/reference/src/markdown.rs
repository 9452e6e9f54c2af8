//! Tables that read well on a code host and in mdBook alike.

/// A table. Cells may have several lines.
pub(crate) fn table(heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(heading.iter().map(|&cell| cell.to_owned()).collect());
    text += &line(vec!["---".to_owned(); heading.len()]);
    for row in rows {
        text += &line(row.iter().map(|cell| escaped(cell)).collect());
    }
    text
}

/// A bar would end the cell, in code too, and so would a new line.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', "<br>")
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
    fn cells_stay_cells() {
        let found = table(&["a", "b"], [vec!["`x|y`".to_owned(), "one\ntwo".to_owned()]]);
        assert_eq!(found, "| a | b |\n| --- | --- |\n| `x\\|y` | one<br>two |\n");
    }

    #[test]
    fn a_default_is_taken_from_the_end() {
        let split = |text| split_default(text);
        assert_eq!(split("Size\n of it [default: 10]."), ("Size of it".into(), Some("10".into())));
        assert_eq!(split("Size [default: `a`]"), ("Size".into(), Some("`a`".into())));
        assert_eq!(split("Size, [0, 1]."), ("Size, [0, 1].".into(), None));
    }
}
