//! Settings are checked against the JSON schema of their type before they are read into it: a reader's own errors name
//! types of Rust, and some of them no key.

use crate::error::{Error, Result};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml::{Table, Value};

/// Reads the settings of a section, or of the whole experiment if its name is empty; an error names the key.
pub(crate) fn read<T: DeserializeOwned + JsonSchema>(section: &str, settings: Table) -> Result<T> {
    check::<T>(section, &settings)?;
    serde_path_to_error::deserialize(Value::Table(settings)).map_err(
        |error: serde_path_to_error::Error<toml::de::Error>| {
            let path = error.path().to_string();
            Error::config(dotted(section, path.trim_matches('.')), error.inner().message())
        },
    )
}

pub(crate) fn check<T: JsonSchema>(section: &str, settings: &Table) -> Result<()> {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    Node::root(schema.as_value()).check_table(section, settings)
}

/// The name of a key in a section.
pub(crate) fn dotted(section: &str, key: &str) -> String {
    match (section, key) {
        ("", key) => key.to_owned(),
        (section, "") => section.to_owned(),
        (section, key) => format!("{section}.{key}"),
    }
}

/// A place in a schema.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    root: &'a Json,
    node: &'a Json,
}

impl<'a> Node<'a> {
    pub(crate) fn root(schema: &'a Json) -> Self {
        Self { root: schema, node: schema }
    }

    pub(crate) fn has(self, key: &str) -> bool {
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        let inner =
            |one: Self| one.property(first).is_some_and(|at| rest.is_empty() || at.has(rest));
        self.alternatives().into_iter().any(inner)
    }

    fn at(self, node: &'a Json) -> Self {
        let target =
            node["$ref"].as_str().and_then(|target| self.root.pointer(target.strip_prefix('#')?));
        match target {
            Some(target) => self.at(target),
            None => Self { node, ..self },
        }
    }

    fn property(self, key: &str) -> Option<Self> {
        Some(self.at(self.node.get("properties")?.get(key)?))
    }

    /// What may stand here, without null: a key is left out instead.
    fn alternatives(self) -> Vec<Self> {
        match self.node.get("anyOf").or(self.node.get("oneOf")).and_then(Json::as_array) {
            Some(some) => some.iter().flat_map(|one| self.at(one).alternatives()).collect(),
            None if self.node["type"] == "null" => Vec::new(),
            None => vec![self],
        }
    }

    fn is(self, kind: &str) -> bool {
        let of_type = &self.node["type"];
        of_type == kind
            || of_type.as_array().is_some_and(|kinds| kinds.iter().any(|one| one == kind))
    }

    fn check(self, path: &str, value: &Value) -> Result<()> {
        let alternatives = self.alternatives();
        let of_kind = |kind| alternatives.iter().find(|one| one.is(kind));
        // Anything, for example a value in the grid of a sweep.
        if alternatives.iter().any(|one| *one.node == Json::Bool(true)) {
            return Ok(());
        }
        match value {
            Value::Table(table) if of_kind("object").is_some() => {
                return self.check_table(path, table);
            }
            Value::Array(items) => {
                if let Some(list) = of_kind("array") {
                    let item = list.at(&list.node["items"]);
                    return items.iter().try_for_each(|value| item.check(path, value));
                }
            }
            value if alternatives.iter().any(|one| one.accepts(value)) => return Ok(()),
            _ => {}
        }
        let problem = format!("expected {}, got {value}", expected(&alternatives, value));
        Err(Error::config(path, problem))
    }

