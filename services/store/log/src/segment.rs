//! A file of the log: a header that names it, then frames, then an end mark once it is full.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::LogError;
use crate::files::{File, Files};

pub(crate) const HEADER: usize = 64;
const MAGIC: [u8; 8] = *b"RDSTDLOG";
const FORMAT: u32 = 1;

/// One open segment. Segments are numbered without gaps; the number is in the name and in the header.
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) seed: u32,
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: PathBuf,
    /// Bytes of frames in it that are still of use; when none are, the file is free.
    pub(crate) live_bytes: AtomicU64,
}

impl Segment {
    fn new(number: u32, salt: u64, file: Arc<dyn File>, path: PathBuf) -> Segment {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&salt.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        Segment { number, seed: hasher.finalize(), file, path, live_bytes: AtomicU64::new(0) }
    }

    /// Reads and checks the header of an existing segment.
    pub(crate) fn open(files: &dyn Files, number: u32) -> Result<Segment, LogError> {
        let name = name(number);
        let path = files.path(&name);
        let file = files.open(&name).map_err(|error| LogError::io("open", &path, error))?;
        let mut header = [0; HEADER];
        let read = file.read_at(0, &mut header).map_err(|error| LogError::io("read", &path, error))?;
        let corrupt =
            |reason: &str| LogError::Corrupt { path: path.clone(), offset: 0, reason: reason.into() };
        if read < HEADER || header[..8] != MAGIC {
            return Err(corrupt("no segment header"));
        }
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if crc32fast::hash(&header[..28]) != u32_at(28) {
            return Err(corrupt("checksum mismatch in the segment header"));
        }
        if u32_at(8) != FORMAT {
            return Err(corrupt(&format!("format {} is unknown, this build reads {FORMAT}", u32_at(8))));
        }
        if u32_at(12) != number {
            return Err(corrupt(&format!("it is segment {} under the name of another", u32_at(12))));
        }
        let salt = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
        Ok(Segment::new(number, salt, file, path))
    }

    pub(crate) fn add_live(&self, bytes: usize) {
        self.live_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    pub(crate) fn sub_live(&self, bytes: usize) {
        self.live_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

/// A file with room and a durable header, waiting to become segment `number`.
pub(crate) struct Spare {
    number: u32,
    salt: u64,
    file: Arc<dyn File>,
}

const SPARE: &str = "next.spare";
const FREE: &str = "free.spare";

impl Spare {
    /// Makes one, out of the file that [`put_aside`] kept if `recycle`.
    pub(crate) fn prepare(
        files: &dyn Files,
        number: u32,
        salt: u64,
        size: u64,
        recycle: bool,
    ) -> io::Result<Spare> {
        let file = if recycle {
            files.rename(FREE, SPARE)?;
            files.open(SPARE)?
        } else {
            files.create(SPARE, size)?
        };
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&number.to_le_bytes());
        header[16..24].copy_from_slice(&salt.to_le_bytes());
        let sum = crc32fast::hash(&header[..28]);
        header[28..32].copy_from_slice(&sum.to_le_bytes());
        file.write_at(0, &header)?;
        file.sync()?;
        files.sync_directory()?;
        Ok(Spare { number, salt, file })
    }

    /// Gives it its name. After this a bad header in it is damage, not an unfinished beginning.
    pub(crate) fn take_into_use(self, files: &dyn Files) -> io::Result<Segment> {
        let name = name(self.number);
        files.rename(SPARE, &name)?;
        files.sync_directory()?;
        Ok(Segment::new(self.number, self.salt, self.file, files.path(&name)))
    }
}

/// Keeps a segment nobody needs for the next spare: its blocks are written already, which makes later
/// syncs cheaper than those of fresh ones. Durable when it returns, since the next step overwrites it.
pub(crate) fn put_aside(files: &dyn Files, number: u32) -> io::Result<()> {
    files.rename(&name(number), FREE)?;
    files.sync_directory()
}

pub(crate) fn name(number: u32) -> String {
    format!("{number:010}.segment")
}

pub(crate) fn number_of(name: &str) -> Option<u32> {
    name.strip_suffix(".segment").filter(|stem| stem.len() == 10)?.parse().ok()
}

/// Whether a file is something unfinished that open may delete.
pub(crate) fn is_leftover(name: &str) -> bool {
    name == SPARE || name == FREE
}
