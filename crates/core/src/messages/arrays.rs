//! Arrays that a method sends with the models. Only the method knows their meaning.

use crate::error::Result;
use fedanchor_engine::tensors::Data;
use std::collections::BTreeMap;
use tch::Tensor;

/// Arrays by name.
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

    pub(super) fn data(&self) -> Data<'_> {
        match self {
            Self::F32(tensor, shape) => Data::F32(tensor, shape),
            Self::F64(numbers) => Data::F64(numbers),
            Self::U16(labels) => Data::U16(labels),
        }
    }

    pub(super) fn copy(&self) -> Result<Self> {
        Ok(match self {
            Self::F32(tensor, _) => Self::f32(tensor.f_detach_copy()?),
            Self::F64(numbers) => Self::F64(numbers.clone()),
            Self::U16(labels) => Self::U16(labels.clone()),
        })
    }
}
