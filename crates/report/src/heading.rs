//! The settings that identify an experiment to a reader, and the order of rows.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use toml::{Table, Value};

/// Methods in the order of the paper's tables; all others follow.
const METHODS: [&str; 7] =
    ["supervised", "server-only", "fedcon", "fedavg-fixmatch", "fedmatch", "semifl", "fedanchor"];

/// Methods of earlier versions whose clients did not train on pseudo-labels; later records tell.
const WITHOUT_LABELS: [&str; 3] = ["supervised", "server-only", "fedcon"];

/// The settings that identify an experiment to a reader.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Heading {
    /// Name of the data set.
    pub data: String,
    /// Name of the model.
    pub model: String,
    /// Labelled images on the server.
    pub anchors: usize,
    /// How the other images are distributed over the clients.
    pub partition: Partition,
    /// Name of the method.
    pub method: String,
    /// Name of the preset.
    pub preset: String,
}

/// How images are distributed over the clients, as in a config.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Partition {
    /// Evenly.
    Iid,
    /// A mixture of classes per client.
    Lda {
        /// Concentration: small is skewed.
        alpha: f64,
    },
    /// A mixture of clients per class.
    Dirichlet {
        /// Concentration: small is skewed.
        alpha: f64,
    },
    /// A fixed number of classes per client.
    Classes {
        /// Classes per client.
        per_client: usize,
    },
}

impl Heading {
    /// The heading of a resolved config; the error names the key.
    pub(crate) fn of(config: &Table) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Config {
            preset: String,
            data: Data,
            partition: Partition,
            model: Named,
            method: Named,
        }
        #[derive(Deserialize)]
        struct Data {
            name: String,
            anchors: usize,
        }
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let read: Config =
            serde_path_to_error::deserialize(Value::Table(config.clone())).map_err(|error| {
                match error.path().to_string().as_str() {
                    "." => error.inner().message().to_owned(),
                    key => format!("{key}: {}", error.inner().message()),
                }
            })?;
        Ok(Self {
            data: read.data.name,
            model: read.model.name,
            anchors: read.data.anchors,
            partition: read.partition,
            method: read.method.name,
            preset: read.preset,
        })
    }

    /// Compares two headings by the order of rows.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        (&self.data, &self.model, self.anchors)
            .cmp(&(&other.data, &other.model, other.anchors))
            .then_with(|| self.partition.order(&other.partition))
            .then_with(|| self.style().cmp(&other.style()))
            .then_with(|| (&self.method, &self.preset).cmp(&(&other.method, &other.preset)))
    }

    /// Whether its clients trained on pseudo-labels, in records of earlier versions.
    pub(crate) fn had_labels(&self) -> bool {
        !WITHOUT_LABELS.contains(&self.method.as_str())
    }

    /// The colour and dash pattern of its method: the same in every figure in which a method is shown once.
    pub(crate) fn style(&self) -> usize {
        METHODS.iter().position(|name| *name == self.method).unwrap_or(METHODS.len())
    }

    /// Whether two experiments share a task, so that their methods can be compared.
    pub(crate) fn same_task(&self, other: &Self) -> bool {
        (&self.data, &self.model, self.anchors, self.partition)
            == (&other.data, &other.model, other.anchors, other.partition)
    }
}

impl Partition {
    /// By kind, the most even first, as in the paper's tables.
    fn order(&self, other: &Self) -> Ordering {
        let place = |partition: &Self| match *partition {
            Self::Iid => (0, 0.0),
            Self::Lda { alpha } => (1, alpha),
            Self::Dirichlet { alpha } => (2, alpha),
            Self::Classes { per_client } => (3, per_client as f64),
        };
        let ((kind, even), (other_kind, other_even)) = (place(self), place(other));
        kind.cmp(&other_kind).then(other_even.total_cmp(&even))
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Iid => f.write_str("IID"),
            Self::Lda { alpha } => write!(f, "LDA {}", short(*alpha)),
            Self::Dirichlet { alpha } => write!(f, "Dirichlet {}", short(*alpha)),
            Self::Classes { per_client: 1 } => f.write_str("1 class"),
            Self::Classes { per_client } => write!(f, "{per_client} classes"),
        }
    }
}

/// `1000` and `0.1`, but `1e-300` rather than three hundred zeros.
fn short(alpha: f64) -> String {
    if (1e-4..1e7).contains(&alpha) { alpha.to_string() } else { format!("{alpha:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heading(anchors: usize, partition: Partition, method: &str) -> Heading {
        let [data, model, preset] = ["cifar10", "small", "paper"].map(str::to_owned);
        Heading { data, model, anchors, partition, method: method.to_owned(), preset }
    }

    #[test]
    fn partitions_have_short_names() {
        let shown = |partition: Partition| partition.to_string();
        assert_eq!(shown(Partition::Iid), "IID");
        assert_eq!(shown(Partition::Lda { alpha: 1000.0 }), "LDA 1000");
        assert_eq!(shown(Partition::Lda { alpha: 0.1 }), "LDA 0.1");
        assert_eq!(shown(Partition::Dirichlet { alpha: 0.1 }), "Dirichlet 0.1");
        assert_eq!(shown(Partition::Dirichlet { alpha: 1e-300 }), "Dirichlet 1e-300");
        assert_eq!(shown(Partition::Classes { per_client: 2 }), "2 classes");
        assert_eq!(shown(Partition::Classes { per_client: 1 }), "1 class");
    }

    #[test]
    fn headings_sort_in_the_order_of_the_papers_tables() {
        let even = Partition::Lda { alpha: 1000.0 };
        let skewed = Partition::Lda { alpha: 0.1 };
        let wanted = [
            heading(250, even, "fedanchor"),
            heading(5000, Partition::Iid, "fedanchor"),
            heading(5000, even, "supervised"),
            heading(5000, even, "server-only"),
            heading(5000, even, "fedcon"),
            heading(5000, even, "fedavg-fixmatch"),
            heading(5000, even, "fedmatch"),
            heading(5000, even, "semifl"),
            heading(5000, even, "fedanchor"),
            heading(5000, even, "a-new-one"),
            heading(5000, skewed, "supervised"),
            heading(5000, Partition::Dirichlet { alpha: 0.3 }, "supervised"),
            heading(5000, Partition::Dirichlet { alpha: 0.1 }, "supervised"),
            heading(5000, Partition::Classes { per_client: 2 }, "supervised"),
        ];
        let mut sorted = wanted.clone();
        sorted.reverse();
        sorted.sort_by(Heading::order);
        assert_eq!(sorted, wanted);
    }

    #[test]
    fn a_missing_or_unknown_key_is_named() {
        let problem = |text: &str| Heading::of(&text.parse().unwrap()).unwrap_err();
        assert_eq!(problem("seed = 1"), "missing field `preset`");
        let start = "preset = \"paper\"\n[data]\nanchors = 5";
        assert_eq!(problem(start), "data: missing field `name`");
        let kind = format!("{start}\nname = \"x\"\n[partition]\nkind = \"sorted\"");
        let unknown = problem(&kind);
        assert!(unknown.starts_with("partition.kind: unknown variant `sorted`"), "{unknown}");
    }
}
