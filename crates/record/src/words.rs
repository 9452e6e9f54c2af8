//! Untrusted text in records, logs and on terminals: names of files and classes, and messages of other machines.

/// The maximum length of a message of another machine, in characters.
const MAX_MESSAGE: usize = 300;

/// Whether a character is invisible but has an effect: it moves the cursor, retitles the window, or changes the
/// direction of writing.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Text in which every hidden character is replaced by U+FFFD.
pub fn printable(text: &str) -> String {
    text.replace(is_hidden, "\u{fffd}")
}

/// The beginning of a message of another machine, printable.
pub fn excerpt(text: &str) -> String {
    printable(&text.chars().take(MAX_MESSAGE).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_replaced_and_long_words_cut() {
        let hostile = "a\u{1b}[2J\r\n\tb\u{9b}c\u{202e}d\u{2066}\u{feff}";
        let plain = "a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}\u{fffd}";
        assert_eq!((printable(hostile), excerpt(hostile)), (plain.to_owned(), plain.to_owned()));
        for hidden in ["\u{ad}", "\u{61c}", "\u{fff9}", "\u{e0041}"] {
            assert_eq!(printable(hidden), "\u{fffd}", "{hidden:?}");
        }
        assert_eq!(printable("Größe 大 é 100 %"), "Größe 大 é 100 %");
        let long = "é".repeat(MAX_MESSAGE + 1);
        assert_eq!(excerpt(&long), "é".repeat(MAX_MESSAGE));
        assert_eq!(printable(&long), long);
    }
}
