//! The format of event files: the few messages of TensorFlow's `event.proto` and `summary.proto` that
//! scalars and texts need, with their published field numbers, and the records that hold them. Written out here, because
//! a code generator would bring the whole format and a compiler for it.

use prost::{Message, Oneof};

/// The version that readers expect of the first event of a file.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.START`: the reader drops everything it has read of this step and later ones.
const START: i32 = 1;
/// `DT_STRING`, the type of a text's tensor.
const TEXT: i32 = 7;
/// Who shows a text.
const TEXT_PLUGIN: &str = "text";

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "Content", tags = "3, 5, 7")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Content {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    /// Of which only the status, its first field, is there.
    #[prost(message, tag = "7")]
    SessionLog(i32),
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    /// Optional so that 0 is written, too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
}

/// `TensorProto` of one text.
#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    /// Empty: not a list.
    #[prost(message, optional, tag = "2")]
    shape: Option<()>,
    #[prost(string, repeated, tag = "8")]
    string_val: Vec<String>,
}

/// `SummaryMetadata`: who shows a value.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    /// `PluginData`, of which only the name, its first field, is there.
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<String>,
}

/// How a file begins.
pub(super) fn beginning(wall_time: f64) -> Vec<u8> {
    let version = Content::FileVersion(VERSION.to_owned());
    let start = Content::SessionLog(START);
    let event = |content| record(&Event { wall_time, step: 0, content: Some(content) });
    [event(version), event(start)].concat()
}

/// The scalars of one step, and a text.
pub(super) fn values(
    wall_time: f64,
    step: u32,
    scalars: &[(String, f64)],
    text: Option<(&str, String)>,
) -> Vec<u8> {
    let scalars = scalars.iter().map(|(tag, value)| Value {
        tag: tag.clone(),
        simple_value: Some(*value as f32), // what the format has for scalars
        ..Value::default()
    });
    let text = text.map(|(tag, text)| Value {
        tag: tag.to_owned(),
        tensor: Some(Tensor { dtype: TEXT, shape: Some(()), string_val: vec![text] }),
        metadata: Some(Metadata { plugin_data: Some(TEXT_PLUGIN.to_owned()) }),
        ..Value::default()
    });
    let content = Some(Content::Summary(Summary { value: scalars.chain(text).collect() }));
    record(&Event { wall_time, step: step.into(), content })
}

/// An event as a record of the file: length, checksum of the length, event, checksum of the event.
fn record(event: &Event) -> Vec<u8> {
    let event = event.encode_to_vec();
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked_checksum(&length), &event, &masked_checksum(&event)].concat()
}

/// CRC-32C, rotated and shifted as the format wants it: a checksum of data that contains checksums is weak.
fn masked_checksum(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
pub(super) mod tests;
