//! The few instructions of Python's pickle format (protocol 2) that a state dict needs. They are those
//! that `torch.load(weights_only=True)` accepts: no code of the file is run.

/// A pickle under construction.
#[derive(Debug)]
pub(super) struct Pickle(Vec<u8>);

const MARK: u8 = b'(';
const STOP: u8 = b'.';
const REDUCE: u8 = b'R';
const TUPLE: u8 = b't';
const EMPTY_TUPLE: u8 = b')';
const SET_ITEMS: u8 = b'u';
const PERSISTENT_ID: u8 = b'Q';
const FALSE: u8 = 0x89;
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

    /// Starts the items of a dict, or of a tuple.
    pub(super) fn mark(&mut self) {
        self.0.push(MARK);
    }

    /// Adds the keys and values since the mark to the dict before it.
    pub(super) fn set_items(&mut self) {
        self.0.push(SET_ITEMS);
    }

    /// Makes a tuple of the values since the mark.
    pub(super) fn tuple(&mut self) {
        self.0.push(TUPLE);
    }

    /// Calls the function before the last tuple with the tuple's values.
    pub(super) fn call(&mut self) {
        self.0.push(REDUCE);
    }

    /// Replaces the last value by the object outside the pickle that it identifies.
    pub(super) fn persistent_id(&mut self) {
        self.0.push(PERSISTENT_ID);
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
        self.mark();
        values.iter().for_each(|&value| self.int(value));
        self.tuple();
    }

    pub(super) fn no_gradient(&mut self) {
        self.0.push(FALSE);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.push(STOP);
        self.0
    }
}
