//! The message to the clients of a round.

use super::header::{Header, Kind, PROTOCOL, decode_message, undecodable};
use super::rounding::round_model;
use crate::error::Result;
use fedanchor_engine::tensors::{Data, Layout, Params, Part, encode, encoded_len};
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Tensor};

/// The message to the clients of a round.
#[derive(Debug)]
pub struct Broadcast {
    /// The method's name.
    pub method: String,
    /// The round, from 1.
    pub round: u32,
    /// The model to start from, K = 1.
    pub params: Params,
    /// Further models that the method sends.
    pub models: ExtraModels,
    /// Further arrays that the method sends.
    pub arrays: Arrays,
    /// Whether models are sent in bfloat16.
    pub rounded: bool,
}

/// Further models by name, for all clients or for some.
#[derive(Debug, Default)]
pub struct ExtraModels {
    models: BTreeMap<String, (Params, Option<BTreeSet<u32>>)>,
}

impl ExtraModels {
    /// Adds a model for all clients.
    pub fn insert(&mut self, name: impl Into<String>, params: Params) {
        self.models.insert(name.into(), (params, None));
    }

    /// Adds a model for these clients.
    pub fn insert_for(&mut self, name: impl Into<String>, params: Params, clients: BTreeSet<u32>) {
        self.models.insert(name.into(), (params, Some(clients)));
    }

    /// A model by name.
    pub fn get(&self, name: &str) -> Option<&Params> {
        self.models.get(name).map(|(params, _)| params)
    }

    /// The models for a client, by rising name.
    pub fn of(&self, client: u32) -> impl Iterator<Item = (&str, &Params)> {
        let mine = move |clients: &Option<BTreeSet<u32>>| {
            clients.as_ref().is_none_or(|clients| clients.contains(&client))
        };
        let models = self.models.iter().filter(move |(_, (_, clients))| mine(clients));
        models.map(|(name, (params, _))| (name.as_str(), params))
    }

    fn map(&self, change: impl Fn(&Params) -> Result<Params>) -> Result<Self> {
        let models = self.models.iter().map(|(name, (params, clients))| {
            Ok((name.clone(), (change(params)?, clients.clone())))
        });
        Ok(Self { models: models.collect::<Result<_>>()? })
    }
}

impl Broadcast {
    /// A broadcast of the model alone.
    pub fn new(method: &str, round: u32, params: Params) -> Self {
        let (models, arrays) = Default::default();
        Self { method: method.to_owned(), round, params, models, arrays, rounded: false }
    }

    /// A deep copy.
    pub fn copy(&self) -> Result<Self> {
        self.map(|params| Ok(params.copy()?))
    }

    /// What clients receive, if models are sent in bfloat16.
    pub(crate) fn rounded(&self) -> Result<Self> {
        self.map(round_model)
    }

    fn map(&self, change: impl Fn(&Params) -> Result<Params>) -> Result<Self> {
        let arrays = self.arrays.iter().map(|(name, array)| Ok((name.clone(), array.copy()?)));
        Ok(Self {
            method: self.method.clone(),
            round: self.round,
            params: change(&self.params)?,
            models: self.models.map(change)?,
            arrays: arrays.collect::<Result<_>>()?,
            rounded: self.rounded,
        })
    }

    /// Whether every client gets the same message, but for its number.
    pub fn is_the_same_for_all(&self) -> bool {
        self.models.models.values().all(|(_, clients)| clients.is_none())
    }

    /// The message to one client.
    pub fn encode(&self, client: u32) -> Result<Vec<u8>> {
        let (tensors, header) = self.content(client)?;
        Ok(encode(&tensors, &header)?)
    }

    /// The length of the message to one client.
    pub fn encoded_len(&self, client: u32) -> Result<u64> {
        let (tensors, header) = self.content(client)?;
        Ok(encoded_len(&tensors, &header)?)
    }

