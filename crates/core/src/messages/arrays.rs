//! Arrays that a method sends beside models. What they mean only the method knows.

use crate::error::Result;
use fedanchor_engine::tensors::Data;
use std::collections::BTreeMap;
use tch::Tensor;

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
}

/// Arrays by name.
#[derive(Debug, Default)]
pub struct Arrays {
    arrays: BTreeMap<String, Array>,
}

impl Arrays {
    /// Adds an array.
    pub fn insert(&mut self, name: impl Into<String>, array: Array) {
        self.arrays.insert(name.into(), array);
    }

    /// A tensor by name.
    pub fn f32(&self, name: &str) -> Option<&Tensor> {
        match self.arrays.get(name)? {
            Array::F32(tensor, _) => Some(tensor),
            _ => None,
        }
    }

    /// Numbers by name.
    pub fn f64(&self, name: &str) -> Option<&[f64]> {
        match self.arrays.get(name)? {
            Array::F64(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// Labels by name.
    pub fn u16(&self, name: &str) -> Option<&[u16]> {
        match self.arrays.get(name)? {
            Array::U16(labels) => Some(labels),
            _ => None,
        }
    }

    pub(super) fn data(&self) -> impl Iterator<Item = (String, Data<'_>)> {
        self.arrays.iter().map(|(name, array)| {
            let data = match array {
                Array::F32(tensor, shape) => Data::F32(tensor, shape),
                Array::F64(numbers) => Data::F64(numbers),
                Array::U16(labels) => Data::U16(labels),
            };
            (name.clone(), data)
        })
    }

    pub(super) fn copy(&self) -> Result<Self> {
        let arrays = self.arrays.iter().map(|(name, array)| {
            let array = match array {
                Array::F32(tensor, _) => Array::f32(tensor.f_detach_copy()?),
                Array::F64(numbers) => Array::F64(numbers.clone()),
                Array::U16(labels) => Array::U16(labels.clone()),
            };
            Ok((name.clone(), array))
        });
        Ok(Self { arrays: arrays.collect::<Result<_>>()? })
    }
}
