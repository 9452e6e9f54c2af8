//! Named tensors on the host, in groups: the content of a file.

use super::encoding::{Data, decode, encode};
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};
use tch::{Device, Kind, Tensor};

/// Named tensors on the host. A name is `group/name`.
#[derive(Debug, Default)]
pub struct Bundle {
    tensors: BTreeMap<String, Tensor>,
}

impl Bundle {
    /// Adds a tensor, as a copy on the host.
    pub fn put(&mut self, name: String, tensor: &Tensor) -> Result<()> {
        let copy = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?;
        // A copy even on a CPU, where training continues in the same memory; and in plain order.
        self.tensors.insert(name, copy.f_contiguous()?.f_detach_copy()?);
        Ok(())
    }

    /// The tensors of a group, by name.
    pub fn group(&self, group: &str) -> BTreeMap<&str, &Tensor> {
        let named = self.tensors.iter().filter_map(|(name, tensor)| {
            let (of, name) = name.split_once('/')?;
            (of == group).then_some((name, tensor))
        });
        named.collect()
    }

    /// The groups whose names start with `prefix`, without it.
    pub fn groups(&self, prefix: &str) -> BTreeSet<&str> {
        let group = |name: &'_ str| name.split_once('/').map(|(group, _)| group.len());
        let named =
            self.tensors.keys().filter_map(|name| name[..group(name)?].strip_prefix(prefix));
        named.collect()
    }

    /// The bundle with a description.
    pub fn encode(&self, about: &str) -> Result<Vec<u8>> {
        let sizes: Vec<Vec<i64>> = self.tensors.values().map(Tensor::size).collect();
        let tensors = self.tensors.iter().zip(&sizes);
        let tensors = tensors.map(|((name, tensor), size)| (name.clone(), Data::F32(tensor, size)));
        encode(&tensors.collect::<Vec<_>>(), about)
    }

    /// Reads what [`Bundle::encode`] wrote: the bundle and its description.
    pub fn decode(bytes: &[u8]) -> Result<(Self, String)> {
        let decoded = decode(bytes)?;
        Ok((Self { tensors: decoded.f32 }, decoded.header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_prefix() {
        let mut bundle = Bundle::default();
        for name in ["model/a", "state.psi/a", "state.psi/b", "state.helper.3/a"] {
            bundle.put(name.to_owned(), &Tensor::from_slice(&[1.0f32])).unwrap();
        }
        let (read, about) = Bundle::decode(&bundle.encode("about").unwrap()).unwrap();
        assert_eq!(about, "about");
        assert_eq!(read.group("state.psi").keys().copied().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(read.groups("state."), BTreeSet::from(["psi", "helper.3"]));
        assert!(read.group("state").is_empty());
    }
}
