//! A type's JSON Schema as a flat list of keys in plain words, without names of Rust types.

use crate::markdown::{code, sentence, split_default};
use anyhow::{Context, Result, bail, ensure};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

/// One key of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Key {
    /// Dotted; `[]` after a list of tables.
    pub(crate) path: String,
    /// The value that a choice must have for the key to exist, for example `lda` of `partition.kind`.
    pub(crate) of: Option<String>,
    /// Its type.
    pub(crate) kind: String,
    /// The values it may have, where they are few, with their meanings.
    pub(crate) values: Vec<(String, String)>,
    pub(crate) meaning: String,
    /// A default in words.
    pub(crate) default: Option<String>,
    /// Whether it may be `null`.
    pub(crate) nullable: bool,
    /// Whether it may be missing.
    pub(crate) optional: bool,
}

impl Key {
    /// The path of the table it is in.
    pub(crate) fn parent(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(parent, _)| parent)
    }

    /// Whether it is a table that is always there: a section, not a setting.
    pub(crate) fn is_section(&self) -> bool {
        self.kind == TABLE && !self.nullable
    }

    /// The values it may have, each with its meaning.
    pub(crate) fn explained_values(&self) -> Vec<String> {
        let values = self.values.iter();
        values.map(|(value, meaning)| format!("{}: {meaning}", code(value))).collect()
    }
}

const TABLE: &str = "table";
const NAME: &str = "name";

/// A generator of schemas of what is written, as opposed to what is accepted.
pub(crate) fn generator() -> SchemaGenerator {
    SchemaSettings::default().for_serialize().into_generator()
}

/// The keys of a type.
pub(crate) fn keys_of<T: JsonSchema>() -> Result<Vec<Key>> {
    keys(&generator().into_root_schema_for::<T>())
}

/// The keys that a schema describes: the required ones in the order of their declaration, then the others.
pub(crate) fn keys(schema: &Schema) -> Result<Vec<Key>> {
    let mut walk = Walk { root: schema.as_value(), keys: Vec::new() };
    walk.table(schema.as_value(), "", None)?;
    Ok(walk.keys)
}

struct Walk<'a> {
    root: &'a Value,
    keys: Vec<Key>,
}

/// One of the tables of a choice: the one in which the key `tag` is `name`.
struct Variant<'a> {
    tag: &'a str,
    name: &'a str,
    table: &'a Value,
}

impl<'a> Walk<'a> {
    /// Adds the keys of a table; without the tag, if it is that of a choice.
    fn table(&mut self, table: &'a Value, path: &str, variant: Option<&Variant>) -> Result<()> {
        let Some(properties) = table["properties"].as_object() else { return Ok(()) };
        let required: Vec<&str> = strings(&table["required"]).collect();
        let others = properties.keys().map(String::as_str).filter(|key| !required.contains(key));
        for name in required.iter().copied().chain(others) {
            if variant.is_none_or(|variant| variant.tag != name) {
                let key = Key {
                    path: format!("{path}.{name}").trim_start_matches('.').to_owned(),
                    of: variant.map(|variant| variant.name.to_owned()),
                    optional: !required.contains(&name),
                    ..Key::default()
                };
                let path = key.path.clone();
                self.key(&properties[name], key).context(path)?;
            }
        }
        Ok(())
    }

