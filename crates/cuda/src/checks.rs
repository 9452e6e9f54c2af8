//! What the operations ask of their arguments, checked before anything reaches C++ or a kernel: only sizes,
//! strides, kinds, addresses and devices are looked at, never numbers on the GPU. Where tensors live is
//! checked last, so that tests without a GPU reach every other check.

use crate::error::CudaError;
use crate::shim::Result;
use std::fmt;
use tch::{Device, Kind, Tensor};

/// Bytes that kernels move at a time; a tensor that they read or write in place starts at a multiple.
const VECTOR: usize = 16;
/// Blocks that CUDA allows along the second and third dimension of a grid.
pub(crate) const GRID: i64 = 65_535;

/// An argument of an operation: a tensor with memory that is laid out by strides.
#[derive(Clone, Copy)]
pub(crate) struct Argument<'a> {
    name: &'static str,
    tensor: &'a Tensor,
}

impl<'a> Argument<'a> {
    /// Refuses tensors without such memory.
    pub(crate) fn new(name: &'static str, tensor: &'a Tensor) -> Result<Self> {
        let expected = "a dense tensor with at least one number";
        let refused = |got| Err(CudaError::refused(name, expected, got));
        if !tensor.defined() {
            return refused("an undefined one");
        }
        if tensor.is_sparse() || tensor.is_mkldnn() {
            return refused("one in another memory format");
        }
        if tensor.numel() == 0 {
            return refused("an empty one");
        }
        if tensor.data_ptr().is_null() {
            return refused("one without memory");
        }
        Ok(Self { name, tensor })
    }

    /// An argument of this kind and size, contiguous.
    pub(crate) fn dense(
        name: &'static str,
        tensor: &'a Tensor,
        kind: Kind,
        size: &[i64],
    ) -> Result<Self> {
        Self::new(name, tensor)?.with_kind(&[kind])?.with_size(size)?.contiguous()
    }

    pub(crate) fn size(self) -> Vec<i64> {
        self.tensor.size()
    }

    /// Its size, if it has `N` dimensions; `what` names their number in an error.
    pub(crate) fn dimensions<const N: usize>(self, what: &'static str) -> Result<[i64; N]> {
        let size = self.tensor.size();
        size.try_into().map_err(|size: Vec<i64>| CudaError::refused(what, N, size.len()))
    }

    pub(crate) fn with_size(self, expected: &[i64]) -> Result<Self> {
        let size = self.tensor.size();
        let (holds, got) = (size == expected, format_args!("{size:?}"));
        self.require(holds, format_args!("size {expected:?}"), got)
    }

    pub(crate) fn with_kind(self, expected: &[Kind]) -> Result<Self> {
        let kind = self.kind()?;
        self.require(expected.contains(&kind), either(expected), format_args!("{kind:?}"))
    }

    pub(crate) fn kind(self) -> Result<Kind> {
        self.tensor.f_kind().map_err(|error| CudaError::Failed(error.to_string()))
    }

    /// The last dimension is the innermost, without gaps.
    pub(crate) fn contiguous(self) -> Result<Self> {
        self.require_strides(self.tensor.is_contiguous(), contiguous_strides(&self.tensor.size()))
    }

    /// The numbers of every client `[K, ...]` are one block of memory, client after client. Within a
    /// client, dimensions may be in any order.
    pub(crate) fn dense_by_client(self) -> Result<Self> {
        let (size, strides) = (self.tensor.size(), self.tensor.stride());
        let mut inner: Vec<(i64, i64)> =
            strides.iter().copied().zip(size.iter().copied()).skip(1).collect();
        inner.retain(|&(_, size)| size > 1);
        inner.sort_unstable();
        let mut block = 1;
        let dense = inner.iter().all(|&(stride, size)| {
            let next = stride == block;
            block *= size;
            next
        });
        let holds = dense && (size[0] == 1 || strides[0] == block);
        self.require_strides(holds, contiguous_strides(&size))
    }

