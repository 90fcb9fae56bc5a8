//! The disk, as far as the store needs one: a flat directory of files.
//!
//! A seam, so that tests (and the simulator) can tear writes, fail syncs and fill the disk; see
//! [`crate::memory`]. [`OsFiles`] is the real one and holds an exclusive lock on its directory.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::LogError;

/// One open file. Positioned reads and writes, since readers and the writer share it.
pub trait File: Send + Sync {
    /// Fills `into` from `offset`; short only at the end of the file. Returns how much was read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns when all that was written is on the disk.
    fn sync(&self) -> io::Result<()>;
    fn length(&self) -> io::Result<u64>;
}

/// One directory.
pub trait Files: Send + Sync + 'static {
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new file (an old one of that name is replaced) with `length` bytes of disk set aside for it.
    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Returns when creations, renames and removals are on the disk.
    fn sync_directory(&self) -> io::Result<()>;
    /// What to call a file in a message.
    fn path(&self, name: &str) -> PathBuf;
}

/// A directory of the operating system, usually locked for this process.
#[derive(Debug)]
pub struct OsFiles {
    directory: PathBuf,
    handle: fs::File,
    /// Held open for the lock on it; the kernel lets go when the process ends, however it ends.
    _lock: Option<fs::File>,
}

/// Clusters' private keys are in these files.
const PRIVATE: u32 = 0o600;

const LOCK: &str = "LOCK";

impl OsFiles {
    /// Creates the directory if need be and takes it for this process alone.
    pub fn open(directory: &Path) -> Result<OsFiles, LogError> {
        let mut files = OsFiles::open_unlocked(directory)?;
        files._lock = Some(OsFiles::lock(directory)?);
        Ok(files)
    }

    /// As [`OsFiles::open`], for a directory that a lock elsewhere protects.
    pub fn open_unlocked(directory: &Path) -> Result<OsFiles, LogError> {
        fs::create_dir_all(directory).map_err(|error| LogError::io("create", directory, error))?;
        let handle = fs::File::open(directory).map_err(|error| LogError::io("open", directory, error))?;
        Ok(OsFiles { directory: directory.to_owned(), handle, _lock: None })
    }

    fn lock(directory: &Path) -> Result<fs::File, LogError> {
        let path = directory.join(LOCK);
        let mut lock = OpenOptions::new()
            .mode(PRIVATE)
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| LogError::io("open", &path, error))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // Only for the message: an unreadable name is no name.
                let _ = (&lock).take(200).read_to_string(&mut holder);
                let holder = holder.trim();
                let holder = if holder.is_empty() { "another process" } else { holder };
                return Err(LogError::Locked { path: directory.to_owned(), holder: holder.to_owned() });
            }
            Err(error) => return Err(LogError::io("lock", &path, error.into())),
        }
        let holder = format!("process {}\n", std::process::id());
        lock.set_len(0)
            .and_then(|()| lock.write_all(holder.as_bytes()))
            .map_err(|error| LogError::io("write", &path, error))?;
        Ok(lock)
    }
}

impl Files for OsFiles {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for item in fs::read_dir(&self.directory)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = item?.file_name().into_string()
                && name != LOCK
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        let path = self.path(name);
        let mut options = OpenOptions::new();
        let file = options.mode(PRIVATE).read(true).write(true).create(true).truncate(true).open(&path)?;
        if length > 0
            && let Err(error) = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length)
        {
            if error != rustix::io::Errno::OPNOTSUPP {
                // Half of a preallocation would only make the shortage worse.
                drop(file);
                let _ = fs::remove_file(&path);
                return Err(error.into());
            }
            file.set_len(length)?;
        }
        Ok(Arc::new(OsFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
        Ok(Arc::new(OsFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

struct OsFile(fs::File);

impl File for OsFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
