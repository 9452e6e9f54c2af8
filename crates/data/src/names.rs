//! Names of classes that look the same and are not.
//!
//! An accented letter may be one character (Unicode's form NFC) or a letter and a mark (NFD, as some programs for macOS
//! write them). A table of the usual letters of European languages, Vietnamese, Japanese and Korean is enough to find
//! them; a crate with the tables of all scripts was rejected for a message.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A mark, the letters before it, and what they become.
type Composed = (char, &'static str, &'static str);

const COMPOSED: [Composed; 19] = [
    ('\u{300}', "AEIOUaeiouÂâĂăÊêÔôƠơƯưYy", "ÀÈÌÒÙàèìòùẦầẰằỀềỒồỜờỪừỲỳ"),
    (
        '\u{301}',
        "AEIOUYaeiouyCcLlNnRrSsZzÂâĂăÊêÔôƠơƯưГКгкΑΕΗΙΟΥΩϊαεηιϋουω",
        "ÁÉÍÓÚÝáéíóúýĆćĹĺŃńŔŕŚśŹźẤấẮắẾếỐốỚớỨứЃЌѓќΆΈΉΊΌΎΏΐάέήίΰόύώ",
    ),
    ('\u{302}', "AEIOUaeiouCcGgHhJjSsWwYyẠạẸẹỌọ", "ÂÊÎÔÛâêîôûĈĉĜĝĤĥĴĵŜŝŴŵŶŷẬậỆệỘộ"),
    ('\u{303}', "ANOanoIiUuÂâĂăEeÊêÔôƠơƯưYy", "ÃÑÕãñõĨĩŨũẪẫẴẵẼẽỄễỖỗỠỡỮữỸỹ"),
    ('\u{304}', "AaEeIiOoUu", "ĀāĒēĪīŌōŪū"),
    ('\u{306}', "AaEeGgIiOoUuẠạУИиу", "ĂăĔĕĞğĬĭŎŏŬŭẶặЎЙйў"),
    ('\u{307}', "CcEeGgIZz", "ĊċĖėĠġİŻż"),
    ('\u{308}', "AEIOUaeiouyYЕІеіΙΥιυ", "ÄËÏÖÜäëïöüÿŸЁЇёїΪΫϊϋ"),
    ('\u{309}', "AaÂâĂăEeÊêIiOoÔôƠơUuƯưYy", "ẢảẨẩẲẳẺẻỂểỈỉỎỏỔổỞởỦủỬửỶỷ"),
    ('\u{30a}', "AaUu", "ÅåŮů"),
    ('\u{30b}', "OoUu", "ŐőŰű"),
    ('\u{30c}', "CcDdEeLlNnRrSsTtZz", "ČčĎďĚěĽľŇňŘřŠšŤťŽž"),
    ('\u{31b}', "OoUu", "ƠơƯư"),
    ('\u{323}', "AaEeIiOoƠơUuƯưYy", "ẠạẸẹỊịỌọỢợỤụỰựỴỵ"),
    ('\u{326}', "SsTt", "ȘșȚț"),
    ('\u{327}', "CcGgKkLlNnRrSsTt", "ÇçĢģĶķĻļŅņŖŗŞşŢţ"),
    ('\u{328}', "AaEeIiUu", "ĄąĘęĮįŲų"),
    (
        '\u{3099}',
        "かきくけこさしすせそたちつてとはひふへほうゝカキクケコサシスセソタチツテトハヒフヘホウワヰヱヲヽ",
        "がぎぐげござじずぜぞだぢづでどばびぶべぼゔゞガギグゲゴザジズゼゾダヂヅデドバビブベボヴヷヸヹヺヾ",
    ),
    ('\u{309a}', "はひふへほハヒフヘホ", "ぱぴぷぺぽパピプペポ"),
];

/// How two different names that look the same differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alike {
    /// In upper and lower case, which may be meant: a data set of letters has the classes `a` and `A`.
    Case,
    /// In characters that look the same, which nobody means.
    Form,
}

impl std::fmt::Display for Alike {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Case => "in upper and lower case",
            Self::Form => "in how Unicode writes accented letters (NFC or NFD)",
        })
    }
}

