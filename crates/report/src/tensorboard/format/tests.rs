//! Event files as a reader finds them.

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
            let shown_by = one.metadata?.plugin_data?;
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
            (1, Some(Content::SessionLog(log))) => assert_eq!((step, log), (0, START)),
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
const BEGINNING: &[u8] = b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"\t\0\0\0\0\0\0\xf8?\x1a\rbrain.Event:2*(dl\
    \r\0\0\0\0\0\0\0<7\xb84\t\0\0\0\0\0\0\xf8?:\x02\x08\x01\xb7\x18\x82\\";
const SCALARS: &[u8] = b"5\0\0\0\0\0\0\0\xd6\xc5]\xe6\t\0\0\0\0\0\0\x04@\x10\x03*(\
    \n\x14\n\raccuracy/test\x15\0\0\xb9B\
    \n\x10\n\tloss/test\x15\0\0\0\0\xa8\xa4)2";

#[test]
fn records_are_framed_as_tensorboard_does() {
    assert_eq!(beginning(1.5), BEGINNING);
    let scalars = [("accuracy/test", 92.5), ("loss/test", 0.0)];
    let scalars = scalars.map(|(tag, value)| (tag.to_owned(), value));
    assert_eq!(values(2.5, 3, &scalars, None), SCALARS);
}
