//! What clients minimise, written in PyTorch (`client.loss`): a function of one client's batch as TorchScript, as the
//! Python package saves it. libtorch's vmap adds the axis of clients, so that it trains a cohort as every loss here does, and
//! a captured step replays it.
//!
//! Its identity is the hash of its file. Running Python itself was rejected: its lock would be taken in every step, and a
//! node of a fleet would have to trust and install it.

use crate::config::{LARGEST_LOSS, LossConfig};
use crate::error::{Error, Result};
use crate::model::Network;
use fedanchor_cuda::vmap;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tch::{CModule, Device, IValue, Kind, TchError, Tensor, jit};

const FILE: &str = "client.loss.file";
const ARGUMENTS: &str = "client.loss.arguments";

/// What a loss may read, by the name of its argument; any other name is one of `client.loss.arguments`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// Of the fix view, `[batch, C]`.
    Logits,
    /// Pooled features of the fix view, `[batch, F]`.
    Features,
    /// The anchor head's output for the fix view, each of length 1: `[batch, D]`.
    Latents,
    /// `[batch]`.
    Labels,
    /// `[batch]`; 1 if the method gives samples no weights.
    SampleWeights,
    MixLogits,
    MixLabels,
    MixSampleWeights,
    /// The share of the fix sample in each mixture.
    MixLambda,
    /// All trained weights of the client, one after the other: `[P]`.
    Weights,
    /// The same of the model that the client was sent.
    SentWeights,
    /// What the model that the client was sent computes for the fix view, by its running statistics.
    SentLogits,
    SentFeatures,
    /// The number with this index among the objective's scalars, `[]`.
    Scalar(usize),
}

/// Names as authors write them.
const INPUTS: [(&str, Input); 13] = [
    ("logits", Input::Logits),
    ("features", Input::Features),
    ("latents", Input::Latents),
    ("labels", Input::Labels),
    ("sample_weights", Input::SampleWeights),
    ("mix_logits", Input::MixLogits),
    ("mix_labels", Input::MixLabels),
    ("mix_sample_weights", Input::MixSampleWeights),
    ("mix_lambda", Input::MixLambda),
    ("weights", Input::Weights),
    ("sent_weights", Input::SentWeights),
    ("sent_logits", Input::SentLogits),
    ("sent_features", Input::SentFeatures),
];
/// The argument whose value is the number of the round.
const ROUND: &str = "round";

/// A loss that was read from its file.
pub struct OwnLoss {
    module: CModule,
    /// The hash (blake3) of its file.
    pub hash: String,
    /// Names of its terms.
    pub terms: Vec<String>,
    pub(super) inputs: Vec<Input>,
    /// Values of its own arguments; none for the number of the round.
    scalars: Vec<Option<f32>>,
}

impl fmt::Debug for OwnLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the loss of {} ({})", self.terms.join(" and "), self.hash)
    }
}

impl OwnLoss {
    /// Reads the file of a loss, checks its hash and its arguments, and tries it on outputs of this network.
    pub(super) fn load(
        config: &LossConfig,
        network: &Network,
        classes: usize,
        device: Device,
    ) -> Result<Self> {
        let LossConfig { file, hash: expected, arguments } = config;
        let unread = |problem: &str| Error::config(FILE, format!("{}: {problem}", file.display()));
        let bytes =
            fedanchor_disk::read(file, LARGEST_LOSS).map_err(|error| unread(&error.to_string()))?;
        let hash = blake3::hash(&bytes).to_hex().to_string();
        if let Some(expected) = expected.as_ref().filter(|expected| **expected != hash) {
            let problem = format!(
                "{} has changed: expected the blake3 hash {expected}, found {hash}: restore the file, or start another run",
                file.display()
            );
            return Err(Error::config("client.loss.hash", problem));
        }
        // An optimised graph would be another one from call to call, and compile kernels of its own.
        jit::f_set_graph_executor_optimize(false)?;
        let (module, names, terms) = decode(&bytes).map_err(|problem| unread(&problem))?;
        let (inputs, scalars) = bind(&names, arguments)?;
        let loss = Self { module, hash, terms, inputs, scalars };
        loss.try_on(network, classes, device).map_err(|error| match error {
            Error::Config { .. } => error,
            other => unread(&in_short(&other.to_string())),
        })?;
        Ok(loss)
    }

