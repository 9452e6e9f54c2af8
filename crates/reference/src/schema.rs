//! A type's JSON Schema as a flat list of keys in plain words: no name of a Rust type reaches a reader.

use crate::markdown::{code, sentence, split_default};
use anyhow::{Context, Result, bail, ensure};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

/// One key of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    /// Dotted; `[]` after a list of tables.
    pub(crate) path: String,
    /// The path of the table it is in.
    pub(crate) parent: String,
    /// The value that a choice must have for the key to exist, for example `lda` of `partition.kind`.
    pub(crate) of: Option<String>,
    /// Its type.
    pub(crate) kind: String,
    /// Whether it is a table that is always there: a section, not a setting.
    pub(crate) section: bool,
    /// The values it may have, where they are few, with their meanings.
    pub(crate) values: Vec<(String, String)>,
    /// What it means.
    pub(crate) meaning: String,
    /// A default in words.
    pub(crate) default: Option<String>,
    /// Whether it may be `null`.
    pub(crate) nullable: bool,
    /// Whether it may be missing.
    pub(crate) optional: bool,
}

impl Key {
    /// What it means and, on lines of their own, what its values mean.
    pub(crate) fn explanation(&self) -> String {
        let values = self.values.iter();
        let values = values.map(|(value, meaning)| format!("{}: {meaning}", code(value)));
        std::iter::once(sentence(&self.meaning)).chain(values).collect::<Vec<_>>().join("\n")
    }
}

/// A generator of schemas of what is written, as opposed to what is accepted.
pub(crate) fn generator() -> SchemaGenerator {
    SchemaSettings::default().for_serialize().into_generator()
}

/// The keys of a type.
pub(crate) fn keys_of<T: JsonSchema>() -> Result<Vec<Key>> {
    keys(&generator().into_root_schema_for::<T>())
}

/// The keys that a schema describes, always-present ones in the order of their declaration, then the others.
pub(crate) fn keys(schema: &Schema) -> Result<Vec<Key>> {
    let mut walk = Walk { root: schema.as_value(), keys: Vec::new() };
    walk.object(schema.as_value(), "", None)?;
    Ok(walk.keys)
}

struct Walk<'a> {
    root: &'a Value,
    keys: Vec<Key>,
}

