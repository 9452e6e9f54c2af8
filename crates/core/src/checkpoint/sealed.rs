//! The files that checkpoints are made of: named tensors with a description, as safetensors behind a seal.

use crate::disk;
use crate::error::Result;
use safetensors::tensor::{Dtype, SafeTensors};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tch::{Device, Kind, Tensor};

const MAGIC: &[u8; 8] = b"fedanch1";
/// The key of the description in a file's metadata.
const ABOUT: &str = "fedanchor";

/// Named tensors on the host.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    tensors: BTreeMap<String, Tensor>,
}

impl Bundle {
    /// Adds a tensor, as a copy on the host.
    pub(crate) fn put(&mut self, name: String, tensor: &Tensor) -> Result<()> {
        let copy = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?;
        // A copy even on a CPU, where training goes on in the same memory; and in plain order.
        self.tensors.insert(name, copy.f_contiguous()?.f_detach_copy()?);
        Ok(())
    }

    /// The tensors whose names start with `group/`, without it.
    pub(crate) fn group(&self, group: &str) -> BTreeMap<&str, &Tensor> {
        let inside = |name: &'_ str| name.strip_prefix(group)?.strip_prefix('/').map(str::len);
        let found = self.tensors.iter().filter_map(|(name, tensor)| {
            let length = inside(name)?;
            Some((&name[name.len() - length..], tensor))
        });
        found.collect()
    }

    /// The groups whose names start with `prefix.`, by the number behind it.
    pub(crate) fn numbers(&self, prefix: &str) -> Vec<u32> {
        let number = |name: &String| {
            let rest = name.strip_prefix(prefix)?.strip_prefix('.')?;
            rest.split('/').next()?.parse().ok()
        };
        let mut numbers: Vec<u32> = self.tensors.keys().filter_map(number).collect();
        numbers.dedup();
        numbers
    }

    pub(super) fn encode(&self, about: &str) -> Result<Vec<u8>> {
        let tensors = self.tensors.iter().map(|(name, t)| (name.as_str(), t.size(), t));
        let metadata = HashMap::from([(ABOUT.to_owned(), about.to_owned())]);
        crate::wire::encode(tensors, Some(metadata))
    }

    /// Reads what [`Bundle::encode`] wrote; the description comes with it.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, String)> {
        let (_, header) = SafeTensors::read_metadata(bytes).ok()?;
        let about = header.metadata().as_ref()?.get(ABOUT)?.clone();
        let file = SafeTensors::deserialize(bytes).ok()?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            if view.dtype() != Dtype::F32 {
                return None;
            }
            let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
            let tensor = Tensor::f_from_data_size(view.data(), &shape, Kind::Float).ok()?;
            tensors.insert(name, tensor);
        }
        Some((Self { tensors }, about))
    }
}

/// Writes a payload behind its seal.
pub(super) fn write_sealed(path: &Path, payload: &[u8]) -> Result<()> {
    disk::write(path, &[MAGIC, blake3::hash(payload).as_bytes(), payload])
}

/// The payload of a sealed file; `None` if it is torn, or not one of ours.
pub(super) fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    unseal(fs_err::read(path).ok()?)
}

fn unseal(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let hash = bytes.strip_prefix(MAGIC)?.get(..32)?;
    let payload = bytes.get(MAGIC.len() + 32..)?;
    if blake3::hash(payload).as_bytes() != hash {
        return None;
    }
    Some(bytes.split_off(MAGIC.len() + 32))
}

#[cfg(test)]
#[path = "../../../data/fuzz/src/damage.rs"]
mod damage;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::About;
    use fedanchor_data::{Purpose, Stream};

    /// As in `crates/core/tests/mutated.rs`, for what that cannot reach: sealed files, and what is behind
    /// the seal.
    #[test]
    fn damaged_bytes_are_no_checkpoint_and_no_panic() {
        let clients = [(1, 3), (2, 1)].into();
        let about = About { round: 3, clients, ..About::default() };
        let about = serde_json::to_string(&about).unwrap();
        let mut bundle = Bundle::default();
        let value = Tensor::from_slice(&[1.0f32, 2.0]).view([1, 2]);
        bundle.put("model/a.weight".to_owned(), &value).unwrap();
        let payload = bundle.encode(&about).unwrap();
        let sealed = [MAGIC, &blake3::hash(&payload).as_bytes()[..], &payload].concat();
        assert_eq!(unseal(sealed.clone()).as_ref(), Some(&payload));
        let stream = Stream::new(2026, Purpose::Shuffle, 1, 0);
        let count = std::env::var("FEDANCHOR_MUTATIONS").map_or(2000, |text| text.parse().unwrap());
        let mut readable = 0;
        for case in 0..count {
            let bytes = damage::damage(&mut stream.at(2 * case), std::slice::from_ref(&sealed));
            assert!(bytes == sealed || unseal(bytes).is_none(), "input {case}");
            let bytes =
                damage::damage(&mut stream.at(2 * case + 1), std::slice::from_ref(&payload));
            if let Some((bundle, about)) = Bundle::decode(&bytes) {
                readable += 1;
                drop((bundle, serde_json::from_str::<About>(&about)));
            }
        }
        assert!(
            readable > 0 && readable < count,
            "{readable}: the damage is too much, or too little"
        );
    }
}