    fn check_table(self, path: &str, table: &Table) -> Result<()> {
        let alternatives = self.alternatives();
        // One of several tables is chosen by the key that is constant in each of them.
        let fits = |one: &&Self| {
            let chosen = table.iter().filter_map(|(key, value)| {
                let known = one.property(key)?.node.get("const")?;
                Some(known.as_str() == value.as_str())
            });
            one.is("object") && chosen.into_iter().all(|fits| fits)
        };
        let Some(this) = alternatives.iter().find(fits) else { return Ok(()) };
        let others = this.node.get("additionalProperties");
        for (key, value) in table {
            let path = dotted(path, key);
            match (this.property(key), others) {
                (Some(known), _) => known.check(&path, value)?,
                (None, Some(Json::Bool(false))) => return Err(unknown(&path, *this)),
                (None, Some(any)) => this.at(any).check(&path, value)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn accepts(self, value: &Value) -> bool {
        if let Some(word) = self.node.get("const") {
            return word.as_str() == value.as_str();
        }
        match value {
            Value::String(_) => self.is("string"),
            Value::Boolean(_) => self.is("boolean"),
            Value::Float(_) => self.is("number"),
            Value::Integer(number) => {
                let at_least_0 = self.node["minimum"] == 0;
                self.is("number")
                    || self.is("integer")
                        && (*number >= 0 || !at_least_0)
                        && self.largest().is_none_or(|largest| *number <= largest)
            }
            _ => false,
        }
    }

    fn largest(self) -> Option<i64> {
        (self.node["format"] == "uint32").then_some(u32::MAX.into())
    }
}

fn unknown(path: &str, table: Node) -> Error {
    let known = table.node["properties"].as_object();
    let known: Vec<&str> = known.into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    let problem = match known[..] {
        [] => "unknown key; none is expected here".to_owned(),
        _ => format!("unknown key; expected one of {}", known.join(", ")),
    };
    Error::config(path, problem)
}

/// What could be written instead of a value.
fn expected(alternatives: &[Node], value: &Value) -> String {
    let mut words: Vec<String> = Vec::new();
    for one in alternatives {
        let word = match one.node["const"].as_str() {
            Some(word) => format!("`{word}`"),
            None if one.is("integer") => match (one.largest(), value.as_integer()) {
                (Some(largest), Some(number)) if number > largest => format!("at most {largest}"),
                _ => "a non-negative integer".to_owned(),
            },
            None if one.is("number") => "a number".to_owned(),
            None if one.is("boolean") => "true or false".to_owned(),
            None if one.is("array") => "a list".to_owned(),
            None if one.is("object") => "a table of keys".to_owned(),
            None => "a string".to_owned(),
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    match &words[..] {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        words => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::{resolve, sweep};
    use crate::methods;
    use toml::{Table, Value};

    #[test]
    fn messages_say_what_to_write() {
        for (setting, problem) in [
            ("rounds=\"x\"", "rounds: expected a non-negative integer, got \"x\""),
            ("client.epochs=-1", "client.epochs: expected a non-negative integer, got -1"),
            ("rounds=4294967296", "rounds: expected at most 4294967295, got 4294967296"),
            ("optimiser.lr=true", "optimiser.lr: expected a number, got true"),
            ("compare=1.5", "compare: expected true or false, got 1.5"),
            ("record.latents={}", "record.latents: expected a list, got {}"),
            ("record.latents=[-1]", "record.latents: expected a non-negative integer, got -1"),
            ("data.fit=squash", "data.fit: expected `stretch`, `crop` or `pad`, got \"squash\""),
            (
                "method.threshold=true",
                "method.threshold: expected a number or a table of keys, got true",
            ),
            (
                "server.x=1",
                "server.x: unknown key; expected one of augment, batch, epochs, keep_momentum, lr, momentum",
            ),
            ("method.mixup.x=1", "method.mixup.x: unknown key; expected one of"),
            ("model.name.x=1", "model.name: expected `resnet18`, "),
            ("rounds=1979-05-27", "rounds: expected a non-negative integer, got 1979-05-27"),
            (
                "rounds=99999999999999999999",
                "rounds: cannot read `99999999999999999999` as a value",
            ),
            ("partition.alpha=\"x\"", "partition.alpha: expected a number, got \"x\""),
        ] {
            let error = resolve("", &[setting.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{setting}: {error}");
        }
        let iid = ["partition.kind=iid", "partition.alpha=1"].map(str::to_owned);
        let error = resolve("", &iid).unwrap_err().to_string();
        assert_eq!(error, "partition.alpha: unknown key; expected one of kind");
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
            let without = ["data.path", "data.size", "server.lr", "augment.flip"];
            all.extend(without.map(str::to_owned));
            all.extend(
                ["model.latent_stage", "method.latents", "method.anchor_views"].map(str::to_owned),
            );
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
                    assert!(!error.contains("$__toml"), "{settings:?}: {error}");
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
