//! What the parser says about a wrong value, in words of the user's: a parser of Rust's names Rust's types.

use crate::error::Error;

/// An error about a setting, without the names of Rust's types.
pub(crate) fn in_plain_words(error: Error) -> Error {
    match error {
        Error::Config { key, problem } => Error::Config { key, problem: plain_words(&problem) },
        other => other,
    }
}

/// The parser's message, without the names of Rust's types.
pub(crate) fn plain_words(message: &str) -> String {
    if let Some(word) = message.strip_prefix("unknown variant ") {
        return format!("unknown value {word}");
    }
    if message.contains("did not match any variant") || message.starts_with("wanted exactly 1") {
        return "expected a number, a name in quotes, or a table with known keys".to_owned();
    }
    let wrong = ["invalid type: ", "invalid value: ", "invalid length "];
    let rest = wrong.iter().find_map(|start| message.strip_prefix(start));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => match seen(found) {
            Some(value) => format!("expected {}, found {value}", wanted(expected, found)),
            None => format!("expected {}", wanted(expected, found)),
        },
        None => message.to_owned(),
    }
}

/// What was expected.
fn wanted(kind: &str, found: &str) -> String {
    let too_large = found.starts_with("integer") && !found.contains('-');
    let plain = match kind {
        "f64" | "f32" => "a number",
        "u8" if too_large => "a whole number up to 255",
        "u16" if too_large => "a whole number up to 65535",
        "u32" if too_large => "a whole number up to 4294967295",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "a boolean" => "true or false",
        "a string" | "string or table" | "string only" | "string" => "a name in quotes",
        "path string" => "a path in quotes",
        "a sequence" | "sequence" => "a list",
        "a map" | "map" | "table" => "a table of keys",
        kind if kind.starts_with("struct ") => "a table of keys",
        kind if kind.contains("variant") || kind.contains("enum") => "a name in quotes",
        other => other,
    };
    plain.to_owned()
}

/// What was found, where the parser tells: values as they were written, and words for what has parts.
fn seen(found: &str) -> Option<&str> {
    let value = ["string ", "integer ", "floating point ", "boolean ", "character "]
        .iter()
        .find_map(|kind| found.strip_prefix(kind));
    match (value, found) {
        (Some(value), _) => Some(value.trim_matches('`')),
        (None, "sequence") => Some("a list"),
        (None, "map") => Some("a table or a date"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{resolve, sweep};
    use crate::methods;
    use toml::{Table, Value};

    #[test]
    fn messages_say_what_to_write() {
        for (message, plain) in [
            (
                "invalid type: string \"x\", expected u32",
                "expected a whole number of 0 or more, found \"x\"",
            ),
            (
                "invalid value: integer `-1`, expected usize",
                "expected a whole number of 0 or more, found -1",
            ),
            (
                "invalid value: integer `4294967296`, expected u32",
                "expected a whole number up to 4294967295, found 4294967296",
            ),
            ("invalid type: boolean `true`, expected f64", "expected a number, found true"),
            (
                "invalid type: floating point `1.5`, expected a boolean",
                "expected true or false, found 1.5",
            ),
            ("invalid type: map, expected a sequence", "expected a list, found a table or a date"),
            ("unknown variant `x`, expected `a` or `b`", "unknown value `x`, expected `a` or `b`"),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(plain_words(message), plain);
        }
    }

    /// Every key of a table, dotted, with those of the tables in it.
    fn keys(table: &Table, path: &str, out: &mut Vec<String>) {
        for (key, value) in table {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if let Value::Table(inner) = value {
                keys(inner, &path, out);
            }
            out.push(path);
        }
    }

    fn names_a_type(message: &str) -> Option<&str> {
        const TYPES: [&str; 22] = [
            "u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64",
            "bool", "str", "String", "Vec", "Option", "struct", "enum", "variant", "sequence",
            "map",
        ];
        let mut words = message.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.find(|word| TYPES.contains(word))
    }

    #[test]
    fn no_key_with_any_wrong_value_names_a_type_of_rust() {
        const WRONG: [&str; 12] = [
            "\"x\"",
            "\"\"",
            "-1",
            "1.5",
            "99999999999999",
            "1e300",
            "true",
            "[1]",
            "[]",
            "{}",
            "{ a = 1 }",
            "1979-05-27",
        ];
        let (mut tried, mut wrong) = (0, Vec::new());
        let mut starts: Vec<String> =
            methods::names().iter().map(|name| format!("method.name={name}")).collect();
        starts.extend(["iid", "dirichlet", "classes"].map(|kind| format!("partition.kind={kind}")));
        let rules = ["anchor-relative", "rising", "client-mean", "softmatch", "quantile"];
        starts.extend(rules.map(|rule| format!("method.threshold={rule}")));
        for start in starts {
            let experiment = resolve("", std::slice::from_ref(&start)).unwrap();
            let mut all = Vec::new();
            keys(&Table::try_from(&experiment).unwrap(), "", &mut all);
            // Keys that have no default.
            let without = ["data.path", "data.size", "server.lr", "server.batch", "augment.flip"];
            all.extend(without.map(str::to_owned));
            all.extend(["model.latent_stage", "method.latents"].map(str::to_owned));
            all.push("method.contrastive.batch".to_owned());
            all.extend(
                [
                    "fleet",
                    "fleet.deadline",
                    "fleet.ask",
                    "record",
                    "record.latents",
                    "record.samples",
                ]
                .map(str::to_owned),
            );
            for key in all {
                for value in WRONG {
                    let settings = [start.clone(), format!("{key}={value}")];
                    let Err(error) = resolve("", &settings) else { continue };
                    let error = error.to_string();
                    let allowed = error.replace("`f32`", "").replace("f32 or bf16", "");
                    if names_a_type(&allowed).is_some() {
                        wrong.push(format!("{settings:?}: {error}"));
                    }
                    tried += 1;
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tried > 5000, "{tried}");
    }

    #[test]
    fn nor_does_a_sweep_file() {
        for text in [
            "seeds = 3",
            "seeds = [-1]",
            "seeds = [\"x\"]",
            "base = 3",
            "base = []",
            "axes = 3",
            "[axes]\na = 3",
            "[axes]\na = { x = 3 }",
            "grid = 3",
            "[grid]\nrounds = 3",
            "[grid]\nrounds = [\"x\"]",
            "[base]\nrounds = [3]",
        ] {
            let error = sweep(text, &[], &[]).unwrap_err().to_string();
            assert_eq!(names_a_type(&error), None, "{text}: {error}");
        }
    }
}
