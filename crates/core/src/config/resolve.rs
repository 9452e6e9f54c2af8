//! Layers of TOML become one checked [`Experiment`].

use super::{
    Experiment, FedAnchorConfig, FedConConfig, FedMatchConfig, FixMatchConfig, SemiFlConfig,
    ServerOnlyConfig, SupervisedConfig, ThresholdRule,
};
use crate::error::{Error, Result};
use toml::{Table, Value};

/// The presets: what each changes, in the order they are laid over one another.
pub const PRESETS: [(&str, &[&str]); 2] = [
    ("paper", &[include_str!("paper.toml")]),
    ("semifl", &[include_str!("paper.toml"), include_str!("semifl.toml")]),
];

/// The method where none is named, as in `paper.toml`.
const DEFAULT_METHOD: &str = "fedanchor";

/// Preset < the experiment file's text < `key=value` settings; then parsed and checked.
pub fn resolve(file: &str, settings: &[String]) -> Result<Experiment> {
    check_length("the experiment file", file)?;
    let mut given: Table = file.parse().map_err(|error: toml::de::Error| {
        Error::config("the experiment file", error.to_string().trim_end())
    })?;
    let mut set = Table::new();
    for setting in settings {
        merge(&mut set, parse_setting(setting)?, "")?;
    }
    // What a file says of its method says nothing of another.
    let named = |table: &Table| table.get("method")?.get("name")?.as_str().map(str::to_owned);
    if let Some(other) = named(&set)
        && other != named(&given).as_deref().unwrap_or(DEFAULT_METHOD)
    {
        given.remove("method");
    }
    merge(&mut given, set, "")?;
    let preset = match given.get("preset") {
        None => "paper",
        Some(Value::String(name)) => name,
        Some(other) => {
            return Err(Error::config("preset", format!("expected a name, found {other}")));
        }
    };
    let Some((_, layers)) = PRESETS.iter().find(|(name, _)| *name == preset) else {
        let known: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        let problem = format!("unknown preset `{preset}`, known are {}", known.join(", "));
        return Err(Error::config("preset", problem));
    };
    let mut table = Table::new();
    for layer in *layers {
        let layer = layer.parse().map_err(|e| Error::config("preset", format!("{preset}: {e}")))?;
        merge(&mut table, layer, "")?;
    }
    // Each method and each kind of partition has keys of its own: its defaults come from the
    // preset's list once the layers have settled which one it is.
    choose(&mut table, &given, "method", "name", "methods")?;
    choose(&mut table, &given, "partition", "kind", "partitions")?;
    let rules = table.remove("thresholds");
    merge(&mut table, given, "")?;
    name_threshold(&mut table, rules.as_ref().and_then(Value::as_table))?;
    // Half precision is what a GPU is fast in, and slow on most CPUs.
    let on_gpu = table.get("device").and_then(Value::as_str).is_some_and(|d| d.starts_with("cuda"));
    let precision = if on_gpu { "bf16" } else { "f32" };
    table.entry("precision").or_insert_with(|| Value::String(precision.to_owned()));
    // Clean rounds of the other methods swing too much on the anchors to tell a hostile one by that.
    let by_anchors = named(&table).as_deref() == Some(DEFAULT_METHOD);
    if let Some(Value::Table(checks)) = table.get_mut("checks") {
        let margin = if by_anchors { 30.0 } else { 0.0 };
        checks.entry("anchor_margin").or_insert(Value::Float(margin));
    }
    if let Some(Value::Table(method)) = table.get("method") {
        check_method(method.clone())?;
    }
    let experiment: Experiment = serde_path_to_error::deserialize(Value::Table(table))
        .map_err(|error| Error::config(error.path().to_string(), error.inner().message()))?;
    experiment.check()?;
    Ok(experiment)
}

/// Settings are read into some hundred times their size.
pub(super) fn check_length(what: &str, text: &str) -> Result<()> {
    const MOST: usize = 1 << 20;
    match text.len() {
        length if length > MOST => {
            Err(Error::config(what, format!("has {length} bytes; at most {MOST} are allowed")))
        }
        _ => Ok(()),
    }
}

/// Replaces `table.section` by the listed defaults of what `section.key` names.
fn choose(table: &mut Table, given: &Table, section: &str, key: &str, list: &str) -> Result<()> {
    let named = |table: &Table| table.get(section)?.get(key)?.as_str().map(str::to_owned);
    let choices = match table.remove(list) {
        Some(Value::Table(choices)) => choices,
        _ => Table::new(),
    };
    let name = named(given).or_else(|| named(table)).unwrap_or_default();
    let Some(Value::Table(mut defaults)) = choices.get(&name).cloned() else {
        let known: Vec<&str> = choices.keys().map(String::as_str).collect();
        let problem = format!("unknown name `{name}`, known are {}", known.join(", "));
        return Err(Error::config(format!("{section}.{key}"), problem));
    };
    defaults.insert(key.to_owned(), Value::String(name));
    table.insert(section.to_owned(), Value::Table(defaults));
    Ok(())
}