    fn content(&self, client: u32) -> Result<(Vec<(String, Data<'_>)>, String)> {
        let (round, method) = (self.round, self.method.clone());
        let (tested, kind) = (Vec::new(), Kind::Broadcast);
        let header = Header { protocol: PROTOCOL, round, client, method, tested, kind };
        let mut tensors: Vec<(String, Data)> = self.params.data("model").collect();
        for (name, params) in self.models.of(client) {
            tensors.extend(params.data(&format!("{EXTRA}{name}")));
        }
        if self.rounded {
            for (_, data) in &mut tensors {
                if let Data::F32(tensor, shape) = *data {
                    *data = Data::Bf16(tensor, shape);
                }
            }
        }
        tensors.extend(self.arrays.iter().map(|(name, array)| (name.clone(), array.data())));
        Ok((tensors, header.encode()?))
    }

    /// Reads a message for a network of this layout: the broadcast, and the number of the client it is for.
    pub fn decode(bytes: &[u8], layout: &Layout, device: Device) -> Result<(Self, u32)> {
        let decoded = decode_message(bytes)?;
        let Header { round, client, method, kind, .. } = Header::decode(&decoded.header)?;
        if kind != Kind::Broadcast {
            return Err(undecodable("the message is not a broadcast"));
        }
        let mut groups: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
        let mut arrays = Arrays::default();
        if let Some(name) = decoded.i8.keys().next() {
            return Err(undecodable(format!("`{name}` does not belong to a broadcast")));
        }
        let rounded = !decoded.bf16.is_empty();
        for (name, tensor) in decoded.f32.into_iter().chain(decoded.bf16) {
            match name.split_once('/') {
                Some((group, entry)) if group == "model" || group.starts_with(EXTRA) => {
                    groups.entry(group.to_owned()).or_default().insert(entry.to_owned(), tensor);
                }
                _ => drop(arrays.insert(name, Array::f32(tensor.f_to_device(device)?))),
            }
        }
        let numbers = decoded.f64.into_iter().map(|(name, values)| (name, Array::F64(values)));
        let labels = decoded.u16.into_iter().map(|(name, values)| (name, Array::U16(values)));
        arrays.extend(numbers.chain(labels));
        let model = groups.remove("model").unwrap_or_default();
        let params = decode_model(layout, model, device)?;
        if let Some(missing) = layout.iter().find(|entry| {
            matches!(entry.part, Part::Backbone | Part::Classifier)
                && params.layout.iter().all(|there| there.name != entry.name)
        }) {
            return Err(undecodable(format!("`{}` is missing", missing.name)));
        }
        let mut models = ExtraModels::default();
        for (group, tensors) in groups {
            let name = group.trim_start_matches(EXTRA);
            models.insert(name, decode_model(layout, tensors, device)?);
        }
        Ok((Self { method, round, params, models, arrays, rounded }, client))
    }
}

/// Arrays by name, which a method sends with the models. Only the method knows their meaning.
pub type Arrays = BTreeMap<String, Array>;

/// One array.
#[derive(Debug)]
pub enum Array {
    /// A tensor in single precision, with its shape.
    F32(Tensor, Vec<i64>),
    /// Numbers in double precision, which arrive exactly.
    F64(Vec<f64>),
    /// Labels.
    U16(Vec<u16>),
}

impl Array {
    /// A tensor in single precision.
    pub fn f32(tensor: Tensor) -> Self {
        let shape = tensor.size();
        Self::F32(tensor, shape)
    }

    fn data(&self) -> Data<'_> {
        match self {
            Self::F32(tensor, shape) => Data::F32(tensor, shape),
            Self::F64(numbers) => Data::F64(numbers),
            Self::U16(labels) => Data::U16(labels),
        }
    }

    fn copy(&self) -> Result<Self> {
        Ok(match self {
            Self::F32(tensor, _) => Self::f32(tensor.f_detach_copy()?),
            Self::F64(numbers) => Self::F64(numbers.clone()),
            Self::U16(labels) => Self::U16(labels.clone()),
        })
    }
}

/// Before the name of a further model.
const EXTRA: &str = "extra.";

/// A model that holds every entry of each part that it holds any of.
fn decode_model(
    layout: &Layout,
    tensors: BTreeMap<String, Tensor>,
    device: Device,
) -> Result<Params> {
    let params = Params::from_decoded(layout, tensors, device)?;
    for part in [Part::Backbone, Part::Classifier, Part::Anchor, Part::Predictor] {
        let count = |layout: &Layout| layout.iter().filter(|entry| entry.part == part).count();
        let (found, all) = (count(&params.layout), count(layout));
        if found != 0 && found != all {
            let problem = format!("a model has {found} of the {all} entries of {part:?}");
            return Err(undecodable(problem));
        }
    }
    Ok(params)
}
