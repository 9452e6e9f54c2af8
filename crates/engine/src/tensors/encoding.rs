//! Named tensors as bytes: safetensors with a header of our own, for messages and for files.
//!
//! There is one encoder. The length of what it would write is found by the same encoder over tensors
//! that claim their size and hold no data, so that a simulation can count traffic without copying a
//! single weight.

use crate::error::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, View};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tch::{Device, Kind, Tensor};

/// The key of the header in a file's metadata. One key: the order of several would differ from run
/// to run.
const HEADER: &str = "fedanchor";

/// What is encoded under a name.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// A tensor of this shape in single precision.
    F32(&'a Tensor, &'a [i64]),
    /// The same in bfloat16, for numbers that it has.
    Bf16(&'a Tensor, &'a [i64]),
    /// The same in bytes, for whole steps of 2^exponent, at most 127 of them. The exponent is not encoded.
    I8(&'a Tensor, &'a [i64], i32),
    /// Numbers in double precision, for values that must arrive exactly.
    F64(&'a [f64]),
    /// Labels.
    U16(&'a [u16]),
}

/// One encoded tensor; without `bytes` it only claims its size.
struct Encoded {
    dtype: Dtype,
    shape: Vec<usize>,
    length: usize,
    bytes: Vec<u8>,
}

impl View for &Encoded {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.length
    }
}

impl Encoded {
    /// The description alone.
    fn hollow(data: &Data) -> Self {
        let sizes = |shape: &[i64]| shape.iter().map(|&size| size as usize).collect();
        let (dtype, shape): (Dtype, Vec<usize>) = match data {
            Data::F32(_, shape) => (Dtype::F32, sizes(shape)),
            Data::Bf16(_, shape) => (Dtype::BF16, sizes(shape)),
            Data::I8(_, shape, _) => (Dtype::I8, sizes(shape)),
            Data::F64(values) => (Dtype::F64, vec![values.len()]),
            Data::U16(values) => (Dtype::U16, vec![values.len()]),
        };
        let length = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Self { dtype, shape, length, bytes: Vec::new() }
    }

    fn new(data: &Data) -> Result<Self> {
        let hollow = Self::hollow(data);
        let host = |tensor: &Tensor, kind: Kind| {
            let host = tensor.f_to_device(Device::Cpu)?.f_to_kind(kind)?;
            let mut bytes = vec![0; hollow.length];
            host.f_contiguous()?.f_copy_data_u8(&mut bytes, hollow.shape.iter().product())?;
            Ok::<_, Error>(bytes)
        };
        let bytes = match data {
            Data::F32(tensor, _) => host(tensor, Kind::Float)?,
            Data::Bf16(tensor, _) => host(tensor, Kind::BFloat16)?,
            Data::I8(tensor, _, exponent) => {
                host(&tensor.f_mul_scalar(2f64.powi(-exponent))?, Kind::Int8)?
            }
            Data::F64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Data::U16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        Ok(Self { bytes, ..hollow })
    }
}

fn serialize(tensors: &[(String, Encoded)], header: &str) -> Result<Vec<u8>> {
    let metadata = HashMap::from([(HEADER.to_owned(), header.to_owned())]);
    safetensors::serialize(tensors.iter().map(|(name, data)| (name, data)), Some(metadata))
        .map_err(Error::tensors)
}

/// Named tensors and a header as bytes.
pub fn encode(tensors: &[(String, Data)], header: &str) -> Result<Vec<u8>> {
    let encoded = tensors.iter().map(|(name, data)| Ok((name.clone(), Encoded::new(data)?)));
    serialize(&encoded.collect::<Result<Vec<_>>>()?, header)
}

/// The length of what [`encode`] would return.
pub fn encoded_len(tensors: &[(String, Data)], header: &str) -> Result<u64> {
    let hollow: Vec<(String, Encoded)> =
        tensors.iter().map(|(name, data)| (name.clone(), Encoded::hollow(data))).collect();
    let data: usize = hollow.iter().map(|(_, tensor)| tensor.length).sum();
    Ok((serialize(&hollow, header)?.len() + data) as u64)
}

/// Named tensors and their header, decoded. Names, types and shapes are still to be judged.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The header; empty where a foreign file has none.
    pub header: String,
    /// Tensors in single precision, on the host.
    pub f32: BTreeMap<String, Tensor>,
    /// Tensors in bfloat16, as numbers in single precision.
    pub bf16: BTreeMap<String, Tensor>,
    /// Tensors in bytes, as numbers in single precision.
    pub i8: BTreeMap<String, Tensor>,
    /// Lists of numbers in double precision.
    pub f64: BTreeMap<String, Vec<f64>>,
    /// Lists of labels.
    pub u16: BTreeMap<String, Vec<u16>>,
}

