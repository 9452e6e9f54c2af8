//! The format of event files: the few messages of TensorFlow's `event.proto` and `summary.proto` that
//! scalars need, with their published field numbers, and the records that hold them. Written out here, because
//! a code generator would bring the whole format and a compiler for it.

use prost::{Message, Oneof};

/// The version that readers expect of the first event of a file.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.START`: the reader drops everything it has read of this step and later ones.
const START: i32 = 1;

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

/// The scalars of one step.
pub(super) fn scalars(wall_time: f64, step: u32, values: &[(&str, f64)]) -> Vec<u8> {
    let value = values.iter().map(|(tag, value)| Value {
        tag: (*tag).to_owned(),
        simple_value: Some(*value as f32), // what the format has for scalars
    });
    let content = Some(Content::Summary(Summary { value: value.collect() }));
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
    pub(in super::super) fn read(mut bytes: &[u8]) -> Vec<Read> {
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
                    let value = value.into_iter().map(|one| (one.tag, one.simple_value.unwrap()));
                    found.push((step, wall_time, value.collect()));
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
        assert_eq!(scalars(2.5, 3, &[("accuracy/test", 92.5), ("loss/test", 0.0)]), SCALARS);
    }
}
