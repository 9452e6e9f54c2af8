//! Parameters of a cohort: plain named tensors with a leading axis K, one slice per client.
//!
//! The network (`model`) is only a description; what travels between server and clients, what is
//! averaged and what is saved is this. Running statistics of batch norm are entries like any
//! other, so averaging them with the weights needs no special case. A `VarStore` was rejected: it
//! owns its variables, and a cohort must be expanded, sliced and averaged freely.

use super::encoding::{Bundle, Data};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Which part of the double-headed network an entry belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything up to the pooled features.
    Backbone,
    /// The classification head.
    Classifier,
    /// The anchor head, trained by the server alone.
    Anchor,
    /// A predictor of pooled features, for learning without labels.
    Predictor,
}

/// One tensor of a network, without the cohort axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Dotted name, for example `layer1.0.conv1.weight`.
    pub name: String,
    /// Shape for one client.
    pub shape: Vec<i64>,
    /// Where it belongs.
    pub part: Part,
    /// True for running statistics, which no gradient reaches.
    pub statistic: bool,
}

impl Entry {
    /// Numbers in this entry for one client.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// The entries of a network, in the order of its layers.
pub type Layout = Arc<Vec<Entry>>;

/// The tensors of K clients (K = 1: a plain network), each of shape `[K, ...entry.shape]`.
#[derive(Debug)]
pub struct Params {
    /// What each tensor is.
    pub layout: Layout,
    /// The tensors, in the layout's order.
    pub tensors: Vec<Tensor>,
}

impl Params {
    /// Number of clients K.
    pub fn clients(&self) -> i64 {
        self.tensors.first().map_or(0, |tensor| tensor.size()[0])
    }

    /// Every entry with its tensor.
    pub fn entries(&self) -> impl Iterator<Item = (&Entry, &Tensor)> {
        self.layout.iter().zip(&self.tensors)
    }

    /// Applies `change` to every tensor.
    fn map(&self, change: impl Fn(&Tensor) -> Result<Tensor, tch::TchError>) -> Result<Params> {
        let tensors = self.tensors.iter().map(change).collect::<Result<_, _>>()?;
        Ok(Params { layout: self.layout.clone(), tensors })
    }

    /// The same tensors once more, sharing memory.
    pub fn shallow_copy(&self) -> Params {
        let tensors = self.tensors.iter().map(Tensor::shallow_clone).collect();
        Params { layout: self.layout.clone(), tensors }
    }

    /// A deep copy.
    pub fn copy(&self) -> Result<Params> {
        self.map(Tensor::f_detach_copy)
    }

    /// Uninitialised tensors of the same shapes, in the same order in memory.
    pub(crate) fn like(&self) -> Result<Params> {
        self.map(|tensor| channels_last(&tensor.f_empty_like()?))
    }

    /// Zeros of the same shapes.
    pub fn zeros_like(&self) -> Result<Params> {
        self.map(Tensor::f_zeros_like)
    }

    /// K equal copies of one network: what every client of a cohort starts from.
    pub fn broadcast(&self, clients: i64) -> Result<Params> {
        self.map(|tensor| {
            let mut size = tensor.size();
            size[0] = clients;
            channels_last(&tensor.f_expand(&size, false)?.f_detach_copy()?)
        })
    }

    /// A view of the first `clients` clients: updates in place reach the whole.
    pub fn first(&self, clients: i64) -> Result<Params> {
        self.map(|tensor| tensor.f_narrow(0, 0, clients))
    }

    /// A view of one client.
    pub fn client(&self, index: i64) -> Result<Params> {
        self.map(|tensor| tensor.f_narrow(0, index, 1))
    }

    /// Stacks networks of one client each into a cohort.
    pub fn stack(all: &[&Params]) -> Result<Params> {
        let layout = all.first().map(|first| first.layout.clone()).unwrap_or_default();
        let tensors = (0..layout.len()).map(|index| {
            let parts: Vec<&Tensor> = all.iter().map(|one| &one.tensors[index]).collect();
            Ok(channels_last(&Tensor::f_cat(&parts, 0)?)?)
        });
        Ok(Params { tensors: tensors.collect::<Result<_>>()?, layout })
    }