/// Fills in the rule of a threshold that is not a number: the word alone, or a table with some keys.
fn name_threshold(table: &mut Table, rules: Option<&Table>) -> Result<()> {
    let Some(Value::Table(method)) = table.get_mut("method") else { return Ok(()) };
    let fedanchor = method.get("name").and_then(Value::as_str) == Some("fedanchor");
    let mut given = match method.get("threshold") {
        Some(Value::String(rule)) if fedanchor => {
            Table::from_iter([("rule".to_owned(), Value::String(rule.clone()))])
        }
        Some(Value::Table(table)) if fedanchor => table.clone(),
        _ => return Ok(()),
    };
    let rule = given.remove("rule").as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    let rules = rules.cloned().unwrap_or_default();
    let Some(Value::Table(mut settings)) = rules.get(&rule).cloned() else {
        let known: Vec<&str> = rules.keys().map(String::as_str).collect();
        let problem = format!("`{rule}` is no rule; a number, or one of {}", known.join(", "));
        return Err(Error::config("method.threshold", problem));
    };
    merge(&mut settings, given, "method.threshold")?;
    settings.insert("rule".to_owned(), Value::String(rule));
    let read: std::result::Result<ThresholdRule, _> = Value::Table(settings.clone())
        .try_into()
        .map_err(|error: toml::de::Error| Error::config("method.threshold", error.message()));
    read?;
    method.insert("threshold".to_owned(), Value::Table(settings));
    Ok(())
}

/// Reads a method's settings by themselves: an error in a tagged enum does not know its key.
fn check_method(mut settings: Table) -> Result<()> {
    let name = settings.remove("name");
    let settings = Value::Table(settings);
    match name.as_ref().and_then(Value::as_str).unwrap_or_default() {
        "fedanchor" => read::<FedAnchorConfig>(settings),
        "semifl" => read::<SemiFlConfig>(settings),
        "fedavg-fixmatch" => read::<FixMatchConfig>(settings),
        "fedcon" => read::<FedConConfig>(settings),
        "fedmatch" => read::<FedMatchConfig>(settings),
        "supervised" => read::<SupervisedConfig>(settings),
        _ => read::<ServerOnlyConfig>(settings),
    }
}

fn read<T: serde::de::DeserializeOwned>(settings: Value) -> Result<()> {
    let path = |error: serde_path_to_error::Error<toml::de::Error>| {
        Error::config(format!("method.{}", error.path()), error.inner().message())
    };
    serde_path_to_error::deserialize::<_, T>(settings).map(drop).map_err(path)
}

