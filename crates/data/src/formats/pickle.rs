//! The part of Python's pickle format needed to read the CIFAR archives; no code is executed.
//!
//! A pickle is a program for a stack machine that may call any Python function. This one supports
//! dictionaries, lists, tuples, strings, integers and the calls with which numpy stores an array of
//! bytes; any other name is an error. Values are kept in one table and refer to each other by
//! number, so that a value nested a million deep, or containing itself, needs no recursion. Text
//! and bytes are one kind of value, because Python 2 did not distinguish them.
//!
//! Memory stays proportional to the file: strings are borrowed from it, and the number of values
//! and the bytes added by decoding text are limited.

mod machine;

use super::checks::volume;
use crate::{DataError, Result};
use machine::Machine;
use std::borrow::Cow;
use std::path::Path;

/// The most values and memo entries of a file; CIFAR-100 needs 200,000.
const MAX_VALUES: usize = 2_000_000;
/// The most dimensions of an array.
const MAX_RANK: usize = 32;

/// The number of a value in the table.
type Id = u32;

#[derive(Debug, Clone)]
enum Value<'a> {
    None,
    Int(i64),
    Bytes(Cow<'a, [u8]>),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Name(Name),
    /// The type "unsigned byte", the only supported element type.
    ByteType,
    /// An array; `None` until its state is set.
    Array(Option<State>),
}

#[derive(Debug, Clone)]
struct State {
    shape: Vec<usize>,
    fortran: bool,
    data: Id,
}

/// The Python names a file may use.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Name {
    Reconstruct,
    FromBuffer,
    NdArray,
    DType,
    Encode,
}

/// An array of bytes, with the last index fastest unless `fortran`.
#[derive(Debug, PartialEq)]
pub(super) struct Array<'p> {
    pub(super) shape: &'p [usize],
    pub(super) fortran: bool,
    pub(super) data: &'p [u8],
}

/// A file whose outermost value is a dictionary.
pub(super) struct Pickle<'a> {
    path: &'a Path,
    values: Vec<Value<'a>>,
    root: Vec<(Id, Id)>,
}

impl<'a> Pickle<'a> {
    /// Parses the bytes of a file; `path` is for error messages.
    pub(super) fn load(path: &'a Path, bytes: &'a [u8]) -> Result<Self> {
        let mut machine = Machine::new(path, bytes);
        let root = machine.run()?;
        match &machine.values[root as usize] {
            Value::Dict(items) => Ok(Self { path, root: items.clone(), values: machine.values }),
            other => Err(machine.fail("a dictionary as the outermost value", other.kind())),
        }
    }

    fn find(&self, key: &str) -> Option<&Value<'a>> {
        let is_key = |id: Id| matches!(&self.values[id as usize], Value::Bytes(bytes) if **bytes == *key.as_bytes());
        let item = self.root.iter().rev().find(|item| is_key(item.0));
        item.map(|item| &self.values[item.1 as usize])
    }

    /// Whether the dictionary has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    fn fail(&self, key: &str, expected: &str, found: Option<&Value>) -> DataError {
        let found = found.map_or("no such key", Value::kind);
        DataError::malformed(self.path, format!("key '{key}'"), expected, found)
    }

    /// The array of bytes under this key.
    pub(super) fn array(&self, key: &str) -> Result<Array<'_>> {
        let value = self.find(key);
        let fail = || self.fail(key, "a numpy array of bytes", value);
        let Some(Value::Array(Some(State { shape, fortran, data }))) = value else {
            return Err(fail());
        };
        let Value::Bytes(data) = &self.values[*data as usize] else { return Err(fail()) };
        if volume(self.path, key, shape)? != data.len() {
            let expected = format!("bytes for the dimensions {shape:?}");
            let found = format!("{} bytes", data.len());
            return Err(DataError::malformed(self.path, format!("key '{key}'"), expected, found));
        }
        Ok(Array { shape, fortran: *fortran, data })
    }

    /// The integers under this key: a list, a tuple or an array of bytes.
    pub(super) fn integers(&self, key: &str) -> Result<Vec<i64>> {
        let value = self.find(key);
        let integer = |&id: &Id| match &self.values[id as usize] {
            Value::Int(value) => Ok(*value),
            other => Err(self.fail(key, "integers only", Some(other))),
        };
        match value {
            Some(Value::List(items) | Value::Tuple(items)) => items.iter().map(integer).collect(),
            Some(Value::Array(_)) => {
                Ok(self.array(key)?.data.iter().map(|&byte| i64::from(byte)).collect())
            }
            _ => Err(self.fail(key, "a list of integers", value)),
        }
    }
}