/// Whether two names look the same, and how they differ.
pub fn alike(one: &str, other: &str) -> Option<Alike> {
    let (one, other) = (&composed(one), &composed(other));
    match one == other {
        true => Some(Alike::Form),
        false => (one.to_lowercase() == other.to_lowercase()).then_some(Alike::Case),
    }
}

/// A name that looks like this one, and how they differ.
pub fn like<'a>(name: &str, others: &'a [String]) -> Option<(&'a str, Alike)> {
    let mut different = others.iter().filter(|other| *other != name);
    different.find_map(|other| Some((other.as_str(), alike(name, other)?)))
}

/// Those names that look like one before them, each with that one.
pub fn alike_among(names: &[String]) -> Vec<([&str; 2], Alike)> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    let mut found = Vec::new();
    for name in names {
        match seen.entry(composed(name).to_lowercase()) {
            Entry::Occupied(before) => {
                found.extend(alike(before.get(), name).map(|how| ([*before.get(), name], how)));
            }
            Entry::Vacant(vacant) => {
                vacant.insert(name);
            }
        }
    }
    found
}

/// A name with its marks joined to the letters before them.
fn composed(name: &str) -> String {
    let mut letters: Vec<char> = Vec::new();
    for letter in name.chars() {
        match letters.last().and_then(|&before| joined(before, letter)) {
            Some(one) => {
                letters.pop();
                letters.push(one);
            }
            None => letters.push(letter),
        }
    }
    letters.into_iter().collect()
}

fn joined(letter: char, mark: char) -> Option<char> {
    const LEADING: u32 = 0x1100;
    const VOWEL: u32 = 0x1161;
    const TRAILING: u32 = 0x11a7;
    const SYLLABLE: u32 = 0xac00;
    let (before, after) = (u32::from(letter), u32::from(mark));
    // Korean syllables are numbered by their leading consonant, vowel and trailing consonant.
    if (LEADING..LEADING + 19).contains(&before) && (VOWEL..VOWEL + 21).contains(&after) {
        return char::from_u32(SYLLABLE + ((before - LEADING) * 21 + after - VOWEL) * 28);
    }
    let lacks_trailing =
        (SYLLABLE..0xd7a4).contains(&before) && (before - SYLLABLE).is_multiple_of(28);
    if lacks_trailing && (TRAILING + 1..TRAILING + 28).contains(&after) {
        return char::from_u32(before + after - TRAILING);
    }
    let (_, letters, whole) = COMPOSED.iter().find(|(known, ..)| *known == mark)?;
    letters.chars().zip(whole.chars()).find(|(known, _)| *known == letter).map(|(_, whole)| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_of_the_table_has_one_result() {
        for (mark, letters, whole) in COMPOSED {
            assert_eq!(letters.chars().count(), whole.chars().count(), "{mark:?}");
        }
    }

    #[test]
    fn names_that_look_the_same_are_found() {
        for (one, other, expected) in [
            ("Cat", "cat", Some(Alike::Case)),
            ("caf\u{e9}", "cafe\u{301}", Some(Alike::Form)),
            ("caf\u{c9}", "cafe\u{301}", Some(Alike::Case)),
            // Vietnamese letters have two marks.
            ("Vi\u{1ec7}t", "Vie\u{323}\u{302}t", Some(Alike::Form)),
            ("\u{30ac}", "\u{30ab}\u{3099}", Some(Alike::Form)),
            (
                "\u{d55c}\u{ad6d}",
                "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}",
                Some(Alike::Form),
            ),
            ("caf\u{e9}", "cafe", None),
            ("caf\u{e9}", "cafe\u{300}", None),
            ("cat", "dog", None),
        ] {
            assert_eq!(alike(one, other), expected, "{one} {other}");
            assert_eq!(alike(other, one), expected, "{other} {one}");
        }
        let names = ["Cat", "dog", "cat"].map(str::to_owned);
        assert_eq!(like("cat", &names), Some(("Cat", Alike::Case)));
        assert_eq!(like("dog", &names), None);
        assert_eq!(alike_among(&names), [(["Cat", "cat"], Alike::Case)]);
    }
}
