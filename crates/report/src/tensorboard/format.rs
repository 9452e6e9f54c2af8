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
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
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
    shape: Option<TensorShape>,
    #[prost(string, repeated, tag = "8")]
    string_val: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorShape {}

/// `SummaryMetadata`: who shows a value.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// How a file begins.
pub(super) fn beginning(wall_time: f64) -> Vec<u8> {
    let version = Content::FileVersion(VERSION.to_owned());
    let start = Content::SessionLog(SessionLog { status: START });
    let event = |content| record(&Event { wall_time, step: 0, content: Some(content) });
    [event(version), event(start)].concat()
}

/// The scalars and texts of one step.
pub(super) fn values(
    wall_time: f64,
    step: u32,
    scalars: &[(&str, f64)],
    texts: &[(&str, String)],
) -> Vec<u8> {
    let scalars = scalars.iter().map(|(tag, value)| Value {
        tag: (*tag).to_owned(),
        simple_value: Some(*value as f32), // what the format has for scalars
        ..Value::default()
    });
    let texts = texts.iter().map(|(tag, text)| Value {
        tag: (*tag).to_owned(),
        tensor: Some(Tensor {
            dtype: TEXT,
            shape: Some(TensorShape {}),
            string_val: vec![text.clone()],
        }),
        metadata: Some(Metadata {
            plugin_data: Some(PluginData { plugin_name: TEXT_PLUGIN.to_owned() }),
        }),
        ..Value::default()
    });
    let content = Some(Content::Summary(Summary { value: scalars.chain(texts).collect() }));
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
pub(super) mod tests {
    use super::*;

    /// Step, seconds and scalars of an event.
    pub(in super::super) type Read = (i64, f64, Vec<(String, f32)>);

    /// What a reader finds in a file: step, time and scalars of every event after the first two.
    pub(in super::super) fn read(bytes: &[u8]) -> Vec<Read> {
        let scalars = |value: Vec<Value>| -> Vec<(String, f32)> {
            value.into_iter().filter_map(|one| Some((one.tag, one.simple_value?))).collect()
        };
        let events = read_values(bytes).into_iter();
        events.map(|(step, time, value)| (step, time, scalars(value))).collect()
    }

    /// The texts in a file: step, tag and text.
    pub(in super::super) fn read_texts(bytes: &[u8]) -> Vec<(i64, String, String)> {
        let texts = read_values(bytes).into_iter().flat_map(|(step, _, values)| {
            values.into_iter().filter_map(move |one| {
                let shown_by = one.metadata?.plugin_data?.plugin_name;
                assert_eq!(shown_by, TEXT_PLUGIN);
                Some((step, one.tag, one.tensor?.string_val.concat()))
            })
        });
        texts.collect()
    }

    fn read_values(mut bytes: &[u8]) -> Vec<(i64, f64, Vec<Value>)> {
        let mut found = Vec::new();
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            (taken, rest.is_empty())
        };
        for index in 0.. {
            let length = take(8).0;
            assert_eq!(take(4).0, masked_checksum(length));
            let event = take(u64::from_le_bytes(length.try_into().unwrap()) as usize).0;
            let (checksum, end) = take(4);
            assert_eq!(checksum, masked_checksum(event));
            let Event { wall_time, step, content } = Event::decode(event).unwrap();
            match (index, content) {
                (0, Some(Content::FileVersion(version))) => assert_eq!(version, VERSION),
                (1, Some(Content::SessionLog(log))) => assert_eq!((step, log.status), (0, START)),
                (_, Some(Content::Summary(Summary { value }))) => {
                    found.push((step, wall_time, value));
                }
                (_, other) => panic!("event {index}: {other:?}"),
            }
            if end {
                break;
            }
        }
        found
    }

    // What TensorBoard 2.21.0 writes for the same events:
    // `tensorboard.summary.writer.record_writer.RecordWriter(file).write(event.SerializeToString())`.
    const BEGINNING: &[u8] =
        b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"\t\0\0\0\0\0\0\xf8?\x1a\rbrain.Event:2*(dl\
        \r\0\0\0\0\0\0\0<7\xb84\t\0\0\0\0\0\0\xf8?:\x02\x08\x01\xb7\x18\x82\\";
    const SCALARS: &[u8] = b"5\0\0\0\0\0\0\0\xd6\xc5]\xe6\t\0\0\0\0\0\0\x04@\x10\x03*(\
        \n\x14\n\raccuracy/test\x15\0\0\xb9B\
        \n\x10\n\tloss/test\x15\0\0\0\0\xa8\xa4)2";

    #[test]
    fn records_are_framed_as_tensorboard_does() {
        assert_eq!(beginning(1.5), BEGINNING);
        let scalars = [("accuracy/test", 92.5), ("loss/test", 0.0)];
        assert_eq!(values(2.5, 3, &scalars, &[]), SCALARS);
    }
}