/// `a.b=value`: the value is TOML; a bare word is a string.
fn parse_setting(setting: &str) -> Result<Table> {
    let Some((key, value)) = setting.split_once('=').filter(|(key, _)| !key.trim().is_empty())
    else {
        return Err(Error::config(
            setting,
            "expected key=value, for example --set client.batch=32",
        ));
    };
    let (key, value) = (key.trim(), value.trim());
    let quoted = || format!("{key} = \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
    format!("{key} = {value}")
        .parse()
        .or_else(|_| quoted().parse())
        .map_err(|_| Error::config(key, format!("cannot read `{value}` as a value")))
}

/// Lays `over` on `base`: tables key by key, everything else replaced.
fn merge(base: &mut Table, over: Table, path: &str) -> Result<()> {
    for (key, value) in over {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (base.get_mut(&key), value) {
            // Another rule has other keys; a rule named by a word alone is a table with that rule.
            (Some(base), Value::Table(over)) if path == "method.threshold" => match base {
                Value::Table(base) if !over.contains_key("rule") => base.extend(over),
                Value::String(rule) if !over.contains_key("rule") => {
                    let rule = Value::String(rule.clone());
                    *base =
                        Value::Table(over.into_iter().chain([("rule".to_owned(), rule)]).collect());
                }
                base => *base = Value::Table(over),
            },
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over, &path)?,
            (Some(Value::Table(_)), other) if path != "method.threshold" => {
                return Err(Error::config(
                    path,
                    format!("expected a table of keys, found {other}"),
                ));
            }
            // `alpha = 1` is as good as `alpha = 1.0`.
            (Some(Value::Float(base)), Value::Integer(over)) => *base = over as f64,
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    fn problem(file: &str, settings: &[&str]) -> String {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        resolve(file, &settings).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_is_the_paper_preset() {
        let experiment = resolve("", &[]).unwrap();
        assert_eq!((experiment.rounds, experiment.client.batch), (500, 10));
        assert_eq!(experiment.partition, Scheme::Lda { alpha: 1000.0 });
        let MethodConfig::Fedanchor(method) = experiment.method else { panic!() };
        assert_eq!(method.threshold, Threshold::Fixed(0.6));
        assert_eq!(method.contrastive.temperature, 0.1);
        assert_eq!(method.latent_source(), LatentSource::Anchor);
    }

    #[test]
    fn a_gpu_computes_in_half_precision_unless_told_otherwise() {
        let precision = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
            resolve("", &settings).unwrap().precision
        };
        assert_eq!(precision(&[]), Precision::F32);
        assert_eq!(precision(&["device=cuda:0"]), Precision::Bf16);
        assert_eq!(precision(&["device=cuda:0", "precision=f32"]), Precision::F32);
    }

    #[test]
    fn rounds_are_rolled_back_where_clean_ones_are_steady() {
        let margin = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
            resolve("", &settings).unwrap().checks.anchor_margin
        };
        assert_eq!((margin(&[]), margin(&["method.name=semifl"])), (30.0, 0.0));
        assert_eq!(margin(&["checks.anchor_margin=5", "method.name=semifl"]), 5.0);
        assert_eq!(margin(&["checks.anchor_margin=0"]), 0.0);
    }

    #[test]
    fn later_layers_win() {
        let file = "preset = \"semifl\"\nrounds = 7\n[client]\nbatch = 32";
        let settings =
            ["client.batch=64", "data.name=svhn", "partition.alpha=1"].map(str::to_owned);
        let experiment = resolve(file, &settings).unwrap();
        assert_eq!((experiment.rounds, experiment.client.batch), (7, 64));
        assert_eq!(experiment.data.name, "svhn");
        assert_eq!(experiment.partition, Scheme::Dirichlet { alpha: 1.0 });
        assert!(experiment.optimiser.nesterov);
    }

    #[test]
    fn a_resolved_config_resolves_to_itself() {
        let methods = [
            "fedanchor",
            "semifl",
            "fedavg-fixmatch",
            "fedcon",
            "fedmatch",
            "supervised",
            "server-only",
        ];
        for (preset, _) in PRESETS {
            for method in methods {
                let name = format!("method.name={method}");
                let first = resolve(&format!("preset = \"{preset}\""), &[name]).unwrap();
                assert_eq!(first.method.name(), method);
                let text = toml::to_string(&first).unwrap();
                assert_eq!(resolve(&text, &[]).unwrap(), first, "{preset} {method}");
            }
        }
        for rule in ["anchor-relative", "client-mean", "softmatch", "quantile"] {
            let first = resolve("", &[format!("method.threshold={rule}")]).unwrap();
            let MethodConfig::Fedanchor(method) = &first.method else { panic!() };
            assert!(matches!(method.threshold, Threshold::Rule(_)), "{rule}");
            assert_eq!(resolve(&toml::to_string(&first).unwrap(), &[]).unwrap(), first, "{rule}");
        }
    }

    #[test]
    fn another_method_leaves_the_settings_of_the_files_method_behind() {
        let file = "[method]\nthreshold = 0.7\n[method.contrastive]\norder = \"first\"";
        let of = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
            resolve(file, &settings).unwrap().method
        };
        let MethodConfig::Semifl(method) = of(&["method.name=semifl"]) else { panic!() };
        assert_eq!(method.threshold, 0.95);
        let MethodConfig::Fedanchor(method) = of(&["method.name=fedanchor"]) else { panic!() };
        assert_eq!(method.threshold, Threshold::Fixed(0.7));
        let MethodConfig::Fedanchor(method) = of(&["method.threshold=quantile"]) else { panic!() };
        let rule = ThresholdRule::Quantile { from: 0.3, to: 0.9 };
        assert_eq!(method.threshold, Threshold::Rule(rule));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(problem("preset = \"x\"", &[]).contains("known are paper, semifl"));
        assert!(
            problem("[method]\nname = \"x\"", &[]).contains("known are fedanchor, fedavg-fixmatch")
        );
        assert!(problem("", &["client.bacth=3"]).contains("unknown field `bacth`"));
        assert!(problem("", &["method.mixup.alpha=x"]).starts_with("method.mixup.alpha: invalid"));
        assert!(problem("", &["method.x=1"]).contains("method.x: unknown field `x`"));
        assert!(problem("", &["rounds"]).contains("expected key=value"));
        assert!(problem("", &["=1"]).contains("expected key=value"));
        assert!(problem("", &["partition.kind=iid", "partition.alpha=1"]).contains("alpha"));
        assert!(problem("rounds = ", &[]).contains("line 1"));
        assert!(problem("client = 3", &[]).contains("client: expected a table"));
    }
}
