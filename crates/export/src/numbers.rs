//! Tensors as the bytes of files: little endian, the last axis fastest.

use crate::error::Result;
use crate::trained::Trained;
use tch::{Device, Kind, Tensor};

/// A tensor's numbers in single precision.
pub(crate) fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let host = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut bytes = vec![0; host.numel() * size_of::<f32>()];
    host.f_copy_data_u8(&mut bytes, host.numel())?;
    Ok(bytes)
}

/// The note on a predictor, which no form contains.
pub(crate) fn without_predictor(model: &Trained) -> Option<String> {
    let mut names = model.params.layout.iter().map(|entry| &entry.name);
    let has = names.any(|name| name.starts_with("predictor."));
    has.then(|| "predictor.*: it serves training only".to_owned())
}
