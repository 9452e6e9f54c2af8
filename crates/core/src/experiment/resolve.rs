//! Layers of TOML become one checked [`Experiment`]: the preset, its `[methods.NAME]`, the experiment file, and
//! `--set`, each over the one before.

use super::layers::{
    check_length, check_removed, defaults_in, lay_over, merge, name_of, preset_of, take_table,
};
use crate::config::{Experiment, ModelConfig, read};
use crate::error::{Error, Result};
use crate::methods::{self, Method};
use fedanchor_data::InputFormat;
use fedanchor_engine::model::Network;
use fedanchor_engine::trunk::names_a_file;
use fedanchor_record::with_current_keys;
use serde::Serialize;
use std::path::Path;
use toml::{Table, Value};

/// An experiment, and what the user should know about how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The experiment.
    pub experiment: Experiment,
    /// Settings that have no effect.
    pub notes: Vec<String>,
}

/// Preset < the text of an experiment file < `key=value` settings; then parsed and checked.
pub fn resolve(file: &str, settings: &[String]) -> Result<Experiment> {
    Ok(resolve_file(file, Path::new(""), settings)?.experiment)
}

/// [`resolve_file`] for the config of a run folder, which may have keys of earlier versions.
pub fn resolve_stored(config: &str, settings: &[String]) -> Result<Resolved> {
    match config.parse() {
        Ok(table) => resolve_file(&with_current_keys(table).to_string(), Path::new(""), settings),
        Err(_) => resolve_file(config, Path::new(""), settings), // which says what is wrong
    }
}

impl Experiment {
    /// An experiment from values that a program sets: a table (`toml::toml!`), or anything else that serde writes as one.
    /// The preset fills in the rest.
    pub fn from_values(values: impl Serialize) -> Result<Self> {
        let values = Table::try_from(values);
        checked(values.map_err(|error| Error::config("the experiment", error.to_string()))?)
    }
}

fn checked(values: Table) -> Result<Experiment> {
    let (mut experiment, method) = assemble(values)?;
    method.check(&experiment)?;
    if let Some(loss) = &mut experiment.client.loss {
        loss.identify();
    }
    Ok(experiment)
}

/// Keys that name files.
const FILES: [&[&str]; 4] =
    [&["data", "path"], &["model", "init_from"], &["model", "trunk"], &["client", "loss", "file"]];