    /// Computes values and gradients for two clients with random outputs: what a loss may not do is refused before a run.
    fn try_on(&self, network: &Network, classes: usize, device: Device) -> Result<()> {
        const CLIENTS: i64 = 2;
        const BATCH: i64 = 3;
        const WEIGHTS: i64 = 5;
        let latents = network.config.latent_dim as i64;
        if self.reads(&[Input::Latents]) && network.latents.is_none() {
            let problem = "the loss reads latents, but the method's network has no anchor head: read `features`";
            return Err(Error::config(FILE, problem));
        }
        let classes = classes as i64;
        // Some numbers between 0 and 1, the same each time: no generator of the process is touched.
        let some = |shape: &[i64]| -> Result<Tensor> {
            let count = shape.iter().product::<i64>();
            let numbers = Tensor::f_arange(count, (Kind::Float, device))?.f_sin()?.f_abs()?;
            Ok(numbers.f_reshape(shape)?)
        };
        let by_class = |numbers: i64| some(&[CLIENTS, BATCH, numbers]);
        let labels = || Tensor::f_arange(CLIENTS * BATCH, (Kind::Int64, device));
        let trained =
            [Input::Logits, Input::Features, Input::Latents, Input::MixLogits, Input::Weights];
        let mut tensors = Vec::new();
        for input in &self.inputs {
            let tensor = match input {
                Input::Scalar(_) => continue,
                Input::Logits | Input::MixLogits | Input::SentLogits => by_class(classes)?,
                Input::Features | Input::SentFeatures => by_class(network.features_width)?,
                Input::Latents => by_class(latents)?,
                Input::Labels | Input::MixLabels => {
                    labels()?.f_remainder(classes)?.f_reshape([CLIENTS, BATCH])?
                }
                Input::SampleWeights | Input::MixSampleWeights | Input::MixLambda => {
                    some(&[CLIENTS, BATCH])?
                }
                Input::Weights | Input::SentWeights => some(&[CLIENTS, WEIGHTS])?,
            };
            tensors.push(tensor.f_set_requires_grad(trained.contains(input))?);
        }
        let scalars = self
            .scalars(1)
            .into_iter()
            .map(|value| Tensor::from_slice(&[value]).f_to_device(device));
        let terms = self.call(
            &tensors,
            &scalars.collect::<std::result::Result<Vec<_>, _>>()?,
            CLIENTS as usize,
        )?;
        let sum = Tensor::f_stack(&terms, 0)?.f_sum(Kind::Float)?;
        if !sum.requires_grad() {
            return Err(Error::config(FILE, "nothing that clients train changes this loss"));
        }
        Ok(sum.f_backward()?)
    }

    /// The numbers that it reads in this round.
    pub(super) fn scalars(&self, round: u32) -> Vec<f32> {
        self.scalars.iter().map(|value| value.unwrap_or(round as f32)).collect()
    }

    pub(super) fn reads(&self, inputs: &[Input]) -> bool {
        self.inputs.iter().any(|input| inputs.contains(input))
    }

    /// Whether it reads the model that the client was sent.
    pub fn reads_sent(&self) -> bool {
        self.reads(&[Input::SentWeights, Input::SentLogits, Input::SentFeatures])
    }

    /// Whether it reads mixtures, which not all batches have.
    pub fn reads_mixture(&self) -> bool {
        self.reads(&[Input::MixLogits, Input::MixLabels, Input::MixSampleWeights, Input::MixLambda])
    }

    /// Calls it for a cohort: one number per client and term.
    pub(super) fn call(
        &self,
        tensors: &[Tensor],
        scalars: &[Tensor],
        clients: usize,
    ) -> Result<Vec<Tensor>> {
        let terms = vmap(clients, tensors, |one| -> Result<Vec<Tensor>> {
            let mut one = one.into_iter();
            let mut arguments = Vec::new();
            for input in &self.inputs {
                let tensor = match input {
                    Input::Scalar(index) => scalars[*index].f_reshape([0i64; 0])?,
                    _ => one.next().unwrap_or_default(),
                };
                arguments.push(IValue::Tensor(tensor));
            }
            let terms = match self.module.method_is("forward", &arguments).map_err(failed)? {
                IValue::TensorList(terms) => terms,
                // Not printed: a tensor that stands for all clients has no numbers of its own.
                _ => return Err(Error::config(FILE, "the loss returned no list of tensors")),
            };
            if terms.len() != self.terms.len() {
                let (found, declared) = (terms.len(), self.terms.len());
                let problem =
                    format!("the loss returned {found} terms, but it declares {declared}");
                return Err(Error::config(FILE, problem));
            }
            for (term, name) in terms.iter().zip(&self.terms) {
                if term.is_complex() {
                    let problem = format!("the term `{name}` is complex: expected a real number");
                    return Err(Error::config(FILE, problem));
                }
                if !term.size().is_empty() {
                    let problem = format!(
                        "the term `{name}` has the shape {:?}: expected one number, such as the mean over the batch",
                        term.size()
                    );
                    return Err(Error::config(FILE, problem));
                }
            }
            Ok(terms)
        });
        let terms = terms?;
        Ok(terms.into_iter().map(|term| term.f_to_kind(Kind::Float)).collect::<Result<_, _>>()?)
    }
}

