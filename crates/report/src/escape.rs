//! Escaping text for other formats.

/// A CSV file.
pub(crate) fn csv(
    head: impl IntoIterator<Item: Into<String>>,
    lines: impl Iterator<Item = Vec<String>>,
) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let head = head.into_iter().map(Into::into).collect();
    for line in std::iter::once(head).chain(lines) {
        // Writing to memory cannot fail.
        let _ = writer.write_record(line);
    }
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

/// A name in a CSV file for people, who open it in a spreadsheet: one that begins like a formula gets an apostrophe
/// before it. Readers of such files remove it (`fedanchor_data::tables::from_cell`).
pub(crate) fn csv_name(name: &str) -> String {
    let formula = ['=', '+', '-', '@', '\t', '\r', '\n'];
    let prefix = if name.trim_start_matches('\'').starts_with(formula) { "'" } else { "" };
    format!("{prefix}{name}")
}

/// Text in HTML or XML, also within an attribute. Characters that XML cannot hold are replaced.
pub(crate) fn markup(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            control if control.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A path as part of the query of a URL.
pub(crate) fn url(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for &byte in path.as_bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                escaped.push(byte.into());
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

/// Text in a Markdown table cell or list. Underscores are not escaped: within a word they have no
/// meaning, and keys contain many.
pub(crate) fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '\\' | '|' | '*' | '`' | '<') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    one_line(&escaped)
}

/// Text in a LaTeX table cell.
pub(crate) fn latex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => escaped.extend(['\\', letter]),
            '\\' => escaped.push_str("\\textbackslash{}"),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            '<' => escaped.push_str("\\textless{}"),
            '>' => escaped.push_str("\\textgreater{}"),
            // At the start of a row it would be an argument of the preceding `\\`.
            '[' => escaped.push_str("{[}"),
            '±' => escaped.push_str("$\\pm$"),
            '−' => escaped.push_str("$-$"),
            other => escaped.push(other),
        }
    }
    one_line(&escaped)
}

/// A `tabular` for the package `booktabs`, with numbers to the right; each row has a comment.
pub(crate) fn latex_table<'a>(
    titles: &[&str],
    is_right: impl Fn(usize) -> bool,
    rows: impl Iterator<Item = (Vec<&'a str>, String)>,
) -> String {
    let line = |cells: &[&str]| -> String {
        let cells: Vec<String> = cells.iter().map(|cell| latex(cell)).collect();
        cells.join(" & ") + " \\\\"
    };
    let columns = 0..titles.len();
    let kinds: String = columns.map(|column| if is_right(column) { 'r' } else { 'l' }).collect();
    let head = line(titles);
    let rows: String = rows.map(|(cells, comment)| line(&cells) + &comment + "\n").collect();
    format!(
        "\\begin{{tabular}}{{{kinds}}}\n\\toprule\n{head}\n\\midrule\n{rows}\\bottomrule\n\\end{{tabular}}\n"
    )
}

/// A line per row, with columns two spaces apart.
pub(crate) fn aligned(
    rows: &[impl AsRef<[String]>],
    is_right: impl Fn(usize) -> bool,
) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max();
    let widths: Vec<usize> =
        (0..rows[0].as_ref().len()).map(|column| width(column).unwrap_or_default()).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.as_ref().iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            let cell = one_line(cell);
            if is_right(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect()
}

/// Text that must stay on one line: in plain text, or after a comment sign.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_only_where_needed() {
        let cells = ["LDA 0.1", "a=1, b=2", "the \"small\" one", "two\nlines"].map(str::to_owned);
        let line = "LDA 0.1,\"a=1, b=2\",\"the \"\"small\"\" one\",\"two\nlines\"\n";
        assert_eq!(csv(cells, std::iter::empty()), line);
    }

    #[test]
    fn a_name_is_no_formula() {
        for (name, cell) in
            [("=1+1", "'=1+1"), ("-a,b", "'-a,b"), ("'@a", "''@a"), ("'t", "'t"), ("a=b", "a=b")]
        {
            assert_eq!(csv_name(name), cell);
        }
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(markup("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
        assert_eq!(markup("a\u{1b}[31m\u{7}b\nc"), "a\u{fffd}[31m\u{fffd}b c");
    }

    #[test]
    fn markdown_escapes_its_markup() {
        assert_eq!(markdown(r"a|b*c\d"), r"a\|b\*c\\d");
        assert_eq!(markdown("server_mixup=true"), "server_mixup=true");
        assert_eq!(markdown("two\nlines"), "two lines");
    }

    #[test]
    fn latex_escapes_every_special_character() {
        assert_eq!(latex("a_b & 5% of $3 #1 {x}"), r"a\_b \& 5\% of \$3 \#1 \{x\}");
        assert_eq!(latex(r"~^\"), r"\textasciitilde{}\textasciicircum{}\textbackslash{}");
        assert_eq!(latex("<[x]>"), r"\textless{}{[}x]\textgreater{}");
        assert_eq!(latex("80.00 ± 2.00"), r"80.00 $\pm$ 2.00");
        assert_eq!(latex("−0.40"), "$-$0.40");
    }
}