/// [`resolve`] for the text of a file in `folder`, to which the files that it names are relative; those of a setting
/// are relative to the working directory.
pub fn resolve_file(file: &str, folder: &Path, settings: &[String]) -> Result<Resolved> {
    check_length("the experiment file", file)?;
    let mut given: Table = file.parse().map_err(|error: toml::de::Error| {
        Error::config("the experiment file", error.to_string().trim_end())
    })?;
    let mut set = Table::new();
    for setting in settings {
        merge(&mut set, parse_setting(setting)?, "")?;
    }
    for keys in FILES {
        let (first, below) = (given.get_mut(keys[0]), &keys[1..]);
        let value = below.iter().fold(first, |value, key| value?.get_mut(key));
        if let Some(Value::String(path)) = value
            && (!keys.contains(&"trunk") || names_a_file(path))
        {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
    }
    let notes = lay_over(&mut given, set)?.into_iter().collect();
    Ok(Resolved { experiment: checked(given)?, notes })
}

/// What is given over its preset, parsed and checked, and the method.
pub(super) fn assemble(given: Table) -> Result<(Experiment, Box<dyn Method>)> {
    check_removed(&given)?;
    let mut preset = preset_of(&given)?;
    // Where pictures pass a trunk, a preset has other values.
    let mut trunk = take_table(&mut preset, "trunk");
    let mut methods_on_trunk = take_table(&mut trunk, "methods");
    let has_trunk = name_of(&given, "model", "trunk")?.is_some();
    // And others again where the trunk is trained, in small steps from where it was pretrained.
    let unfreezes = name_of(&given, "model", "unfreeze")?.is_some_and(|what| what != "none");
    let fine_tuned = take_table(&mut preset, "fine-tuned");
    if has_trunk {
        merge(&mut preset, trunk, "")?;
    }
    if has_trunk && unfreezes {
        merge(&mut preset, fine_tuned, "")?;
        merge(&mut preset, network_of(&given)?, "")?;
    }
    let private = take_table(&mut preset, "private");
    if given.contains_key("privacy") {
        merge(&mut preset, private, "")?;
    }
    let partition = name_of(&given, "partition", "kind")?;
    let partition = partition.or(name_of(&preset, "partition", "kind")?).unwrap_or_default();
    let partitions = take_table(&mut preset, "partitions");
    let known: Vec<&str> = partitions.keys().map(String::as_str).collect();
    let Some(Value::Table(mut scheme)) = partitions.get(&partition).cloned() else {
        let problem = format!("unknown kind `{partition}`; expected one of {}", known.join(", "));
        return Err(Error::config("partition.kind", problem));
    };
    scheme.insert("kind".to_owned(), Value::String(partition));
    preset.insert("partition".to_owned(), Value::Table(scheme));

    // Methods have different keys: a method's defaults wait until the layers have settled which one it is.
    let method = name_of(&given, "method", "name")?;
    let method = method.or(name_of(&preset, "method", "name")?).unwrap_or_default();
    let (registration, mut defaults) = defaults_in(&mut preset, &method)?;
    if has_trunk {
        merge(&mut defaults, take_table(&mut methods_on_trunk, &method), "method")?;
    }
    preset.insert("method".to_owned(), Value::Table(defaults));
    let beside = Table::from_iter(preset.remove_entry("thresholds"));
    let margin = take_table(&mut preset, "anchor_margins").remove(&method);
    if let (Some(margin), Some(Value::Table(checks))) = (margin, preset.get_mut("checks")) {
        checks.insert("anchor_margin".to_owned(), margin);
    }

    let mut table = preset;
    merge(&mut table, given, "")?;
    let mut settings = take_table(&mut table, "method");
    settings.remove("name");
    (registration.expand)(&mut settings, &beside)?;
    let built = (registration.build)(&settings)?;
    settings.insert("name".to_owned(), Value::String(method));
    table.insert("method".to_owned(), Value::Table(settings));

    // Half precision is what a GPU is fast in, and slow on most CPUs.
    let on_gpu = table.get("device").and_then(Value::as_str).is_some_and(|d| d.starts_with("cuda"));
    let precision = if on_gpu { "bf16" } else { "f32" };
    table.entry("precision").or_insert_with(|| Value::String(precision.to_owned()));
    let mut experiment: Experiment = read("", table)?;
    experiment.check()?;
    experiment.choose_server_batch();
    Ok((experiment, built))
}

/// The network of the trunk: a name is that of the network, too, and a file without such a name has torchvision's weights
/// of ResNet-18. Another network is found when the file is read.
fn network_of(given: &Table) -> Result<Table> {
    let trunk = name_of(given, "model", "trunk")?.unwrap_or_default();
    let stem = Path::new(&trunk).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let is_known = fedanchor_engine::model::check(&ModelConfig::plain(&stem)).is_ok();
    let name = if is_known { stem } else { "resnet18".to_owned() };
    let stem = if name == "resnet18" { "imagenet" } else { "cifar" };
    let model = [("name", name), ("stem", stem.to_owned())];
    let model = model.map(|(key, value)| (key.to_owned(), Value::String(value)));
    Ok(Table::from_iter([("model".to_owned(), Value::Table(Table::from_iter(model)))]))
}

/// The experiment with every choice written down that is left to the data or the model, checked against both.
pub fn settle(
    experiment: &Experiment,
    format: impl Into<InputFormat>,
    classes: usize,
    flip: bool,
) -> Result<Experiment> {
    let mut experiment = experiment.clone();
    let method = methods::build(&experiment.method)?;
    let shape = format.into().network();
    let network = Network::new(&experiment.model, method.properties().heads, shape, classes)?;
    experiment.augment.flip = Some(experiment.augment.flip.unwrap_or(flip));
    experiment.model.latent_stage = Some(network.latent_stage);
    experiment.count_anchors(experiment.data.anchors);
    experiment.method.settings = method.settle(&experiment, classes)?;
    Ok(experiment)
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
        .or_else(|error| if value.parse::<f64>().is_ok() { Err(error) } else { quoted().parse() })
        .map_err(|_| Error::config(key, format!("cannot read `{value}` as a value")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ChecksConfig, Weights};
    use crate::config::{LrSchedule, Precision};
    use crate::experiment::PRESETS;
    use crate::labels::{LatentSource, Threshold};
    use crate::methods::fedanchor::FedAnchorConfig;
    use fedanchor_data::partition::Scheme;

    fn resolved(settings: &[&str]) -> Result<Experiment> {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        resolve("", &settings)
    }

    fn fedanchor(experiment: &Experiment) -> FedAnchorConfig {
        assert_eq!(experiment.method.name, "fedanchor");
        methods::read_settings(&experiment.method.settings).unwrap()
    }

    fn problem(file: &str, settings: &[&str]) -> String {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        resolve(file, &settings).unwrap_err().to_string()
    }

    /// Also a fleet's: whoever names no preset has hostile clients limited.
    #[test]
    fn an_empty_file_is_preset_best() {
        let empty = resolve("", &[]).unwrap();
        assert_eq!(empty, resolve("preset = \"best\"", &[]).unwrap());
        assert_eq!(empty.aggregation.rule, "clipped-mean".into());
        assert_eq!(empty.aggregation.weights, Weights::Uniform);
        let checks = &empty.checks;
        assert!(checks.distance > 0.0 && checks.clip > 0.0 && checks.anchor_margin > 0.0);
    }

    #[test]
    fn preset_paper_limits_no_honest_client() {
        for method in methods::names() {
            let name = format!("method.name={method}");
            let experiment = resolve("preset = \"paper\"", &[name]).unwrap();
            let ChecksConfig { distance, clip, anchor_margin, .. } = experiment.checks;
            assert_eq!([distance, clip, anchor_margin], [0.0; 3], "{method}");
            assert_eq!(experiment.aggregation.rule, "mean".into());
            assert_eq!(experiment.aggregation.weights, Weights::Samples);
        }
    }

    #[test]
    fn preset_paper_is_the_papers_recipe() {
        let experiment = resolve("preset = \"paper\"", &[]).unwrap();
        assert_eq!((experiment.rounds, experiment.client.batch), (500, 10));
        assert_eq!(experiment.partition, Scheme::Lda { alpha: 1000.0 });
        let method = fedanchor(&experiment);
        assert_eq!(method.threshold, Threshold::Fixed(0.6));
        assert_eq!(method.contrastive.temperature, 0.1);
        let built = methods::build(&experiment.method).unwrap();
        assert_eq!(built.properties().latents, LatentSource::Anchor);
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
        assert_eq!(margin(&["preset=paper"]), 0.0);
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
        for (preset, _) in PRESETS {
            for method in methods::names() {
                let name = format!("method.name={method}");
                let first = resolve(&format!("preset = \"{preset}\""), &[name]).unwrap();
                assert_eq!(first.method.name, method);
                let text = toml::to_string(&first).unwrap();
                assert_eq!(resolve(&text, &[]).unwrap(), first, "{preset} {method}");
            }
        }
        for rule in ["anchor-relative", "rising", "client-mean", "softmatch", "quantile"] {
            let first = resolve("", &[format!("method.threshold={rule}")]).unwrap();
            assert!(matches!(fedanchor(&first).threshold, Threshold::Rule(_)), "{rule}");
            assert_eq!(resolve(&toml::to_string(&first).unwrap(), &[]).unwrap(), first, "{rule}");
        }
    }

    #[test]
    fn a_rule_replaces_the_files_threshold() {
        let settings = ["method.threshold=quantile".to_owned()];
        let quantile = fedanchor(&resolve("[method]\nthreshold = 0.7", &settings).unwrap());
        let rule = toml::toml! { rule = "quantile"
        from = 0.3
        to = 0.9 };
        assert_eq!(quantile.threshold, Threshold::Rule(rule));
    }

    #[test]
    fn a_path_is_relative_to_where_it_is_written() {
        let path = |file: &str, settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
            resolve_file(file, Path::new("my/files"), &settings).unwrap().experiment.data.path
        };
        let file = "data.path = \"../pets\"";
        assert_eq!(path(file, &[]), Some("my/files/../pets".into()));
        assert_eq!(path(file, &["data.path=pets"]), Some("pets".into()));
        assert_eq!(path("data.path = \"/pets\"", &[]), Some("/pets".into()));
        assert_eq!(path("", &[]), None);
        let file = "model = { name = \"resnet18\", init_from = \"a.safetensors\" }";
        let found = resolve_file(file, Path::new("my/files"), &[]).unwrap().experiment;
        assert_eq!(found.model.init_from, Some("my/files/a.safetensors".into()));
        let file = "client.loss.file = \"prox.loss\"";
        let found = resolve_file(file, Path::new("my/files"), &[]).unwrap().experiment;
        assert_eq!(found.client.loss.unwrap().file, Path::new("my/files/prox.loss"));
    }

    #[test]
    fn a_trunk_changes_what_the_preset_says() {
        let of = |settings: &[&str]| resolved(settings).unwrap();
        let trunk = "model.trunk=efficientnet-lite0";
        let experiment = of(&[trunk]);
        assert_eq!((&*experiment.model.name, experiment.rounds), ("adapter", 30));
        let Threshold::Rule(rule) = fedanchor(&experiment).threshold else { panic!("a rule") };
        assert_eq!(rule["rule"].as_str(), Some("softmatch"));
        assert_eq!(of(&[trunk, "preset=paper"]).model.name, "adapter");
        assert_eq!(of(&[trunk, "rounds=7", "method.threshold=0.5"]).rounds, 7);
        assert_ne!(of(&[]).model.name, "adapter");
        let path = |trunk: &str| {
            let file = format!("model.trunk = \"{trunk}\"");
            resolve_file(&file, Path::new("my/files"), &[]).unwrap().experiment.model.trunk
        };
        assert_eq!(path("encoder.pt").as_deref(), Some("my/files/encoder.pt"));
        assert_eq!(path("efficientnet-lite0").as_deref(), Some("efficientnet-lite0"));
    }

    #[test]
    fn mistakes_are_named() {
        for (file, settings, expected) in [
            (
                "preset = \"x\"",
                &[][..],
                "preset: unknown preset `x`; expected one of paper, best, semifl",
            ),
            ("preset = 3", &[], "preset: expected a name, got 3"),
            // A key of earlier versions.
            (
                "[method]\nname = \"x\"",
                &[],
                "method.name: unknown method `x`; expected one of fedanchor",
            ),
            ("", &["method.name=-1"], "method.name: expected a name, got -1"),
            (
                "",
                &["aggregation.weight_limit=3"],
                "aggregation.weight_limit: was removed: delete it",
            ),
            ("", &["client.bacth=3"], "bacth: unknown key"),
            ("", &["client.batch=x"], "client.batch: expected a non-negative integer, got \"x\""),
            ("", &["method.mixup.alpha=x"], "method.mixup.alpha: expected a number, got \"x\""),
            ("", &["method.x=1"], "method.x: unknown key"),
            ("", &["rounds"], "rounds: expected key=value"),
            ("", &["=1"], "expected key=value"),
            ("", &["partition.kind=iid", "partition.alpha=1"], "alpha"),
            (
                "",
                &["partition.kind=x"],
                "partition.kind: unknown kind `x`; expected one of classes",
            ),
            ("", &["partition.alpha=x"], "partition.alpha: expected a number, got \"x\""),
            ("rounds = ", &[], "line 1"),
            ("client = 3", &[], "client: expected a table"),
            ("", &["aggregation=median"], "aggregation: expected a table"),
            // A method's own words about the other settings.
            (
                "",
                &["method.name=fedmatch", "checks.anchor_margin=5"],
                "checks.anchor_margin: must be 0",
            ),
            (
                "",
                &["method.name=fedmatch", "aggregation.rule=fltrust"],
                "aggregation.rule: method fedmatch",
            ),
        ] {
            let found = problem(file, settings);
            assert!(found.contains(expected), "{file} {settings:?}: {found}");
        }
    }

    /// `[aggregation]` has a key `rule` too, and is no choice: its other keys stay.
    #[test]
    fn a_section_keeps_its_other_keys() {
        let file = "[aggregation]\nrule = \"median\"\nweights = \"kept\"";
        let first = resolve(file, &["aggregation.rule=multi-krum".to_owned()]).unwrap();
        let config = &first.aggregation;
        assert_eq!(config.rule, "multi-krum".into());
        assert_eq!((config.hostile, config.weights), (0.3, crate::config::Weights::Kept));
    }

    #[test]
    fn the_learning_rate_follows_the_schedule() {
        let experiment =
            resolved(&["rounds=4", "optimiser.lr=1", "optimiser.schedule=cosine"]).unwrap();
        assert_eq!(experiment.optimiser.schedule, LrSchedule::Cosine);
        let rates = [1, 2, 3, 4].map(|round| (experiment.lr(round) * 1e6).round() / 1e6);
        assert_eq!(rates, [1.0, 0.853553, 0.5, 0.146447]); // half a cosine, from 1 towards 0
        assert_eq!([1, 4].map(|round| experiment.progress(round)), [0.0, 1.0]);
        let constant = resolved(&["rounds=1", "optimiser.lr=0.5"]).unwrap();
        assert_eq!((constant.lr(1), constant.lr(9), constant.progress(1)), (0.5, 0.5, 0.0));
    }
}
