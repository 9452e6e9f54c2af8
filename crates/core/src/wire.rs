//! Messages and files of tensors, as safetensors, and the size of a message, counted from what is sent.
//!
//! Counting builds the same header as the encoder and adds the data it points to, without copying
//! a single weight; a test holds it equal to the encoder's output.

use crate::error::{Error, Result};
use crate::method::WireTensor;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use tch::{Device, Kind, Tensor};

/// Named tensors of these shapes in single precision, with a description.
pub(crate) fn encode<'a>(
    tensors: impl Iterator<Item = (&'a str, Vec<i64>, &'a Tensor)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    for (name, shape, tensor) in tensors {
        let mut bytes = vec![0; tensor.numel() * size_of::<f32>()];
        let host = tensor.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
        host.f_copy_data_u8(&mut bytes, tensor.numel())?;
        content.push((name, shape, bytes));
    }
    let broken = |error: safetensors::SafeTensorError| Error::Engine {
        phase: "encoding tensors",
        message: error.to_string(),
    };
    let views = content.iter().map(|(name, shape, bytes)| {
        let shape = shape.iter().map(|&size| size as usize).collect();
        Ok((*name, TensorView::new(Dtype::F32, shape, bytes)?))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(broken)?;
    safetensors::serialize(views, metadata).map_err(broken)
}

/// Bytes of a safetensors message with these tensors.
pub(crate) fn message_bytes<'a>(tensors: impl Iterator<Item = WireTensor<'a>>) -> u64 {
    let mut tensors: Vec<WireTensor> = tensors.collect();
    // The encoder's order: wide numbers first, then by name.
    tensors.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let mut header = 2; // the braces
    let mut offset = 0;
    for (index, (name, kind, shape)) in tensors.iter().enumerate() {
        let end = offset + shape.iter().product::<i64>() as usize * kind.bitsize() / 8;
        let shape: Vec<String> = shape.iter().map(i64::to_string).collect();
        let shape = shape.join(",");
        let entry = format!(
            r#""{name}":{{"dtype":"{kind:?}","shape":[{shape}],"data_offsets":[{offset},{end}]}}"#
        );
        header += usize::from(index > 0) + entry.len();
        offset = end;
    }
    // The header is padded to eight bytes, and its length stands in front.
    (8 + header.next_multiple_of(8) + offset) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_the_length_of_the_encoded_message() {
        let (floats, halves, bytes) = (vec![0; 24], vec![0; 14], vec![0; 3]);
        let message = safetensors::serialize(
            vec![
                ("b.weight", TensorView::new(Dtype::F32, vec![2, 3], &floats).unwrap()),
                ("labels", TensorView::new(Dtype::U16, vec![7], &halves).unwrap()),
                ("a", TensorView::new(Dtype::U8, vec![3], &bytes).unwrap()),
                ("anchor.weight", TensorView::new(Dtype::F32, vec![6, 1], &floats).unwrap()),
            ],
            None,
        );
        let counted = message_bytes(
            [
                ("a", Dtype::U8, &[3i64][..]),
                ("b.weight", Dtype::F32, &[2, 3]),
                ("anchor.weight", Dtype::F32, &[6, 1]),
                ("labels", Dtype::U16, &[7]),
            ]
            .into_iter(),
        );
        assert_eq!(message.unwrap().len() as u64, counted);
    }
}
