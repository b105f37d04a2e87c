//! Wire format of protocol buffers, limited to the features that traces need (protobuf.dev, "Encoding").

/// Value of a protocol-buffer field, by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// Variable-length integer (wire type 0).
    Varint(u64),
    /// 64-bit value (wire type 1).
    Fixed64(u64),
    /// 32-bit value (wire type 5).
    Fixed32(u32),
    /// Length-delimited value (wire type 2): text, bytes, message or packed numbers.
    Bytes(&'a [u8]),
}

/// Field of a protocol-buffer message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field<'a> {
    pub number: u64,
    pub value: Value<'a>,
    /// Byte offset of the field in the file; for a length-delimited field, of its contents.
    pub at: usize,
}

/// Decoding error: byte offset from the beginning of the file, and description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WireError {
    pub at: usize,
    pub message: String,
}

/// Reader of protocol buffers that consumes bytes from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// Byte offset of `rest` in the file.
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn error(&self, message: impl Into<String>) -> WireError {
        WireError { at: self.at, message: message.into() }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.error(format!("{count} bytes expected, and the file ends after {}", self.rest.len())));
        };
        self.rest = rest;
        self.at += count;
        Ok(head)
    }

    /// Reads a variable-length integer: seven bits per byte, the lowest first.
    ///
    /// # Errors
    /// [`WireError`] if the bytes end early or the integer has more than ten bytes.
    pub fn varint(&mut self) -> Result<u64, WireError> {
        let begin = *self;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(begin.error("a number of more than ten bytes"))
    }

    /// Reads a length-delimited message and returns a reader of its contents.
    ///
    /// # Errors
    /// [`WireError`] if the bytes end early.
    pub fn delimited(&mut self) -> Result<Self, WireError> {
        let begin = *self;
        let length = self.varint()?;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.rest.len());
        let Some(length) = length else {
            return Err(begin.error("a message longer than what is left of the file"));
        };
        let at = self.at;
        Ok(Self { rest: self.take(length)?, at })
    }

    /// Reads the next field; `None` at the end of the message.
    ///
    /// # Errors
    /// [`WireError`] for an invalid field.
    pub fn field(&mut self) -> Result<Option<Field<'a>>, WireError> {
        if self.is_empty() {
            return Ok(None);
        }
        let begin = *self;
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let inner = self.delimited()?;
                return Ok(Some(Field { number: tag >> 3, value: Value::Bytes(inner.rest), at: inner.at }));
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(begin.error(format!("wire type {other} is none of 0, 1, 2 and 5"))),
        };
        Ok(Some(Field { number: tag >> 3, value, at: begin.at }))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let broken = self.error("a number that is cut off");
        self.take(N)?.try_into().map_err(|_| broken)
    }

    /// Creates a reader of a nested message whose contents are at byte offset `at` of the file.
    pub fn nested(bytes: &'a [u8], at: usize) -> Self {
        Self { rest: bytes, at }
    }
}

impl Value<'_> {
    /// Returns the numbers of a repeated integer field, packed or single. `at`: byte offset of the field, for errors.
    ///
    /// # Errors
    /// [`WireError`] if the field does not contain integers.
    pub fn numbers(self, at: usize) -> Result<Vec<u64>, WireError> {
        match self {
            Self::Varint(number) => Ok(vec![number]),
            Self::Bytes(packed) => {
                let mut reader = Reader::nested(packed, at);
                let mut all = Vec::new();
                while !reader.is_empty() {
                    all.push(reader.varint()?);
                }
                Ok(all)
            }
            Self::Fixed32(_) | Self::Fixed64(_) => Err(WireError { at, message: "expected whole numbers".to_owned() }),
        }
    }
}

/// Decodes a `sint32` or `sint64`. The codes 0, 1, 2, 3, 4 represent 0, −1, 1, −2, 2.
pub(super) fn zigzag(encoded: u64) -> i64 {
    let sign = -((encoded & 1) as i64);
    (encoded >> 1) as i64 ^ sign
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two examples of protobuf.dev are read: 150 in field 1, "testing" in field 2.
    #[test]
    fn published_examples_are_read() {
        let mut reader = Reader::new(&[0x08, 0x96, 0x01, 0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67]);
        assert_eq!(reader.field(), Ok(Some(Field { number: 1, value: Value::Varint(150), at: 0 })));
        assert_eq!(reader.field(), Ok(Some(Field { number: 2, value: Value::Bytes(b"testing"), at: 5 })));
        assert_eq!(reader.field(), Ok(None));
        // Packed numbers: field 6 contains 3, 270 and 86,942.
        let mut reader = Reader::new(&[0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]);
        let Ok(Some(Field { number: 6, value, at })) = reader.field() else { panic!() };
        assert_eq!(value.numbers(at), Ok(vec![3, 270, 86_942]));
    }

    #[test]
    fn truncated_fields_are_rejected_with_offset() {
        for (bytes, at) in [
            (&[0x80u8][..], 1),
            (&[0x12, 0x07, 0x74][..], 1),
            (&[0x0b][..], 0),
            (&[0xff; 11][..], 0),
            (&[0x09, 1][..], 1),
        ] {
            let error = Reader::new(bytes).field().unwrap_err();
            assert_eq!(error.at, at, "{bytes:?} {error:?}");
        }
    }
}