    /// These entries and `other`'s, in the order of `layout`: all entries of it, and no others. `other`'s are taken
    /// where both have one.
    pub fn with(self, other: Params, layout: Layout) -> Result<Params> {
        let mut all = HashMap::new();
        for Params { layout, tensors } in [self, other] {
            all.extend(layout.iter().map(|entry| entry.name.clone()).zip(tensors));
        }
        let tensors = layout.iter().map(|entry| {
            let missing = || Error::tensors(format!("`{}` is missing", entry.name));
            all.remove(&entry.name).ok_or_else(missing)
        });
        let tensors = tensors.collect::<Result<_>>()?;
        match all.keys().min() {
            Some(extra) => Err(foreign(extra)),
            None => Ok(Params { layout, tensors }),
        }
    }

    /// The entries that `keep` accepts, as views.
    pub fn subset(&self, keep: impl Fn(&Entry) -> bool) -> Params {
        let kept = self.entries().filter(|(entry, _)| keep(entry));
        let (layout, tensors) = kept.map(|(entry, t)| (entry.clone(), t.shallow_clone())).unzip();
        Params { layout: Arc::new(layout), tensors }
    }

    /// Moves every entry towards the entry of the same name in `other`, keeping a share of `decay`.
    pub fn follow(&self, other: &Params, decay: f64) -> Result<()> {
        let mut at = other.entries();
        for (entry, tensor) in self.entries() {
            // Both are in the layers' order, and `other` has every entry.
            let Some((_, to)) = at.by_ref().find(|(other, _)| other.name == entry.name) else {
                break;
            };
            let _ = tensor.shallow_clone().f_lerp_(to, 1.0 - decay)?;
        }
        Ok(())
    }

    /// The tensors that are not running statistics.
    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        self.entries().filter(|(entry, _)| !entry.statistic).map(|(_, tensor)| tensor)
    }

    /// Adds the tensors to a bundle under `group`.
    pub fn put_into(&self, bundle: &mut Bundle, group: &str) -> Result<()> {
        self.entries().try_for_each(|(entry, t)| bundle.put(format!("{group}/{}", entry.name), t))
    }

    /// The same entries from a bundle, on this device and in this order in memory.
    pub fn take_from(&self, bundle: &Bundle, group: &str) -> Result<Params> {
        let found = bundle.group(group);
        let tensors = self.entries().map(|(entry, like)| {
            let tensor = found.get(entry.name.as_str()).filter(|t| t.size() == like.size());
            let tensor = tensor.ok_or_else(|| {
                Error::tensors(format!("{group}/{} is missing or has another shape", entry.name))
            })?;
            let mut taken = like.f_zeros_like()?;
            taken.f_copy_(tensor)?;
            Ok(taken)
        });
        Ok(Params { layout: self.layout.clone(), tensors: tensors.collect::<Result<_>>()? })
    }

    /// Those of these entries that a group of a bundle holds, read as [`Params::take_from`] does.
    pub fn take_some(&self, bundle: &Bundle, group: &str) -> Result<Params> {
        let found = bundle.group(group);
        self.subset(|entry| found.contains_key(entry.name.as_str())).take_from(bundle, group)
    }

    /// Overwrites the entries that `other` has, by name, in place.
    pub fn assign(&mut self, other: &Params) -> Result<()> {
        for (Entry { name, .. }, tensor) in other.entries() {
            let index = self.layout.iter().position(|own| own.name == *name);
            let missing = || Error::tensors(format!("the network has no `{name}`"));
            self.tensors[index.ok_or_else(missing)?].f_copy_(tensor)?;
        }
        Ok(())
    }

