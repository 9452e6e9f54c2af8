//! The few instructions of Python's pickle format (protocol 2) that a state dict needs. They are those
//! that `torch.load(weights_only=True)` accepts: no code of the file is run.

/// A pickle under construction.
#[derive(Debug)]
pub(super) struct Pickle(pub(super) Vec<u8>);

/// Starts the items of a dict, or of a tuple.
pub(super) const MARK: u8 = b'(';
/// Ends the pickle.
pub(super) const STOP: u8 = b'.';
/// Calls the function before the last tuple with the tuple's values.
pub(super) const REDUCE: u8 = b'R';
/// Makes a tuple of the values since the mark.
pub(super) const TUPLE: u8 = b't';
/// Adds the keys and values since the mark to the dict before it.
pub(super) const SET_ITEMS: u8 = b'u';
/// Replaces the last value by the object outside the pickle that it identifies.
pub(super) const PERSISTENT_ID: u8 = b'Q';
pub(super) const FALSE: u8 = 0x89;
const EMPTY_TUPLE: u8 = b')';
const GLOBAL: u8 = b'c';
const TEXT: u8 = b'X';
const INT: u8 = b'J';

impl Pickle {
    pub(super) fn new() -> Self {
        Self(vec![0x80, 2])
    }

    /// An empty `collections.OrderedDict`.
    pub(super) fn ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.0.extend([EMPTY_TUPLE, REDUCE]);
    }

    /// Adds instructions without arguments.
    pub(super) fn add(&mut self, instructions: &[u8]) {
        self.0.extend(instructions);
    }

    /// A function or class by name.
    pub(super) fn global(&mut self, module: &str, name: &str) {
        self.0.push(GLOBAL);
        self.0.extend(format!("{module}\n{name}\n").into_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.0.push(TEXT);
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    pub(super) fn int(&mut self, value: i32) {
        self.0.push(INT);
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn ints(&mut self, values: &[i32]) {
        self.0.push(MARK);
        values.iter().for_each(|&value| self.int(value));
        self.0.push(TUPLE);
    }
}
