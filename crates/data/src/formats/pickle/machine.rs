//! The stack machine of the pickle format, limited to opcodes that build data.
//!
//! Comments give the opcodes' names in Python's `pickletools`.

use super::{Id, MAX_RANK, MAX_VALUES, Name, State, Value};
use crate::{DataError, Result};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

pub(super) struct Machine<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    opcode_at: usize,
    pub(super) values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<usize, Id>,
    /// Bytes produced by decoding text; all others are borrowed from the file.
    decoded: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self {
            path,
            bytes,
            at: 0,
            opcode_at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            decoded: 0,
        }
    }

    /// An error at the current opcode.
    pub(super) fn fail(&self, expected: impl Into<String>, found: impl Into<String>) -> DataError {
        DataError::malformed(self.path, format!("byte {}", self.opcode_at), expected, found)
    }

    /// Runs until STOP and returns the value on top of the stack.
    pub(super) fn run(&mut self) -> Result<Id> {
        loop {
            self.opcode_at = self.at;
            match self.take(1)?[0] {
                b'.' => return self.pop(),                 // STOP
                0x80 => drop(self.take(1)?),               // PROTO
                0x95 => drop(self.take(8)?),               // FRAME
                b'(' => self.marks.push(self.stack.len()), // MARK
                b'0' => drop(self.pop()?),                 // POP
                b'1' => drop(self.pop_marked()?),          // POP_MARK
                b'2' => self.stack.push(self.top()?),      // DUP

                b'N' => self.push(Value::None)?,   // NONE
                0x88 => self.push(Value::Int(1))?, // NEWTRUE
                0x89 => self.push(Value::Int(0))?, // NEWFALSE
                b'K' => self.push_unsigned(1)?,    // BININT1
                b'M' => self.push_unsigned(2)?,    // BININT2
                b'J' => self.push_signed(4)?,      // BININT
                0x8a => self.length(1).and_then(|width| self.push_signed(width))?, // LONG1
                b'I' | b'L' => self.push_decimal()?, // INT, LONG
                b'U' | b'C' | 0x8c => self.push_string(1)?, // SHORT_{BINSTRING,BINBYTES,BINUNICODE}
                b'T' | b'B' | b'X' => self.push_string(4)?, // BINSTRING, BINBYTES, BINUNICODE
                0x8d | 0x8e | 0x96 => self.push_string(8)?, // BINUNICODE8, BINBYTES8, BYTEARRAY8
                b'S' => self.push_quoted()?,       // STRING
                b'V' => self.push_escaped()?,      // UNICODE

                b']' => self.push(Value::List(Vec::new()))?, // EMPTY_LIST
                b')' => self.push(Value::Tuple(Vec::new()))?, // EMPTY_TUPLE
                b'}' => self.push(Value::Dict(Vec::new()))?, // EMPTY_DICT
                b'l' => self.pop_marked().and_then(|items| self.push(Value::List(items)))?, // LIST
                b't' => self.pop_marked().and_then(|items| self.push(Value::Tuple(items)))?, // TUPLE
                op @ 0x85..=0x87 => self.push_tuple(usize::from(op - 0x84))?, // TUPLE1 to TUPLE3
                b'd' => {
                    let items = self.pop_marked()?; // DICT
                    self.push(Value::Dict(Vec::new()))?;
                    self.set_items(&items)?;
                }
                b'a' => self.pop().and_then(|item| self.append(&[item]))?, // APPEND
                b'e' => self.pop_marked().and_then(|items| self.append(&items))?, // APPENDS
                b's' => self.pop_many(2).and_then(|items| self.set_items(&items))?, // SETITEM
                b'u' => self.pop_marked().and_then(|items| self.set_items(&items))?, // SETITEMS

                b'p' => self.decimal().and_then(|key| self.remember(key as usize))?, // PUT
                b'q' => self.length(1).and_then(|key| self.remember(key))?,          // BINPUT
                b'r' => self.length(4).and_then(|key| self.remember(key))?,          // LONG_BINPUT
                0x94 => self.remember(self.memo.len())?,                             // MEMOIZE
                b'g' => self.decimal().and_then(|key| self.recall(key as usize))?,   // GET
                b'h' => self.length(1).and_then(|key| self.recall(key))?,            // BINGET
                b'j' => self.length(4).and_then(|key| self.recall(key))?,            // LONG_BINGET

                b'c' => {
                    let (module, name) = (self.line()?, self.line()?); // GLOBAL
                    self.push_name(module, name)?;
                }
                0x93 => self.push_stack_name()?, // STACK_GLOBAL
                b'R' => self.reduce()?,          // REDUCE
                b'b' => self.build()?,           // BUILD
                other => return Err(self.fail("a known opcode", format!("{other:#04x}"))),
            }
        }
    }

    // The file.

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..count) else {
            let expected = format!("{count} more byte{}", if count == 1 { "" } else { "s" });
            return Err(self.fail(expected, format!("{} before the end of the file", rest.len())));
        };
        self.at += count;
        Ok(taken)
    }

    /// The text up to the next line feed.
    fn line(&mut self) -> Result<&'a [u8]> {
        let end = self.bytes[self.at..].iter().position(|&byte| byte == b'\n');
        let end = end.ok_or_else(|| self.fail("a line of text", "the end of the file"))?;
        let line = self.take(end + 1)?;
        Ok(&line[..end])
    }

    fn decimal(&mut self) -> Result<i64> {
        let line = self.line()?;
        let text = str::from_utf8(line).ok().map(|text| text.trim_end_matches(['L', '\r']));
        let number = text.and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.fail("a decimal number", String::from_utf8_lossy(line)))
    }

    /// A little-endian number of up to eight bytes, as a length.
    fn length(&mut self, width: usize) -> Result<usize> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.take(width)?);
        let length = u64::from_le_bytes(wide);
        usize::try_from(length).map_err(|_| self.fail("a length", length.to_string()))
    }

    // The stack and the memo.

    fn get(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        if self.values.len() >= MAX_VALUES {
            return Err(self.fail(format!("at most {MAX_VALUES} values"), "more"));
        }
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    fn top(&self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(&id) if self.stack.len() > floor => Ok(id),
            _ => Err(self.fail("a value on the stack", "none")),
        }
    }

    fn pop(&mut self) -> Result<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(start) if start >= floor => Ok(self.stack.split_off(start)),
            _ => Err(self.fail(format!("{count} values on the stack"), "fewer")),
        }
    }

    /// The values above the last mark.
    fn pop_marked(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| self.fail("a mark on the stack", "none"))?;
        // Nothing below an open mark is ever popped.
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, key: usize) -> Result<()> {
        if self.memo.len() >= MAX_VALUES {
            return Err(self.fail(format!("at most {MAX_VALUES} memo entries"), "more"));
        }
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: usize) -> Result<()> {
        let fail = || self.fail("a stored value", format!("no memo entry {key}"));
        let id = *self.memo.get(&key).ok_or_else(fail)?;
        self.stack.push(id);
        Ok(())
    }

    // Integers and strings.

    fn push_unsigned(&mut self, width: usize) -> Result<()> {
        let value = self.length(width)?;
        self.push(Value::Int(value as i64))
    }

    /// A little-endian number in two's complement.
    fn push_signed(&mut self, width: usize) -> Result<()> {
        let bytes = self.take(width)?;
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        let Some(low) = wide.get_mut(..width) else {
            return Err(self.fail("an integer of at most 8 bytes", format!("{width} bytes")));
        };
        low.copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn push_decimal(&mut self) -> Result<()> {
        let value = self.decimal()?;
        self.push(Value::Int(value))
    }

    fn push_string(&mut self, width: usize) -> Result<()> {
        let length = self.length(width)?;
        let bytes = self.take(length)?;
        self.push(Value::Bytes(Cow::Borrowed(bytes)))
    }

    /// A line with a string as Python 2 prints it: in quotes, with backslash escapes.
    fn push_quoted(&mut self) -> Result<()> {
        let line = self.line()?;
        let inner = match line {
            [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
            _ => return Err(self.fail("a string in quotes", String::from_utf8_lossy(line))),
        };
        let mut string = Vec::with_capacity(inner.len());
        let mut rest = inner;
        while let [first, after @ ..] = rest {
            let (byte, after) = match (first, after) {
                (b'\\', [b'x', high, low, after @ ..]) => {
                    let digits = [*high, *low];
                    let digits = str::from_utf8(&digits).unwrap_or_default();
                    let byte = u8::from_str_radix(digits, 16);
                    (byte.map_err(|_| self.fail("two hexadecimal digits", digits))?, after)
                }
                (b'\\', [b'n', after @ ..]) => (b'\n', after),
                (b'\\', [b'r', after @ ..]) => (b'\r', after),
                (b'\\', [b't', after @ ..]) => (b'\t', after),
                (b'\\', [other, after @ ..]) => (*other, after),
                _ => (*first, after),
            };
            string.push(byte);
            rest = after;
        }
        self.push(Value::Bytes(Cow::Owned(string)))
    }

    /// A line of Latin-1 text in which `\uXXXX` stands for other characters.
    fn push_escaped(&mut self) -> Result<()> {
        let line = self.line()?;
        let mut string = String::with_capacity(line.len());
        let mut rest = line;
        while let [first, after @ ..] = rest {
            rest = after;
            string.push(match (first, after) {
                (b'\\', [b'u', a, b, c, d, after @ ..]) => {
                    rest = after;
                    let digits = String::from_utf8_lossy(&[*a, *b, *c, *d]).into_owned();
                    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                    code.ok_or_else(|| self.fail("the number of a character", digits))?
                }
                _ => char::from(*first),
            });
        }
        self.push(Value::Bytes(Cow::Owned(string.into_bytes())))
    }

    // Containers.

    fn push_tuple(&mut self, count: usize) -> Result<()> {
        let items = self.pop_many(count)?;
        self.push(Value::Tuple(items))
    }

    fn append(&mut self, new: &[Id]) -> Result<()> {
        let top = self.top()?;
        if let Value::List(items) = &mut self.values[top as usize] {
            items.extend(new);
            return Ok(());
        }
        Err(self.fail("a list to append to", self.get(top).kind()))
    }

    fn set_items(&mut self, new: &[Id]) -> Result<()> {
        let top = self.top()?;
        let (pairs, odd) = new.as_chunks::<2>();
        if let Value::Dict(items) = &mut self.values[top as usize]
            && odd.is_empty()
        {
            items.extend(pairs.iter().map(|&[key, value]| (key, value)));
            return Ok(());
        }
        let found = format!("{} and {} values", self.get(top).kind(), new.len());
        Err(self.fail("a dictionary and pairs of key and value", found))
    }

    // The supported Python names and calls.

    fn push_name(&mut self, module: &[u8], name: &[u8]) -> Result<()> {
        let known = match (module, name) {
            (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"_reconstruct") => {
                Name::Reconstruct
            }
            (b"numpy.core.numeric" | b"numpy._core.numeric", b"_frombuffer") => Name::FromBuffer,
            (b"numpy", b"ndarray") => Name::NdArray,
            (b"numpy", b"dtype") => Name::DType,
            (b"_codecs", b"encode") => Name::Encode,
            _ => {
                let (module, name) =
                    (String::from_utf8_lossy(module), String::from_utf8_lossy(name));
                return Err(self.fail("plain data or a numpy array", format!("{module}.{name}")));
            }
        };
        self.push(Value::Name(known))
    }

    fn push_stack_name(&mut self) -> Result<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        match (self.get(module).clone(), self.get(name).clone()) {
            (Value::Bytes(module), Value::Bytes(name)) => self.push_name(&module, &name),
            (module, name) => {
                let found = format!("{} and {}", module.kind(), name.kind());
                Err(self.fail("the two strings of a name", found))
            }
        }
    }

    /// The values of a tuple; empty for any other value.
    fn tuple(&self, id: Id) -> &[Id] {
        if let Value::Tuple(items) = self.get(id) { items } else { &[] }
    }

    fn reduce(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let &Value::Name(name) = self.get(callee) else {
            return Err(self.fail("a name to call", self.get(callee).kind()));
        };
        let value = match (name, self.tuple(arguments)) {
            (Name::Reconstruct, [class, ..])
                if matches!(self.get(*class), Value::Name(Name::NdArray)) =>
            {
                Value::Array(None)
            }
            (Name::DType, [code, ..]) => match self.get(*code) {
                Value::Bytes(code) if **code == *b"u1" => Value::ByteType,
                Value::Bytes(code) => {
                    let found = String::from_utf8_lossy(code);
                    return Err(self.fail("an array of bytes (u1)", found));
                }
                other => return Err(self.fail("an element type", other.kind())),
            },
            (Name::FromBuffer, &[data, dtype, shape, order]) => {
                let fortran = matches!(self.get(order), Value::Bytes(order) if **order == *b"F");
                self.array(shape, dtype, fortran, data)?
            }
            (Name::Encode, [text, ..]) => self.latin1(*text)?,
            (name, _) => {
                return Err(self.fail(format!("the arguments of {}", name.python()), "others"));
            }
        };
        if let Value::Bytes(bytes) = &value {
            self.decoded += bytes.len();
        }
        self.push(value)
    }

    /// Decodes bytes as Python 3 stores them in the old protocols: as text, one character per byte.
    fn latin1(&self, text: Id) -> Result<Value<'a>> {
        let Value::Bytes(text) = self.get(text) else {
            return Err(self.fail("text to encode", self.get(text).kind()));
        };
        // The same text may be encoded any number of times: without a limit a small file could fill
        // the memory.
        if self.decoded + text.len() > 2 * self.bytes.len() {
            return Err(self.fail("text encoded once", "the same text encoded repeatedly"));
        }
        let text = str::from_utf8(text).map_err(|error| self.fail("UTF-8", error.to_string()))?;
        let bytes = text.chars().map(|char| u8::try_from(char).ok()).collect::<Option<Vec<u8>>>();
        let bytes = bytes.ok_or_else(|| self.fail("Latin-1 characters", "others"))?;
        Ok(Value::Bytes(Cow::Owned(bytes)))
    }

    fn array(&self, shape: Id, dtype: Id, fortran: bool, data: Id) -> Result<Value<'a>> {
        let dims = self.tuple(shape).iter().take(MAX_RANK + 1).map(|&dim| match self.get(dim) {
            Value::Int(dim) => usize::try_from(*dim).ok(),
            _ => None,
        });
        let shape = dims.collect::<Option<Vec<usize>>>().filter(|dims| dims.len() <= MAX_RANK);
        let typed = matches!(self.get(dtype), Value::ByteType);
        match shape {
            Some(shape) if typed => Ok(Value::Array(Some(State { shape, fortran, data }))),
            _ => Err(self.fail("the shape and type of an array of bytes", "something else")),
        }
    }

    fn build(&mut self) -> Result<()> {
        let (state, object) = (self.pop()?, self.top()?);
        match (self.get(object), self.tuple(state)) {
            // The state of a type (byte order, flags) has no effect on single bytes.
            (Value::ByteType, _) => {}
            (Value::Array(_), &[_, shape, dtype, fortran, data]) => {
                let fortran = matches!(self.get(fortran), Value::Int(1));
                self.values[object as usize] = self.array(shape, dtype, fortran, data)?;
            }
            (other, _) => return Err(self.fail("the state of an array", other.kind())),
        }
        Ok(())
    }
}
