//! The size of a message, counted from what is sent: a safetensors file.
//!
//! Counting builds the same header as the encoder and adds the data it points to, without copying
//! a single weight; a test holds it equal to the encoder's output.

use crate::method::WireTensor;

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
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

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
