//! A graph under construction: nodes and constants, added one by one.

use super::proto::{
    Attribute, Constant, Dimension, FLOAT, Graph, INT64, Node, Shape, Size, TensorType, Type,
    ValueInfo,
};
use crate::error::Result;
use crate::numbers::bytes_of;
use tch::Tensor;

/// An integer attribute.
pub(super) fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), i: Some(value), kind: 2, ..Attribute::default() }
}

/// An attribute of several integers.
pub(super) fn ints(name: &str, values: &[i64]) -> Attribute {
    let ints = values.to_vec();
    Attribute { name: name.to_owned(), ints, kind: 7, ..Attribute::default() }
}

/// A floating-point attribute.
pub(super) fn float(name: &str, value: f64) -> Attribute {
    Attribute { name: name.to_owned(), f: Some(value as f32), kind: 1, ..Attribute::default() }
}

/// Adds a node, named like its output.
pub(super) fn node(
    graph: &mut Graph,
    op_type: &str,
    output: &str,
    input: &[&str],
    attribute: Vec<Attribute>,
) {
    graph.node.push(Node {
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: output.to_owned(),
        op_type: op_type.to_owned(),
        attribute,
    });
}

/// Adds a tensor of the network, in this shape.
pub(super) fn tensor(graph: &mut Graph, name: &str, dims: &[i64], tensor: &Tensor) -> Result<()> {
    constant(graph, name, dims, FLOAT, bytes_of(tensor)?);
    Ok(())
}

/// Adds floating-point numbers.
pub(super) fn floats(graph: &mut Graph, name: &str, dims: &[i64], values: &[f32]) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    constant(graph, name, dims, FLOAT, bytes);
}

/// Adds integers, such as a shape.
pub(super) fn whole(graph: &mut Graph, name: &str, values: &[i64]) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    constant(graph, name, &[values.len() as i64], INT64, bytes);
}

fn constant(graph: &mut Graph, name: &str, dims: &[i64], data_type: i32, raw_data: Vec<u8>) {
    graph.initializer.push(Constant {
        dims: dims.to_vec(),
        data_type,
        name: name.to_owned(),
        raw_data,
    });
}

/// An input or output of any number of images, with these sizes per image.
pub(super) fn batch(name: &str, elem_type: i32, sizes: &[i64], doc: &str) -> ValueInfo {
    let fixed = sizes.iter().map(|&size| Size::Fixed(size));
    let all = [Size::Named("N".to_owned())].into_iter().chain(fixed);
    let dim = all.map(|size| Dimension { size: Some(size) }).collect();
    let tensor = Some(TensorType { elem_type, shape: Some(Shape { dim }) });
    ValueInfo { name: name.to_owned(), kind: Some(Type { tensor }), doc_string: doc.to_owned() }
}
