//! The JSON schema of experiment files, by which editors complete and check them: from the same types as the reference.

use anyhow::{Context, Result};
use fedanchor::Experiment;
use fedanchor::experiment::PRESETS;
use fedanchor::methods;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The method of a file that names none.
const DEFAULT: &str = "fedanchor";

pub(crate) fn experiment() -> Result<String> {
    let mut root = generator().into_root_schema_for::<Experiment>().to_value();
    let sections = root.pointer_mut("/properties").and_then(Value::as_object_mut);
    let sections = sections.context("the schema of an experiment has no properties")?;
    let presets: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    choose(&mut sections["preset"], &presets);
    let (mut methods, mut names) = (Map::new(), Vec::new());
    for name in methods::names() {
        let schema = (methods::find(name)?.settings)(&mut generator());
        names.push(json!({ "const": name, "description": schema.get("description") }));
        methods.append(&mut definitions(name, schema));
    }
    let definitions = root.pointer_mut("/$defs").and_then(Value::as_object_mut);
    let definitions = definitions.context("the schema of an experiment has no definitions")?;
    definitions.append(&mut methods);
    file_form(&mut root);
    // Which settings there are depends on the name.
    root["$defs"]["MethodConfig"] = json!({
        "type": "object",
        "properties": { "name": { "oneOf": names } },
        "allOf": methods::names().iter().map(|name| settings_of(name)).collect::<Vec<_>>(),
    });
    root["title"] = json!("An experiment of fedanchor");
    Ok(format!("{root:#}\n"))
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().into_generator()
}

/// One of these names, with the description that is there.
fn choose(property: &mut Value, names: &[&str]) {
    *property = json!({ "enum": names, "description": property["description"] });
}

/// The definition of a method's settings, and those that it refers to, under names of their own.
fn definitions(method: &str, schema: Schema) -> Map<String, Value> {
    let mut schema = schema.to_value();
    let inner = schema.as_object_mut().and_then(|schema| schema.remove("$defs"));
    let mut all = Map::new();
    for (name, mut definition) in
        inner.and_then(|defs| defs.as_object().cloned()).unwrap_or_default()
    {
        refer(&mut definition, method);
        name_alone(&mut definition);
        all.insert(format!("{method}.{name}"), definition);
    }
    refer(&mut schema, method);
    schema["properties"]["name"] = json!({ "const": method });
    all.insert(format!("method.{method}"), schema);
    all
}

/// References to definitions by their names in the whole schema.
fn refer(value: &mut Value, method: &str) {
    match value {
        Value::Object(entries) => {
            if let Some(Value::String(reference)) = entries.get_mut("$ref") {
                *reference = reference.replacen("#/$defs/", &format!("#/$defs/{method}."), 1);
            }
            entries.values_mut().for_each(|value| refer(value, method));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| refer(value, method)),
        _ => {}
    }
}

/// A rule that may be given with settings may also be given by its name alone.
fn name_alone(definition: &mut Value) {
    let Some(alternatives) = definition.get_mut("anyOf").and_then(Value::as_array_mut) else {
        return;
    };
    let rules = alternatives.iter().filter_map(|one| one["oneOf"].as_array()).flatten();
    let names: Vec<_> =
        rules.filter_map(|rule| rule.pointer("/properties/rule/const")).cloned().collect();
    if !names.is_empty() {
        alternatives.push(json!({ "enum": names, "description": "By a rule with its defaults." }));
    }
}

/// What may stand in a file: the preset has every key that is left out. So no key is required, and of several tables
/// more than one may fit.
fn file_form(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            if entries.contains_key("properties") {
                entries.remove("required");
            }
            if let Some(tables) = entries.get("oneOf").cloned()
                && tables[0].get("properties").is_some()
            {
                entries.remove("oneOf");
                entries.insert("anyOf".to_owned(), tables);
            }
            entries.remove("format"); // of Rust's numbers
            entries.values_mut().for_each(file_form);
        }
        Value::Array(items) => items.iter_mut().for_each(file_form),
        _ => {}
    }
}

/// The settings of the method that a file names; of the default one in a file that names none.
fn settings_of(method: &str) -> Value {
    let named = json!({ "properties": { "name": { "const": method } }, "required": ["name"] });
    let chosen = match method {
        DEFAULT => json!({ "anyOf": [named, { "not": { "required": ["name"] } }] }),
        _ => named,
    };
    json!({ "if": chosen, "then": { "$ref": format!("#/$defs/method.{method}") } })
}
