//! Whether two configs are the same experiment.

use super::schema::dotted;
use fedanchor_record::KeyRole;
use toml::{Table, Value};

/// A key in which two configs differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// Its value in the first config, as TOML.
    pub there: Option<String>,
    /// Its value in the second config.
    pub now: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{} (there {}, now {})", self.key, text(&self.there), text(&self.now))
    }
}

/// The keys in which two configs learn differently. More rounds and another GPU are no difference.
pub fn differences(there: &Table, now: &Table) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(there, now, "", &mut found);
    found
}

fn compare(there: &Table, now: &Table, path: &str, out: &mut Vec<Difference>) {
    let keys: std::collections::BTreeSet<&String> = there.keys().chain(now.keys()).collect();
    for key in keys {
        let name = dotted(path, key);
        if KeyRole::of(&name) == KeyRole::Neutral {
            continue;
        }
        match (there.get(key), now.get(key)) {
            (Some(Value::Table(there)), Some(Value::Table(now))) => compare(there, now, &name, out),
            (Some(Value::Integer(there)), Some(Value::Integer(now)))
                if name == "rounds" && now >= there => {}
            (Some(Value::String(there)), Some(Value::String(now)))
                if name == "device" && there.starts_with("cuda") && now.starts_with("cuda") => {}
            (there, now) if there == now => {}
            (there, now) => {
                let text = |value: Option<&Value>| value.map(Value::to_string);
                out.push(Difference { key: name, there: text(there), now: text(now) });
            }
        }
    }
}

/// A hash of everything in which [`differences`] would see a difference.
pub fn fingerprint(settled: &Table) -> String {
    let mut table = relevant(settled, "");
    table.remove("rounds");
    if let Some(Value::String(device)) = table.get_mut("device") {
        device.truncate("cuda".len());
    }
    blake3::hash(table.to_string().as_bytes()).to_hex().to_string()
}

fn relevant(table: &Table, path: &str) -> Table {
    let kept = table.iter().filter_map(|(key, value)| {
        let name = dotted(path, key);
        let value = match value {
            Value::Table(inner) => Value::Table(relevant(inner, &name)),
            value => value.clone(),
        };
        (KeyRole::of(&name) != KeyRole::Neutral).then_some((key.clone(), value))
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    #[test]
    fn only_what_changes_learning_is_a_difference() {
        let there = table(
            "rounds = 5\ndevice = \"cuda:0\"\ncompare = true\n[data]\npath = \"a\"\nanchors = 5\n\
             [checkpoint]\nevery = 1",
        );
        let same = table(
            "rounds = 9\ndevice = \"cuda:1\"\n[data]\nanchors = 5\n[checkpoint]\nevery = 2\nbest = true",
        );
        assert_eq!(differences(&there, &same), []);
        assert_eq!(fingerprint(&there), fingerprint(&same));
        let other = table("rounds = 4\ndevice = \"cpu\"\n[data]\nanchors = 6\n[method]\nx = 1");
        let found: Vec<String> =
            differences(&there, &other).iter().map(|other| other.to_string()).collect();
        assert_eq!(
            found,
            [
                "data.anchors (there 5, now 6)",
                "device (there \"cuda:0\", now \"cpu\")",
                "method (there not set, now { x = 1 })",
                "rounds (there 5, now 4)"
            ]
        );
        assert_ne!(fingerprint(&there), fingerprint(&other));
    }
}
