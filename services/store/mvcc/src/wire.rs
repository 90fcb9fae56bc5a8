//! Reading and writing the primitives of this crate's binary forms.
//!
//! Lengths are checked against what is left before anything is allocated, so that garbage costs an error
//! and never memory. Bodies are copied out: a slice would keep a whole log entry or checkpoint alive.

use bytes::Bytes;

/// Why bytes are no command or image of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("cut short at byte {at}")]
    Short { at: usize },
    #[error("format {found} is unknown, this build reads {known}")]
    Version { found: u8, known: u8 },
    #[error("nonsense at byte {at}: {what}")]
    Invalid { at: usize, what: &'static str },
}

/// Appends primitives to a buffer.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn with_capacity(capacity: usize) -> Writer {
        Writer(Vec::with_capacity(capacity))
    }
    pub fn byte(&mut self, value: u8) {
        self.0.push(value);
    }
    /// Seven bits a byte, low ones first; small numbers are the common ones.
    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
    /// Signed, folded so that small negative numbers are short too.
    pub fn signed(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }
    pub fn bytes(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.0.extend_from_slice(value);
    }
    pub fn raw(&mut self, value: &[u8]) {
        self.0.extend_from_slice(value);
    }
    pub fn optional_signed(&mut self, value: Option<i64>) {
        match value {
            None => self.byte(0),
            Some(value) => {
                self.byte(1);
                self.signed(value);
            }
        }
    }
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes primitives from a slice; every step checks its bounds.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(all: &'a [u8]) -> Reader<'a> {
        Reader { all, at: 0 }
    }
    pub fn left(&self) -> usize {
        self.all.len() - self.at
    }
    pub fn invalid(&self, what: &'static str) -> DecodeError {
        DecodeError::Invalid { at: self.at, what }
    }
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        if length > self.left() {
            return Err(DecodeError::Short { at: self.all.len() });
        }
        let taken = &self.all[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }
    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.invalid("a number longer than 64 bits"))
    }
    pub fn signed(&mut self) -> Result<i64, DecodeError> {
        let folded = self.number()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }
    pub fn optional_signed(&mut self) -> Result<Option<i64>, DecodeError> {
        match self.byte()? {
            0 => Ok(None),
            1 => Ok(Some(self.signed()?)),
            _ => Err(self.invalid("neither absent nor present")),
        }
    }
    /// How many of something follow, each at least `least` bytes long: never more than could be there.
    pub fn count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count = self.number()?;
        if count > (self.left() / least.max(1)) as u64 {
            return Err(self.invalid("more items than bytes"));
        }
        Ok(count as usize)
    }
    pub fn slice(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.count(1)?;
        self.take(length)
    }
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        Ok(Bytes::copy_from_slice(self.slice()?))
    }
    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        let slice = self.slice()?;
        std::str::from_utf8(slice).map_err(|_| self.invalid("text that is not UTF-8"))
    }
    pub fn version(&mut self, known: u8) -> Result<(), DecodeError> {
        let found = self.byte()?;
        if found == known { Ok(()) } else { Err(DecodeError::Version { found, known }) }
    }
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.left() == 0 { Ok(()) } else { Err(self.invalid("bytes after the end")) }
    }
}