/// Reads what [`encode`] wrote. Bytes with wrong sizes are refused before anything is
/// allocated for them.
pub fn decode(bytes: &[u8]) -> Result<Decoded> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(Error::tensors)?;
    let header = metadata.metadata().as_ref().and_then(|all| all.get(HEADER)).cloned();
    let file = SafeTensors::deserialize(bytes).map_err(Error::tensors)?;
    let mut decoded = Decoded { header: header.unwrap_or_default(), ..Decoded::default() };
    for (name, view) in file.tensors() {
        let list = || match view.shape() {
            [_] => Ok(view.data()),
            shape => Err(Error::tensors(format!("`{name}`: expected a list, got {shape:?}"))),
        };
        let tensor = |kind: Kind| {
            let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
            Tensor::f_from_data_size(view.data(), &shape, kind)?.f_to_kind(Kind::Float)
        };
        match view.dtype() {
            Dtype::F32 => drop(decoded.f32.insert(name, tensor(Kind::Float)?)),
            Dtype::BF16 => drop(decoded.bf16.insert(name, tensor(Kind::BFloat16)?)),
            Dtype::I8 => drop(decoded.i8.insert(name, tensor(Kind::Int8)?)),
            Dtype::F64 => {
                let values = list()?.as_chunks().0.iter().copied().map(f64::from_le_bytes);
                decoded.f64.insert(name, values.collect());
            }
            Dtype::U16 => {
                let values = list()?.as_chunks().0.iter().copied().map(u16::from_le_bytes);
                decoded.u16.insert(name, values.collect());
            }
            other => {
                return Err(Error::tensors(format!("`{name}`: unexpected number type {other:?}")));
            }
        }
    }
    Ok(decoded)
}

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
            Some((name.strip_prefix(group)?.strip_prefix('/')?, tensor))
        });
        named.collect()
    }

    /// The groups whose names start with `prefix`, without it.
    pub fn groups(&self, prefix: &str) -> BTreeSet<&str> {
        let groups = self.tensors.keys().filter_map(|name| Some(name.split_once('/')?.0));
        groups.filter_map(|group| group.strip_prefix(prefix)).collect()
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
    fn everything_arrives_exactly_and_the_length_is_known_before() {
        let tensor =
            Tensor::from_slice(&[1.5f32, -0.0, f32::MIN_POSITIVE, 1e30, 3.0, 4.0]).view([2, 3]);
        let (exact, labels) = ([0.1, 1.0 / 3.0, -1e-300], [0, 7, u16::MAX]);
        let content = [
            ("model/a.weight".to_owned(), Data::F32(&tensor, &[2, 3])),
            ("thresholds".to_owned(), Data::F64(&exact)),
            ("labels".to_owned(), Data::U16(&labels)),
        ];
        let header = r#"{"round":3,"name":"an \"odd\" one"}"#;
        let bytes = encode(&content, header).unwrap();
        assert_eq!(bytes.len() as u64, encoded_len(&content, header).unwrap());
        let found = decode(&bytes).unwrap();
        assert_eq!(found.header, header);
        assert_eq!(found.f32["model/a.weight"], tensor);
        assert_eq!(
            (&found.f64["thresholds"][..], &found.u16["labels"][..]),
            (&exact[..], &labels[..])
        );
    }

    #[test]
    fn other_types_and_shapes_are_refused() {
        let bytes = [0; 8];
        let view =
            |dtype, shape: Vec<usize>| safetensors::tensor::TensorView::new(dtype, shape, &bytes);
        for (dtype, shape) in [(Dtype::I64, vec![1]), (Dtype::F64, vec![1, 1])] {
            let message =
                safetensors::serialize([("x", view(dtype, shape).unwrap())], None).unwrap();
            assert!(decode(&message).unwrap_err().to_string().starts_with("`x`: "));
        }
        assert!(decode(b"nothing").is_err());
    }

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