/// What a schema describes, once references are followed.
enum Shape<'a> {
    /// A number, a text, a list of such.
    Plain(String),
    /// One of a few words.
    Words(Vec<(String, String)>),
    Table(&'a Value),
    /// A table whose other keys depend on this one.
    Choice {
        tag: &'a str,
        variants: Vec<Variant<'a>>,
    },
    /// A number, or one of the variants by name or as a table.
    NumberOr(Vec<Variant<'a>>),
    Tables(&'a Value),
}

/// A table of a choice.
struct Variant<'a> {
    name: String,
    meaning: String,
    tag: &'a str,
    table: &'a Value,
}

impl<'a> Walk<'a> {
    /// All keys of a table, without the tag if it is a variant of a choice.
    fn object(&mut self, table: &'a Value, path: &str, variant: Option<&Variant>) -> Result<()> {
        let Some(properties) = table["properties"].as_object() else { return Ok(()) };
        let required: Vec<&str> = strings(&table["required"]).collect();
        let others = properties.keys().map(String::as_str).filter(|key| !required.contains(key));
        for name in required.iter().copied().chain(others) {
            if variant.is_none_or(|variant| variant.tag != name) {
                let optional = !required.contains(&name);
                let of = variant.map(|variant| variant.name.clone());
                self.key(&properties[name], path, name, of, optional)?;
            }
        }
        Ok(())
    }

    fn key(
        &mut self,
        property: &'a Value,
        parent: &str,
        name: &str,
        of: Option<String>,
        optional: bool,
    ) -> Result<()> {
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        let (value, nullable) = self.resolved(property)?;
        let description = text(property).or(text(value)).unwrap_or_default();
        ensure!(!description.is_empty(), "{path} has no doc comment");
        ensure!(!description.contains("[`"), "the doc comment of {path} links to code");
        let (meaning, default) = split_default(description);
        let shape = self.shape(value).with_context(|| path.clone())?;
        let key = Key {
            path: path.clone(),
            parent: parent.to_owned(),
            of,
            kind: shape.words(),
            section: matches!(shape, Shape::Table(_) | Shape::Choice { .. }) && !nullable,
            values: shape.values(),
            meaning,
            default,
            nullable,
            optional,
        };
        self.keys.push(key);
        match &shape {
            Shape::Plain(_) | Shape::Words(_) => {}
            Shape::Table(table) => self.object(table, &path, None)?,
            Shape::Tables(table) => self.object(table, &format!("{path}[]"), None)?,
            Shape::NumberOr(variants) => self.variants(variants, &path)?,
            Shape::Choice { tag, variants } => {
                self.keys.push(Key {
                    path: format!("{path}.{tag}"),
                    parent: path.clone(),
                    of: None,
                    kind: "name".to_owned(),
                    section: false,
                    values: named(variants),
                    meaning: split_default(text(value).unwrap_or_default()).0,
                    default: None,
                    nullable: false,
                    optional: false,
                });
                self.variants(variants, &path)?;
            }
        }
        Ok(())
    }

    fn variants(&mut self, variants: &[Variant<'a>], path: &str) -> Result<()> {
        variants.iter().try_for_each(|variant| self.object(variant.table, path, Some(variant)))
    }

    /// The schema behind a reference, and whether `null` is allowed beside it.
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

    fn shape(&self, value: &'a Value) -> Result<Shape<'a>> {
        if let Some(variants) = value["oneOf"].as_array() {
            let word = |one: &Value| {
                Some((one["const"].as_str()?.to_owned(), split_default(text(one)?).0))
            };
            if let Some(words) = variants.iter().map(word).collect() {
                return Ok(Shape::Words(words));
            }
            let variants: Vec<Variant> = variants.iter().map(variant).collect::<Result<_>>()?;
            let tag = variants.first().map_or("", |variant| variant.tag);
            return Ok(Shape::Choice { tag, variants });
        }
        if let Some([number, choice]) = value["anyOf"].as_array().map(Vec::as_slice)
            && number["type"] == "number"
            && let Shape::Choice { variants, .. } = self.shape(self.resolved(choice)?.0)?
        {
            return Ok(Shape::NumberOr(variants));
        }
        let kind = strings(&value["type"]).find(|kind| *kind != "null");
        Ok(match kind {
            Some("integer") => Shape::Plain("whole number".to_owned()),
            Some("number") => Shape::Plain("number".to_owned()),
            Some("boolean") => Shape::Plain("`true` or `false`".to_owned()),
            Some("string") if value["format"] == "path" => Shape::Plain("path".to_owned()),
            Some("string") => Shape::Plain("text".to_owned()),
            Some("object") => Shape::Table(value),
            Some("array") => match self.shape(self.resolved(&value["items"])?.0)? {
                Shape::Table(table) => Shape::Tables(table),
                Shape::Plain(one) => Shape::Plain(format!("list of {}", plural(&one))),
                _ => bail!("no words for a list of {}", value["items"]),
            },
            _ => bail!("no words for {value}"),
        })
    }
}

impl Shape<'_> {
    fn words(&self) -> String {
        match self {
            Self::Plain(words) => words.clone(),
            Self::Words(_) => "name".to_owned(),
            Self::Table(_) | Self::Choice { .. } => "table".to_owned(),
            Self::NumberOr(_) => "number, name or table".to_owned(),
            Self::Tables(_) => "list of tables".to_owned(),
        }
    }

    fn values(&self) -> Vec<(String, String)> {
        match self {
            Self::Words(words) => words.clone(),
            Self::NumberOr(variants) => named(variants),
            _ => Vec::new(),
        }
    }
}

fn named(variants: &[Variant]) -> Vec<(String, String)> {
    variants.iter().map(|variant| (variant.name.clone(), variant.meaning.clone())).collect()
}

/// A table with a key that has one value only.
fn variant(table: &Value) -> Result<Variant<'_>> {
    let properties = table["properties"].as_object().context("a choice without keys")?;
    let mut constants =
        properties.iter().filter_map(|(key, one)| Some((key, one["const"].as_str()?)));
    let (tag, name) = constants.next().with_context(|| format!("no tag in {table}"))?;
    let meaning = split_default(text(table).unwrap_or_default()).0;
    Ok(Variant { name: name.to_owned(), meaning, tag, table })
}

fn text(value: &Value) -> Option<&str> {
    value["description"].as_str()
}

/// The strings of a list, or the one string.
fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(Value::as_str)
}

fn plural(one: &str) -> String {
    match one.strip_prefix("list ") {
        Some(rest) => format!("lists {rest}"),
        None if one == "text" => one.to_owned(),
        None => format!("{one}s"),
    }
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
        assert_eq!(number.meaning, "A number over two lines");
        assert_eq!((number.default.as_deref(), number.nullable), (Some("by size"), true));
        let words = [("first-one", "The first."), ("second", "The second.")];
        assert_eq!(key("word").values, words.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(key("choice.kind").meaning, "Which one.");
        assert_eq!(key("limit").values, key("choice.kind").values);
        assert_eq!(key("section.flag").parent, "section");
        assert!(key("section").section && key("choice").section && !key("limit").section);
        assert!(key("notes").optional && !key("notes").nullable && !key("lists").optional);
    }

    /// What nobody has described.
    #[derive(Serialize, JsonSchema)]
    struct Undocumented {
        key: u32,
    }

    /// What has a link that only rustdoc follows.
    #[derive(Serialize, JsonSchema)]
    struct Linked {
        /// As in [`Example`].
        key: u32,
    }

    #[test]
    fn a_doc_comment_that_is_no_reference_is_named() {
        let problem = keys_of::<Undocumented>().unwrap_err().to_string();
        assert_eq!(problem, "key has no doc comment");
        let problem = keys_of::<Linked>().unwrap_err().to_string();
        assert_eq!(problem, "the doc comment of key links to code");
    }
}