impl Name {
    fn python(self) -> &'static str {
        match self {
            Self::Reconstruct => "numpy.core.multiarray._reconstruct",
            Self::FromBuffer => "numpy.core.numeric._frombuffer",
            Self::NdArray => "numpy.ndarray",
            Self::DType => "numpy.dtype",
            Self::Encode => "_codecs.encode",
        }
    }
}

impl Value<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Int(_) => "an integer",
            Self::Bytes(_) => "a string",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dictionary",
            Self::Name(_) => "a name",
            Self::ByteType => "an element type",
            Self::Array(_) => "an array",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::damaged;
    use super::*;

    /// Joins the parts of a program.
    fn program(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    /// {'data': array [2, 3], 'labels': [4, 5]} as Python 2 writes it, protocol 2.
    fn python2() -> Vec<u8> {
        program(&[
            b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03",
            b"cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x02K\x03\x86",
            b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87R",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89U\x06\x01\x02\x03\x04\x05\xfftbU\x06labels]q\x07(K\x04K\x05eu.",
        ])
    }

    fn load(bytes: &[u8]) -> Result<Pickle<'_>> {
        Pickle::load(Path::new("f"), bytes)
    }

    fn failure(bytes: &[u8]) -> String {
        load(bytes).err().expect("this file is invalid").to_string()
    }

    fn check(bytes: &[u8]) {
        let pickle = load(bytes).unwrap();
        let data: &[u8] = &[1, 2, 3, 4, 5, 0xff];
        assert_eq!(pickle.array("data").unwrap(), Array { shape: &[2, 3], fortran: false, data });
        assert_eq!(pickle.integers("labels").unwrap(), [4, 5]);
        assert!(!pickle.has("fine_labels"));
    }

    #[test]
    fn python_2_pickles_are_read() {
        check(&python2());
    }

    #[test]
    fn python_3_pickles_are_read() {
        // Protocol 4: frames, short unicode, memoize, names from the stack, bytes.
        check(&program(&[
            b"\x80\x04\x95\0\0\0\0\0\0\0\0}\x94(\x8c\x04data\x94\x8c\x16numpy._core.multiarray\x94",
            b"\x8c\x0c_reconstruct\x94\x93\x94\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94",
            b"K\x00\x85\x94C\x01b\x94\x87\x94R\x94(K\x01K\x02K\x03\x86\x94h\x05\x8c\x05dtype\x94\x93",
            b"\x94\x8c\x02u1\x94\x89\x88\x87\x94R\x94(K\x03\x8c\x01|\x94NNNJ\xff\xff\xff\xff",
            b"J\xff\xff\xff\xffK\x00t\x94b\x89C\x06\x01\x02\x03\x04\x05\xff\x94t\x94b",
            b"\x8c\x06labels\x94]\x94(\x8a\x01\x04\x8a\x02\x05\x00eu.",
        ]));
        // Protocol 5 uses numpy's _frombuffer with a byte array.
        check(&program(&[
            b"\x80\x05}(\x8c\x04data\x8c\x12numpy.core.numeric\x8c\x0b_frombuffer\x93",
            b"(\x96\x06\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\xff\x8c\x05numpy\x8c\x05dtype\x93",
            b"\x8c\x02u1\x89\x88\x87RK\x02K\x03\x86\x8c\x01CtR",
            b"\x8c\x06labels(K\x04K\x05tu.",
        ]));
        // Protocol 2 stores bytes as encoded text: 255 is the two bytes c3 bf.
        check(&program(&[
            b"\x80\x02}(X\x04\0\0\0datacnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00",
            b"\x85NtR(K\x01K\x02K\x03\x86cnumpy\ndtype\nX\x02\0\0\0u1\x89\x88\x87R\x89c_codecs\nencode\n",
            b"X\x07\0\0\0\x01\x02\x03\x04\x05\xc3\xbfX\x06\0\0\0latin1\x86RtbX\x06\0\0\0labels](K\x04K\x05eu.",
        ]));
    }

    #[test]
    fn the_text_protocol_is_read() {
        check(&program(&[
            b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR",
            b"(I1\n(I2\nI3\ntcnumpy\ndtype\n(S'u1'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb",
            b"I00\nS'\\x01\\x02\\x03\\x04\\x05\\xff'\ntbsg0\n0S\"labels\"\n(lp2\nI4\naL5L\nas.",
        ]));
        let pickle = b"(dV\\u0061\xe9\nS'a\\'\\n'\ns.";
        let pickle = load(pickle).unwrap();
        assert!(pickle.has("a\u{e9}"));
        assert!(matches!(pickle.find("a\u{e9}"), Some(Value::Bytes(b)) if **b == *b"a'\n"));
    }

    #[test]
    fn other_python_names_are_rejected() {
        let error = failure(b"\x80\x02cos\nsystem\n(S'ls'\ntR.");
        assert!(error.contains("byte 2") && error.ends_with("found os.system"), "{error}");
        assert!(failure(b"\x8c\x08builtins\x8c\x04eval\x93.").ends_with("found builtins.eval"));
    }

    #[test]
    fn invalid_programs_are_rejected() {
        let cases: [(&[u8], &str); 14] = [
            (b"", "byte 0: expected 1 more byte, found 0 before the end of the file"),
            (b"K\x01.", "expected a dictionary as the outermost value, found an integer"),
            (b".", "expected a value on the stack"),
            (b"}\x81.", "expected a known opcode, found 0x81"),
            (b"e", "expected a mark on the stack"),
            (b"}(0", "expected a value on the stack"),
            (b"}(\x86", "expected 2 values on the stack"),
            (b"N(Ne.", "expected a list to append to"),
            (b"}(Nu.", "pairs of key and value"),
            (b"h\x07", "found no memo entry 7"),
            (b"NNR", "expected a name to call, found None"),
            (b"X\xff\xff\xff\xffab", "expected 4294967295 more bytes"),
            (b"\x8a\x09123456789.", "at most 8 bytes"),
            (b"cnumpy\ndtype\n(S'f8'\ntR.", "expected an array of bytes (u1), found f8"),
        ];
        for (bytes, message) in cases {
            assert!(failure(bytes).contains(message), "{}", failure(bytes));
        }
        let whole = python2();
        for length in 0..whole.len() {
            assert!(load(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn values_of_another_type_are_rejected() {
        let pickle = load(b"}(U\x01aNU\x01b](Neu.").unwrap();
        let error = |result: Result<Vec<i64>>| result.unwrap_err().to_string();
        assert_eq!(
            error(pickle.integers("a")),
            "f: key 'a': expected a list of integers, found None"
        );
        assert_eq!(error(pickle.integers("b")), "f: key 'b': expected integers only, found None");
        assert!(error(pickle.integers("c")).ends_with("found no such key"));
        assert!(pickle.array("a").is_err());
    }

    #[test]
    fn bombs_use_little_memory() {
        // Lists nested a million deep, and a list that contains itself.
        let mut deep = b"}U\x01a".to_vec();
        deep.extend([b']'; 1_000_000]);
        deep.extend([b'a'; 999_999]);
        deep.extend(b"s.");
        assert!(load(&deep).unwrap().has("a"));
        assert!(load(b"}U\x01a]2as.").unwrap().integers("a").is_err());
        assert!(failure(&vec![b'N'; MAX_VALUES + 1]).contains("at most 2000000 values"));
        // The same text encoded repeatedly.
        let mut text = b"(X\xe8\x03\0\0".to_vec();
        text.extend([b'a'; 1000]);
        text.extend(b"q\x00c_codecs\nencode\nq\x01");
        text.extend(b"h\x01h\x00\x85R".repeat(500));
        assert!(failure(&text).contains("encoded repeatedly"));
    }

    #[test]
    fn damaged_files_never_panic() {
        for bytes in damaged(&python2(), 20_000) {
            if let Ok(pickle) = load(&bytes) {
                drop((pickle.array("data"), pickle.integers("labels")));
            }
        }
    }
}