/// The module in a file, and the names of its arguments and terms.
fn decode(bytes: &[u8]) -> std::result::Result<(CModule, Vec<String>, Vec<String>), String> {
    let not_a_loss = |error: TchError| {
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim);
        let reason = lines.find(|line| !line.is_empty() && !line.ends_with("error:"));
        format!("not a loss that `fedanchor.save_loss` wrote: {}", reason.unwrap_or_default())
    };
    let module = CModule::load_data(&mut &bytes[..]).map_err(not_a_loss)?;
    let names = |method| {
        let listed = module.method_is(method, &[] as &[IValue]).map_err(not_a_loss)?;
        let IValue::GenericList(names) = listed else {
            return Err(format!("`{method}` is no list"));
        };
        let names = names.into_iter().map(|name| match name {
            IValue::String(name) => Ok(name),
            _ => Err(format!("`{method}` is no list of names")),
        });
        names.collect::<std::result::Result<Vec<_>, _>>()
    };
    let (arguments, terms) = (names("arguments")?, names("terms")?);
    check_names(&arguments, &terms)?;
    Ok((module, arguments, terms))
}

/// What a loss reads by the names of its arguments, and the values of those that are its own.
fn bind(
    names: &[String],
    values: &BTreeMap<String, f64>,
) -> Result<(Vec<Input>, Vec<Option<f32>>)> {
    let known = |name: &str| INPUTS.iter().find(|(known, _)| *known == name);
    let own = names.iter().filter(|name| *name != ROUND && known(name).is_none());
    if let Some(other) = values.keys().find(|name| !own.clone().any(|own| own == *name)) {
        let own: Vec<_> = own.map(|name| format!("`{name}`")).collect();
        let own = if own.is_empty() {
            "it has none".to_owned()
        } else {
            format!("only {}", own.join(", "))
        };
        let problem = format!("the loss has no argument of its own called `{other}`: {own}");
        return Err(Error::config(ARGUMENTS, problem));
    }
    let mut scalars = Vec::new();
    let inputs = names.iter().map(|name| {
        if let Some((_, input)) = known(name) {
            return Ok(input.clone());
        }
        scalars.push(match values.get(name) {
            _ if name == ROUND => None,
            None => {
                let problem = format!("the loss has an argument `{name}`: set {ARGUMENTS}.{name}");
                return Err(Error::config(ARGUMENTS, problem));
            }
            Some(&value) if !(value as f32).is_finite() => {
                let problem = format!("expected a finite number, got {value:e}");
                return Err(Error::config(format!("{ARGUMENTS}.{name}"), problem));
            }
            Some(&value) => Some(value as f32),
        });
        Ok(Input::Scalar(scalars.len() - 1))
    });
    Ok((inputs.collect::<Result<_>>()?, scalars))
}

/// A call that failed, with the reason: libtorch's message begins with the code that led there.
fn failed(error: TchError) -> Error {
    Error::config(FILE, in_short(&error.to_string()))
}

/// Checks the names of arguments and terms: each once, and terms such as keys of records.
fn check_names(arguments: &[String], terms: &[String]) -> std::result::Result<(), String> {
    let is_plain = |name: &&String| {
        let mut letters = name.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    };
    for names in [arguments, terms] {
        if let Some(name) = names.iter().find(|name| !is_plain(name)) {
            return Err(format!("expected a name of letters and digits, got {name:?}"));
        }
        let mut seen = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(format!("the name `{name}` is there twice"));
        }
    }
    if terms.is_empty() { Err("the loss has no term".to_owned()) } else { Ok(()) }
}

/// The reason in a message of libtorch, which repeats the code that led there: the last line that names an error.
fn in_short(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let reason = lines.clone().rfind(|line| line.contains("Error: ") || line.contains("vmap"));
    reason.or(lines.clone().next()).unwrap_or_default().to_owned()
}