    /// For every client the name of the first entry with a number that is not finite, if any.
    pub fn first_not_finite(&self) -> Result<Vec<Option<String>>> {
        // x * 0 is 0 for finite x and NaN otherwise: one sum per entry and client, read at once.
        let sums = self.tensors.iter().map(|tensor| {
            let sum =
                tensor.f_flatten(1, -1)?.f_sum_dim_intlist(&[1i64][..], false, Kind::Float)?;
            sum.f_mul_scalar(0.0)
        });
        let sums = Tensor::f_stack(&sums.collect::<Result<Vec<_>, _>>()?, 1)?; // [K, entries]
        let sums = Vec::<f32>::try_from(sums.f_to_device(Device::Cpu)?.f_flatten(0, -1)?)?;
        let clients = sums.chunks(self.tensors.len().max(1)).zip(0..);
        let named = clients.map(|(sums, client)| {
            for at in (0..sums.len()).filter(|&at| sums[at] != 0.0) {
                // Not so if finite numbers have a sum that overflows.
                let finite = self.tensors[at].f_select(0, client)?.f_isfinite()?.f_all()?;
                if finite.f_int64_value(&[])? == 0 {
                    return Ok(Some(self.layout[at].name.clone()));
                }
            }
            Ok(None)
        });
        named.collect()
    }

    /// The tensors of one client under `group`, without the cohort axis, to be encoded.
    pub fn data(&self, group: &str) -> impl Iterator<Item = (String, Data<'_>)> {
        self.entries().map(move |(entry, tensor)| {
            (format!("{group}/{}", entry.name), Data::F32(tensor, &entry.shape))
        })
    }

    /// One client from decoded tensors, whose names are those of `layout`'s entries: some of them, or all.
    pub fn from_decoded(
        layout: &Layout,
        mut tensors: BTreeMap<String, Tensor>,
        device: Device,
    ) -> Result<Params> {
        let (mut entries, mut found) = (Vec::new(), Vec::new());
        for entry in layout.iter() {
            let Some(tensor) = tensors.remove(&entry.name) else { continue };
            if tensor.size() != entry.shape {
                let (wanted, size) = (&entry.shape, tensor.size());
                let problem = format!("`{}`: expected {wanted:?}, got {size:?}", entry.name);
                return Err(Error::tensors(problem));
            }
            entries.push(entry.clone());
            found.push(channels_last(&tensor.f_unsqueeze(0)?.f_to_device(device)?)?);
        }
        if let Some(extra) = tensors.keys().next() {
            return Err(foreign(extra));
        }
        let layout = if entries.len() == layout.len() { layout.clone() } else { Arc::new(entries) };
        Ok(Params { layout, tensors: found })
    }

    /// Every entry under its name, to be encoded; K = 1.
    pub fn named(&self) -> Vec<(String, Data<'_>)> {
        self.entries().map(|(e, t)| (e.name.clone(), Data::F32(t, &e.shape))).collect()
    }

    /// The same if no entry of `layout` is missing, otherwise an error that names the first.
    pub fn complete(self, layout: &Layout) -> Result<Params> {
        let has = |name: &str| self.layout.iter().any(|entry| entry.name == name);
        match layout.iter().find(|entry| !has(&entry.name)) {
            Some(missing) => Err(Error::tensors(format!("`{}` is missing", missing.name))),
            None => Ok(self),
        }
    }
}

fn foreign(name: &str) -> Error {
    Error::tensors(format!("`{name}` does not belong to this network"))
}

/// Lays convolution weights `[K, to, from, height, width]` out in memory as the kernels want them:
/// channels last. Shapes stay as they are; so do all other tensors. Without it every convolution
/// would bring its weights into that order first, in every pass.
pub fn channels_last(tensor: &Tensor) -> Result<Tensor, tch::TchError> {
    if tensor.dim() != 5 {
        return tensor.f_contiguous();
    }
    tensor.f_permute([0, 1, 3, 4, 2])?.f_contiguous()?.f_permute([0, 1, 4, 2, 3])
}