    /// Adds a key and those below it.
    fn key(&mut self, property: &'a Value, mut key: Key) -> Result<()> {
        let (value, nullable) = self.resolved(property)?;
        key.nullable = nullable;
        let description = text(property).or(text(value)).context("no doc comment")?;
        ensure!(!description.contains("[`"), "the doc comment links to code");
        (key.meaning, key.default) = split_default(description);
        key.meaning = sentence(&key.meaning);
        let path = key.path.clone();
        if let Some(words) = words(value) {
            (key.kind, key.values) = (NAME.to_owned(), words);
            self.keys.push(key);
        } else if let Some(variants) = variants(value) {
            key.kind = TABLE.to_owned();
            self.keys.push(key);
            self.keys.push(Key {
                path: format!("{path}.{}", variants[0].tag),
                kind: NAME.to_owned(),
                values: meanings(&variants),
                meaning: sentence(&split_default(text(value).unwrap_or_default()).0),
                ..Key::default()
            });
            self.choice(&variants, &path)?;
        } else if let Some(variants) = self.variants_or_number(value)? {
            (key.kind, key.values) = ("number, name or table".to_owned(), meanings(&variants));
            self.keys.push(key);
            self.choice(&variants, &path)?;
        } else {
            key.kind = self.words_for(value)?;
            let kind = key.kind.clone();
            self.keys.push(key);
            match kind.as_str() {
                TABLE => self.table(value, &path, None)?,
                "list of tables" => {
                    let (table, _) = self.resolved(&value["items"])?;
                    self.table(table, &format!("{path}[]"), None)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn choice(&mut self, variants: &[Variant<'a>], path: &str) -> Result<()> {
        variants.iter().try_for_each(|variant| self.table(variant.table, path, Some(variant)))
    }

    /// The schema behind a reference, and whether `null` is allowed as well.
    fn resolved(&self, value: &'a Value) -> Result<(&'a Value, bool)> {
        if let Some(reference) = value["$ref"].as_str() {
            let target = self.root.pointer(reference.trim_start_matches('#'));
            return self.resolved(target.with_context(|| format!("no schema at {reference}"))?);
        }
        if let Some([one, null]) = value["anyOf"].as_array().map(Vec::as_slice)
            && null["type"] == "null"
        {
            return Ok((self.resolved(one)?.0, true));
        }
        Ok((value, strings(&value["type"]).any(|kind| kind == "null")))
    }

    /// The variants of a choice that may also be a number.
    fn variants_or_number(&self, value: &'a Value) -> Result<Option<Vec<Variant<'a>>>> {
        match value["anyOf"].as_array().map(Vec::as_slice) {
            Some([number, choice]) if number["type"] == "number" => {
                Ok(variants(self.resolved(choice)?.0))
            }
            _ => Ok(None),
        }
    }

    fn words_for(&self, value: &'a Value) -> Result<String> {
        let kind = strings(&value["type"]).find(|kind| *kind != "null");
        let words = match kind {
            Some("integer") => "whole number",
            Some("number") => "number",
            Some("boolean") => "`true` or `false`",
            Some("string") if value["format"] == "path" => "path",
            Some("string") => "text",
            Some("object") => TABLE,
            Some("array") => {
                let one = self.words_for(self.resolved(&value["items"])?.0)?;
                return Ok(match one.strip_prefix("list ") {
                    Some(rest) => format!("list of lists {rest}"),
                    None if one == "text" => "list of text".to_owned(),
                    None => format!("list of {one}s"),
                });
            }
            _ => bail!("no words for {value}"),
        };
        Ok(words.to_owned())
    }
}

/// The words of a type that is one of a few, with their meanings.
fn words(value: &Value) -> Option<Vec<(String, String)>> {
    let word = |one: &Value| Some((one["const"].as_str()?.to_owned(), split_default(text(one)?).0));
    value["oneOf"].as_array()?.iter().map(word).collect()
}

/// The tables of a type that is one of several.
fn variants(value: &Value) -> Option<Vec<Variant<'_>>> {
    value["oneOf"].as_array()?.iter().map(variant).collect()
}

/// A table with a key that has one value only.
fn variant(table: &Value) -> Option<Variant<'_>> {
    let mut keys = table["properties"].as_object()?.iter();
    let (tag, name) = keys.find_map(|(key, one)| Some((key, one["const"].as_str()?)))?;
    Some(Variant { tag, name, table })
}

fn meanings(variants: &[Variant]) -> Vec<(String, String)> {
    let meaning = |table| split_default(text(table).unwrap_or_default()).0;
    variants.iter().map(|one| (one.name.to_owned(), meaning(one.table))).collect()
}

fn text(value: &Value) -> Option<&str> {
    value["description"].as_str()
}

/// The strings of a list, or the one string.
fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(Value::as_str)
}

#[cfg(test)]
#[expect(dead_code, reason = "only the schemas of the example types are used")]
mod tests {
    use super::*;
    use serde::Serialize;

    /// One key of every kind.
    #[derive(Serialize, JsonSchema)]
    struct Example {
        /// A number
        /// over two lines [default: by size].
        number: Option<f64>,
        /// Counts.
        lists: Vec<Vec<u32>>,
        /// A word.
        word: Word,
        /// A section.
        section: Inner,
        /// A choice.
        choice: Choice,
        /// A limit.
        limit: Limit,
        /// Notes.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        notes: Vec<Inner>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Inner {
        /// A flag.
        flag: bool,
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Word {
        /// The first.
        FirstOne,
        /// The second.
        Second,
    }

    /// Which one.
    #[derive(Serialize, JsonSchema)]
    #[serde(tag = "kind", rename_all = "kebab-case")]
    enum Choice {
        /// Without keys.
        Plain {},
        /// With one.
        Sized {
            /// How large.
            size: usize,
        },
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(untagged)]
    enum Limit {
        /// Fixed.
        Fixed(f64),
        /// By choice.
        Chosen(Choice),
    }

    #[test]
    fn every_kind_of_key_has_words() {
        let keys = keys_of::<Example>().unwrap();
        let found: Vec<_> = keys
            .iter()
            .map(|key| (key.path.as_str(), key.of.as_deref(), key.kind.as_str()))
            .collect();
        let expected = [
            ("number", None, "number"),
            ("lists", None, "list of lists of whole numbers"),
            ("word", None, "name"),
            ("section", None, "table"),
            ("section.flag", None, "`true` or `false`"),
            ("choice", None, "table"),
            ("choice.kind", None, "name"),
            ("choice.size", Some("sized"), "whole number"),
            ("limit", None, "number, name or table"),
            ("limit.size", Some("sized"), "whole number"),
            ("notes", None, "list of tables"),
            ("notes[].flag", None, "`true` or `false`"),
        ];
        assert_eq!(found, expected);
        let key = |path: &str| keys.iter().find(|key| key.path == path).unwrap();
        let number = key("number");
        assert_eq!(number.meaning, "A number over two lines.");
        assert_eq!((number.default.as_deref(), number.nullable), (Some("by size"), true));
        let words = [("first-one", "The first."), ("second", "The second.")];
        assert_eq!(key("word").values, words.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(key("choice.kind").meaning, "Which one.");
        assert_eq!(key("limit").values, key("choice.kind").values);
        assert_eq!(key("section.flag").parent(), "section");
        let is_section = |path| key(path).is_section();
        assert!(is_section("section") && is_section("choice") && !is_section("limit"));
        assert!(key("notes").optional && !key("notes").nullable && !key("lists").optional);
    }

    /// Without a doc comment on its key.
    #[derive(Serialize, JsonSchema)]
    struct Undocumented {
        key: u32,
    }

    /// With a link that only rustdoc follows.
    #[derive(Serialize, JsonSchema)]
    struct Linked {
        /// As in [`Example`].
        key: u32,
    }

    #[test]
    fn a_doc_comment_that_is_no_reference_is_named() {
        let problem = format!("{:#}", keys_of::<Undocumented>().unwrap_err());
        assert_eq!(problem, "key: no doc comment");
        let problem = format!("{:#}", keys_of::<Linked>().unwrap_err());
        assert_eq!(problem, "key: the doc comment links to code");
    }
}
