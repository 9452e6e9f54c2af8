//! SGD for all parameters of a cohort at once.

use crate::checks::{Argument, Expected, GRID, number, on_one_gpu};
use crate::shim::*;
use std::ffi::c_int;
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

/// Entries of a step: they are passed to the kernel by value.
const ENTRIES: i64 = 256;

/// One parameter of an SGD step; all tensors are `[K, ...]` of one size. The numbers of a client are one
/// block of memory, in the same order in all but the gradient.
#[derive(Debug)]
pub struct SgdEntry<'a> {
    /// The value to update, in single precision.
    pub value: &'a Tensor,
    /// Its momentum, in single precision.
    pub momentum: Option<&'a Tensor>,
    /// Its gradient, in single precision or bfloat16.
    pub gradient: &'a Tensor,
    /// A bfloat16 copy of the value, updated with it.
    pub shadow: Option<&'a Tensor>,
}

/// The settings of an SGD step. `clip` is the largest norm of a client's gradient; 0 for no limit.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Sgd {
    pub momentum: f64,
    pub decay: f64,
    pub clip: f64,
    pub nesterov: bool,
}

/// One step in place of up to 256 entries, with the learning rate in a tensor `[1]` on the GPU.
pub fn sgd(config: Sgd, lr: &Tensor, entries: &[SgdEntry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    check_sgd(lr, entries)?;
    let column =
        |of: &dyn Fn(&SgdEntry) -> *mut C_tensor| entries.iter().map(of).collect::<Vec<_>>();
    let values = column(&|entry| raw(entry.value));
    let momenta = column(&|entry| raw_option(entry.momentum));
    let gradients = column(&|entry| raw(entry.gradient));
    let shadows = column(&|entry| raw_option(entry.shadow));
    // SAFETY: four lists of the same length, of live and checked tensors or null where the shim allows
    // it.
    check(unsafe {
        fa_sgd(
            entries.len(),
            values.as_ptr(),
            momenta.as_ptr(),
            gradients.as_ptr(),
            shadows.as_ptr(),
            raw(lr),
            config.momentum,
            config.decay,
            config.clip,
            c_int::from(config.nesterov),
        )
    })
}

fn check_sgd(lr: &Tensor, entries: &[SgdEntry]) -> Result<()> {
    let lr = Argument::new("lr", lr)?.with_kind(&[Kind::Float])?.with_size(&[1])?;
    number("entries", Expected::Between(1, ENTRIES), entries.len() as i64)?;
    let mut tensors = vec![lr];
    let mut clients = Expected::Between(1, GRID);
    for (entry, tensor) in entries.iter().enumerate() {
        let (count, of_entry) =
            check_entry(tensor, clients).map_err(|error| error.of_entry(entry))?;
        clients = Expected::Between(count, count);
        tensors.extend(of_entry);
    }
    on_one_gpu(tensors[1], &tensors)
}

/// The clients of an entry, and its tensors with the value first.
fn check_entry<'a>(entry: &SgdEntry<'a>, clients: Expected) -> Result<(i64, Vec<Argument<'a>>)> {
    let value = Argument::new("value", entry.value)?.with_kind(&[Kind::Float])?;
    let size = value.size();
    let count = size.first().copied().unwrap_or_default(); // none in a tensor without dimensions
    number("clients of value", clients, count)?;
    let value = value.dense_by_client()?;
    // Kernels take four or eight numbers at a time where a client has a multiple of eight.
    let vectors = size[1..].iter().product::<i64>() % 8 == 0;
    let aligned = |tensor: Argument<'a>| if vectors { tensor.aligned() } else { Ok(tensor) };
    let mut tensors = vec![aligned(value)?];
    let companion = |name, tensor, kind| {
        let tensor = Argument::new(name, tensor)?.with_kind(&[kind])?.with_size(&size)?;
        aligned(tensor.laid_out_like(value)?)
    };
    if let Some(momentum) = entry.momentum {
        tensors.push(companion("momentum", momentum, Kind::Float)?);
    }
    if let Some(shadow) = entry.shadow {
        tensors.push(companion("shadow", shadow, Kind::BFloat16)?);
    }
    // The shim copies a gradient whose memory is in another order.
    let gradient = Argument::new("gradient", entry.gradient)?;
    tensors.push(gradient.with_kind(&[Kind::Float, Kind::BFloat16])?.with_size(&size)?);
    Ok((count, tensors))
}