    /// The same order in memory as `other`, which is of the same size.
    pub(crate) fn laid_out_like(self, other: Self) -> Result<Self> {
        let (own, others) = (self.tensor.stride(), other.tensor.stride());
        // The stride of a dimension of size 1 means nothing.
        let counts = self.tensor.size().into_iter().map(|size| size > 1);
        let mut strides = own.iter().zip(&others).zip(counts);
        self.require_strides(strides.all(|((own, other), counts)| !counts || own == other), others)
    }

    pub(crate) fn aligned(self) -> Result<Self> {
        let rest = self.tensor.data_ptr() as usize % VECTOR;
        let expected = format_args!("an address divisible by {VECTOR}");
        self.require(rest == 0, expected, format_args!("a remainder of {rest}"))
    }

    /// On `expected`.
    pub(crate) fn on(self, expected: Device) -> Result<Self> {
        let device = self.tensor.device();
        let (holds, got) = (device == expected, format_args!("one on {device:?}"));
        self.require(holds, format_args!("a tensor on {expected:?}"), got)
    }

    fn require_strides(self, holds: bool, expected: Vec<i64>) -> Result<Self> {
        let got = self.tensor.stride();
        self.require(holds, format_args!("strides {expected:?}"), format_args!("{got:?}"))
    }

    fn require(self, holds: bool, expected: impl ToString, got: impl ToString) -> Result<Self> {
        match holds {
            true => Ok(self),
            false => Err(CudaError::refused(self.name, expected, got)),
        }
    }
}

/// All on one GPU, which is the first one's.
pub(crate) fn on_one_gpu(first: Argument, others: &[Argument]) -> Result<()> {
    let device = first.tensor.device();
    if !device.is_cuda() {
        let got = format!("one on {device:?}");
        return Err(CudaError::refused(first.name, "a tensor on a GPU", got));
    }
    others.iter().try_for_each(|other| other.on(device).map(drop))
}

pub(crate) fn number(what: &'static str, expected: Expected, number: i64) -> Result<()> {
    match expected.accepts(number) {
        true => Ok(()),
        false => Err(CudaError::refused(what, expected, number)),
    }
}

/// The number of a GPU, as libtorch counts them.
pub(crate) fn gpu_number(device: usize) -> Result<std::ffi::c_int> {
    let found = i64::try_from(device).unwrap_or(i64::MAX);
    number("number of the GPU", Expected::Between(0, i8::MAX.into()), found)?;
    Ok(found as std::ffi::c_int)
}

fn contiguous_strides(size: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; size.len()];
    for at in (1..size.len()).rev() {
        strides[at - 1] = strides[at] * size[at];
    }
    strides
}

/// The values that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// From the first to the second.
    Between(i64, i64),
    /// One of these.
    OneOf(&'static [i64]),
    /// A multiple of this.
    MultipleOf(i64),
    /// 8 times a power of two.
    EightDoubled,
}

impl Expected {
    /// Whether `number` is accepted.
    pub(crate) fn accepts(self, number: i64) -> bool {
        match self {
            Self::Between(least, most) => (least..=most).contains(&number),
            Self::OneOf(all) => all.contains(&number),
            Self::MultipleOf(of) => number % of == 0,
            Self::EightDoubled => number >= 8 && number.count_ones() == 1,
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Between(least, most) if least == most => write!(f, "{least}"),
            Self::Between(least, most) => write!(f, "{least} to {most}"),
            Self::OneOf(all) => f.write_str(&either(all)),
            Self::MultipleOf(of) => write!(f, "a multiple of {of}"),
            Self::EightDoubled => f.write_str("8, 16, 32 and so on"),
        }
    }
}

/// "a, b or c".
pub(crate) fn either<T: fmt::Debug>(all: &[T]) -> String {
    let all: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
    match &all[..] {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        all => all.concat(),
    }
}
