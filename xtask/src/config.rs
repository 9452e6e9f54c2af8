//! The keys of an experiment: those of every experiment by section, and those of each method.

use crate::Part;
use crate::markdown::{code, item, split_default, target};
use crate::schema::{Key, generator, keys, keys_of};
use anyhow::{Context, Result, ensure};
use fedanchor::Experiment;
use fedanchor::experiment::{PRESETS, preset};
use fedanchor::methods;
use schemars::Schema;
use toml::{Table, Value};

pub(crate) fn parts() -> Result<Vec<Part>> {
    let presets = presets()?;
    Ok(vec![("sections", sections(&presets)?), ("methods", method_sections(&presets)?)])
}

/// Every preset by name; the first is the one that the others change.
type Presets = Vec<(&'static str, Table)>;

fn presets() -> Result<Presets> {
    PRESETS.iter().map(|(name, _)| Ok((*name, preset(name)?))).collect()
}

fn sections(presets: &Presets) -> Result<String> {
    let mut all = keys_of::<Experiment>()?;
    if let Some(name) = all.iter_mut().find(|key| key.path == "method.name") {
        name.values = methods()?
            .iter()
            .map(|(name, schema)| ((*name).to_owned(), description(schema)))
            .collect();
    }
    let mut text = rows(&all, "", &Lookup { presets, method: None })?;
    for section in all.iter().filter(|key| key.is_section()) {
        let rows = rows(&all, &section.path, &Lookup { presets, method: None })?;
        text += &format!("\n### `[{}]`\n\n{}\n\n{rows}", section.path, section.meaning);
    }
    Ok(text)
}

fn method_sections(presets: &Presets) -> Result<String> {
    let mut text = String::new();
    for (name, schema) in methods()? {
        let mut keys = keys(&schema).with_context(|| format!("method `{name}`"))?;
        keys.iter_mut().for_each(|key| key.path = format!("method.{}", key.path));
        let lookup = Lookup { presets, method: Some(name) };
        let rows_of = |section: &str| rows(&keys, section, &lookup);
        text +=
            &format!("\n### Method `{name}`\n\n{}\n\n{}", description(&schema), rows_of("method")?);
        for section in keys.iter().filter(|key| key.is_section()) {
            let Key { path, meaning, .. } = section;
            text += &format!("\n#### `[{path}]`\n\n{meaning}\n\n{}", rows_of(path)?);
        }
    }
    Ok(text)
}

/// The methods with the schemas of their settings.
fn methods() -> Result<Vec<(&'static str, Schema)>> {
    let described = |name| {
        let schema = (methods::find(name)?.settings)(&mut generator());
        let problem = || format!("method `{name}` needs `describe` in its registration");
        ensure!(schema.get("properties").is_some(), problem());
        Ok((name, schema))
    };
    methods::names().into_iter().map(described).collect()
}

/// The description of a whole schema.
fn description(schema: &Schema) -> String {
    split_default(schema.get("description").and_then(|text| text.as_str()).unwrap_or_default()).0
}

/// The keys of one section.
fn rows(keys: &[Key], section: &str, lookup: &Lookup) -> Result<String> {
    let below = |key: &Key| key.parent() == section || within_a_setting(keys, key, section);
    let mut rows = String::new();
    for key in keys.iter().filter(|key| !key.is_section() && below(key)) {
        let mut facts = vec![key.kind.clone()];
        if key.parent() == section || key.of.is_some() {
            facts.push(format!("default {}", lookup.default(key)?));
        }
        if let Some(of) = &key.of {
            facts.insert(0, format!("with {}", code(of)));
        }
        let name = target(&lookup.id(key), &key.path);
        rows += &item(
            &format!("{name} ({}): {}", facts.join(", "), key.meaning),
            &key.explained_values(),
        );
    }
    Ok(rows)
}

/// Whether the key is one of a table that is itself a setting of the section, as `data.normalisation`.
fn within_a_setting(keys: &[Key], key: &Key, section: &str) -> bool {
    let table = keys.iter().find(|table| table.path == key.parent() && !table.is_section());
    table.is_some_and(|table| table.parent() == section)
}

/// Where the defaults of a section's keys are.
struct Lookup<'a> {
    presets: &'a Presets,
    method: Option<&'a str>,
}

impl Lookup<'_> {
    /// The anchor of the key; keys of different methods may have the same name.
    fn id(&self, key: &Key) -> String {
        let path = match self.method {
            Some(method) => key.path.replacen("method", method, 1),
            None => key.path.clone(),
        };
        key.of.iter().fold(path, |path, of| format!("{path}.{of}"))
    }

    /// The default in preset `paper`, and those of the presets that change it. A default in words is one
    /// that depends on something else.
    fn default(&self, key: &Key) -> Result<String> {
        if let Some(words) = &key.default {
            return Ok(words.clone());
        }
        let mut values = self.presets.iter().map(|(name, preset)| (name, self.value(preset, key)));
        let first = values.next().and_then(|(_, value)| value);
        let first = first.with_context(|| {
            let path = &key.path;
            format!(
                "{path} has no default in preset `paper`: end its doc comment in `[default: ...]`"
            )
        })?;
        let changed = values.filter_map(|(name, value)| Some((name, value?)));
        let changed = changed.filter(|(_, value)| *value != first);
        let changed = changed.map(|(name, value)| format!("in preset `{name}` {}", code(value)));
        Ok(std::iter::once(code(first)).chain(changed).collect::<Vec<_>>().join(", "))
    }

    fn value<'a>(&self, preset: &'a Table, key: &Key) -> Option<&'a Value> {
        let (_, name) = key.path.rsplit_once('.').unwrap_or_default();
        match (&key.of, self.method) {
            (Some(of), None) => preset.get("partitions")?.get(of)?.get(name),
            (Some(of), Some(_)) => preset.get("thresholds")?.get(of)?.get(name),
            (None, None) => find(preset, &key.path),
            (None, Some(method)) => {
                let settings = preset.get("methods")?.get(method)?.as_table()?;
                find(settings, key.path.strip_prefix("method.")?)
            }
        }
    }
}

fn find<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
    let value = table.get(first)?;
    match rest {
        Some(rest) => find(value.as_table()?, rest),
        None => Some(value),
    }
}