/// The Euclidean norm of some tensors taken together.
pub fn norm<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<f64> {
    let norms = tensors.map(|tensor| tensor.f_norm()?.f_to_kind(Kind::Double));
    match &norms.collect::<Result<Vec<_>, _>>()?[..] {
        [] => Ok(0.0),
        norms => Ok(Tensor::f_stack(norms, 0)?.f_norm()?.f_double_value(&[])?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{decode, encode};

    fn layout() -> Layout {
        let entry = |name: &str, shape: &[i64], part, statistic| Entry {
            name: name.into(),
            shape: shape.into(),
            part,
            statistic,
        };
        Arc::new(vec![
            entry("conv.weight", &[2, 1], Part::Backbone, false),
            entry("bn.mean", &[2], Part::Backbone, true),
            entry("anchor.weight", &[1, 2], Part::Anchor, false),
        ])
    }

    fn params(values: [[f32; 2]; 3]) -> Params {
        let layout = layout();
        let tensors = layout
            .iter()
            .zip(values)
            .map(|(entry, v)| {
                let mut shape = vec![1];
                shape.extend(&entry.shape);
                Tensor::from_slice(&v).reshape(&shape)
            })
            .collect();
        Params { layout, tensors }
    }

    fn values(params: &Params, index: usize) -> Vec<f32> {
        Vec::try_from(params.tensors[index].flatten(0, -1)).unwrap()
    }

    #[test]
    fn a_model_file_holds_every_entry_and_nothing_else() {
        let read = |params: &Params, layout: &Layout| {
            let decoded = decode(&encode(&params.named(), "").unwrap()).unwrap();
            Params::from_decoded(layout, decoded.f32, Device::Cpu)?.complete(layout)
        };
        let saved = params([[1.5, -2.0], [0.25, f32::MIN_POSITIVE], [3.0, 4.0]]);
        let same = read(&saved, &layout()).unwrap();
        for index in 0..3 {
            assert_eq!(values(&saved, index), values(&same, index));
        }
        let part = saved.subset(|entry| entry.part != Part::Anchor);
        let error = read(&part, &layout()).unwrap_err();
        assert_eq!(error.to_string(), "`anchor.weight` is missing");
        let error = read(&saved, &part.layout).unwrap_err();
        assert!(error.to_string().contains("`anchor.weight` does not belong"));
    }

    #[test]
    fn views_share_memory_and_copies_do_not() {
        let one = params([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        let cohort = one.broadcast(3).unwrap();
        assert_eq!(cohort.clients(), 3);
        let _ = cohort.client(1).unwrap().tensors[0].fill_(9.0);
        assert_eq!(values(&cohort, 0), [1.0, 2.0, 9.0, 9.0, 1.0, 2.0]);
        assert_eq!(values(&one, 0), [1.0, 2.0]);
    }

    #[test]
    fn two_sets_of_entries_fill_a_layout_or_name_what_is_missing() {
        let of = |value: f32| params([[value; 2]; 3]);
        let part = |of: Params, wanted: Part| of.subset(|entry| entry.part == wanted);
        let (backbone, anchor) = (part(of(1.0), Part::Backbone), part(of(2.0), Part::Anchor));
        let whole = backbone.shallow_copy().with(anchor.shallow_copy(), layout()).unwrap();
        assert_eq!((values(&whole, 0), values(&whole, 2)), (vec![1.0; 2], vec![2.0; 2]));
        let whole = of(3.0).with(anchor.shallow_copy(), layout()).unwrap();
        assert_eq!((values(&whole, 0), values(&whole, 2)), (vec![3.0; 2], vec![2.0; 2]));
        let error = backbone.shallow_copy().with(backbone.shallow_copy(), layout()).unwrap_err();
        assert_eq!(error.to_string(), "`anchor.weight` is missing");
        let short = backbone.layout.clone();
        let error = backbone.with(anchor, short).unwrap_err();
        assert_eq!(error.to_string(), "`anchor.weight` does not belong to this network");
    }

    #[test]
    fn a_number_that_is_not_finite_is_named() {
        let mut cohort = params([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).broadcast(2).unwrap();
        assert_eq!(cohort.first_not_finite().unwrap(), [None, None]);
        let bad = params([[1.0, 2.0], [f32::NAN, 4.0], [5.0, 6.0]]);
        cohort = Params::stack(&[&cohort.client(0).unwrap(), &bad]).unwrap();
        assert_eq!(cohort.first_not_finite().unwrap(), [None, Some("bn.mean".to_owned())]);
    }
}
