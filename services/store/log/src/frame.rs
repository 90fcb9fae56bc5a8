//! The unit of the log: one record with a checksum.
//!
//! ```text
//!  0 length of body    u32      16 batch           u64
//!  4 checksum          u32      24 group           16 bytes
//!  8 magic             u16      40 term            u64
//! 10 kind              u8       48 index           u64
//! 11 zero              u8       56 body, padded to 8
//! 12 where batch began u32
//! ```
//! The checksum is seeded by the segment, so that what a recycled file held before never passes for
//! content, and nobody can write a body that looks like a frame. "Where the batch began" says that
//! everything before it was synced when this frame was written: with it, recovery tells a torn tail (fine)
//! from a hole in acknowledged data (not fine).

use std::fmt;

/// Names one group: the bytes of its cluster's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub [u8; 16]);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Entry,
    /// A small value of which only the newest counts; the slot is in `index`.
    Note,
    /// Entries from `index` on are gone.
    Truncate,
    /// Entries up to `index` of `term` are gone.
    Purge,
    /// The whole group is gone.
    Remove,
    /// The segment ends here; the next one goes on.
    End,
}

impl Kind {
    fn to_byte(self) -> u8 {
        match self {
            Kind::Entry => 1,
            Kind::Note => 2,
            Kind::Truncate => 3,
            Kind::Purge => 4,
            Kind::Remove => 5,
            Kind::End => 6,
        }
    }
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Entry,
            2 => Kind::Note,
            3 => Kind::Truncate,
            4 => Kind::Purge,
            5 => Kind::Remove,
            6 => Kind::End,
            _ => return None,
        })
    }
}

pub(crate) const HEADER: usize = 56;
const MAGIC: u16 = 0x5244;
const ALIGN: usize = 8;

/// What a frame says beside its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) group: GroupId,
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) batch: u64,
    pub(crate) batch_start: u32,
}

/// Bytes that a frame with a body of `length` takes.
pub(crate) const fn size_of(length: usize) -> usize {
    (HEADER + length).next_multiple_of(ALIGN)
}

/// Appends one frame to `to`.
pub(crate) fn write(to: &mut Vec<u8>, seed: u32, header: &Header, body: &[u8]) {
    let start = to.len();
    to.extend_from_slice(&(body.len() as u32).to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&MAGIC.to_le_bytes());
    to.push(header.kind.to_byte());
    to.push(0);
    to.extend_from_slice(&header.batch_start.to_le_bytes());
    to.extend_from_slice(&header.batch.to_le_bytes());
    to.extend_from_slice(&header.group.0);
    to.extend_from_slice(&header.term.to_le_bytes());
    to.extend_from_slice(&header.index.to_le_bytes());
    to.extend_from_slice(body);
    let sum = checksum(seed, &to[start..]);
    to[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    to.resize(start + size_of(body.len()), 0);
}

fn checksum(seed: u32, frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&frame[..4]);
    hasher.update(&frame[8..]);
    hasher.finalize()
}

/// The frame at the beginning of `bytes`, or why there is none.
pub(crate) fn read(bytes: &[u8], seed: u32) -> Result<(Header, &[u8]), &'static str> {
    if bytes.len() < HEADER {
        return Err("no room for a frame");
    }
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if u16::from_le_bytes([bytes[8], bytes[9]]) != MAGIC {
        return Err("no frame");
    }
    let length = u32_at(0) as usize;
    if length > bytes.len() - HEADER {
        return Err("a frame longer than its segment");
    }
    if checksum(seed, &bytes[..HEADER + length]) != u32_at(4) {
        return Err("checksum mismatch");
    }
    let kind = Kind::from_byte(bytes[10]).ok_or("a frame of unknown kind")?;
    let group = GroupId(bytes[24..40].try_into().expect("sixteen bytes"));
    let header = Header {
        kind,
        group,
        term: u64_at(40),
        index: u64_at(48),
        batch: u64_at(16),
        batch_start: u32_at(12),
    };
    Ok((header, &bytes[HEADER..HEADER + length]))
}

/// Valid frames anywhere in `bytes`, for telling a torn tail from damage.
pub(crate) fn scan(bytes: &[u8], seed: u32) -> impl Iterator<Item = (usize, Header)> + '_ {
    let magic = MAGIC.to_le_bytes();
    (0..bytes.len().saturating_sub(HEADER - 1)).step_by(ALIGN).filter_map(move |at| {
        if bytes[at + 8..at + 10] != magic {
            return None;
        }
        read(&bytes[at..], seed).ok().map(|(header, _)| (at, header))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { kind: Kind::Entry, group: GroupId([7; 16]), term: 3, index: 9, batch: 5, batch_start: 64 }
    }

    #[test]
    fn what_was_written_is_read_and_any_flipped_bit_is_noticed() {
        for length in [0usize, 1, 7, 8, 100] {
            let body: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut bytes = Vec::new();
            write(&mut bytes, 42, &header(), &body);
            assert_eq!(bytes.len(), size_of(length));
            assert_eq!(read(&bytes, 42), Ok((header(), &body[..])));
            assert!(read(&bytes, 43).is_err(), "another segment's frame");
            for bit in 0..(HEADER + length) * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bad, 42).is_err(), "bit {bit} of a frame with {length} bytes");
            }
            for cut in 0..HEADER + length {
                assert!(read(&bytes[..cut], 42).is_err(), "cut at {cut}");
            }
        }
    }
}
