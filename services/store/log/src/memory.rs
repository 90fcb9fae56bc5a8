//! Files in memory, with the faults that real disks have.
//!
//! For tests and the simulator: what was written but not synced may be lost or torn at a crash, syncs can
//! be made to fail, and the disk to be full. Nothing here is used in production.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::files::{File, Files};

/// A disk in memory. Clones are the same disk; [`MemoryFiles::crash`] gives what a restart would find.
#[derive(Clone, Default)]
pub struct MemoryFiles {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    files: BTreeMap<String, Arc<Mutex<Content>>>,
    faults: Faults,
}

/// What goes wrong from now on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Syncs fail with an I/O error.
    pub sync_fails: bool,
    /// No new file can be set aside.
    pub full: bool,
    /// Writes write at most this many bytes, then fail.
    pub short_writes: Option<usize>,
}

#[derive(Clone, Default)]
struct Content {
    /// What is on the platter.
    durable: Vec<u8>,
    /// What reads see.
    current: Vec<u8>,
    /// Writes since the last sync, in order.
    pending: Vec<(usize, Vec<u8>)>,
}

/// What a crash does to writes that were not synced.
#[derive(Clone, Copy, Debug)]
pub enum Crash {
    /// All are lost.
    Lost,
    /// All made it after all.
    Kept,
    /// The first bytes of them made it.
    Torn { bytes: usize },
    /// All but the first bytes made it: disks reorder.
    Reordered { bytes: usize },
}

impl MemoryFiles {
    pub fn new() -> MemoryFiles {
        MemoryFiles::default()
    }

    pub fn set_faults(&self, faults: Faults) {
        self.disk.lock().faults = faults;
    }

    /// The disk as the machine finds it after losing power now. The old one is left as it is.
    pub fn crash(&self, crash: Crash) -> MemoryFiles {
        let disk = self.disk.lock();
        let mut after = Disk::default();
        for (name, content) in &disk.files {
            let content = content.lock();
            let mut durable = content.durable.clone();
            let mut passed = 0;
            for (at, bytes) in &content.pending {
                for (place, byte) in bytes.iter().enumerate() {
                    let survives = match crash {
                        Crash::Lost => false,
                        Crash::Kept => true,
                        Crash::Torn { bytes } => passed < bytes,
                        Crash::Reordered { bytes } => passed >= bytes,
                    };
                    passed += 1;
                    if survives {
                        let at = at + place;
                        if durable.len() <= at {
                            durable.resize(at + 1, 0);
                        }
                        durable[at] = *byte;
                    }
                }
            }
            let content = Content { current: durable.clone(), durable, pending: Vec::new() };
            after.files.insert(name.clone(), Arc::new(Mutex::new(content)));
        }
        MemoryFiles { disk: Arc::new(Mutex::new(after)) }
    }

    /// Changes bytes behind everybody's back, as a failing disk does.
    pub fn corrupt(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(content) = self.disk.lock().files.get(name) {
            let mut content = content.lock();
            change(&mut content.durable);
            content.current = content.durable.clone();
        }
    }

    /// The bytes of a file as reads see them.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        Some(self.disk.lock().files.get(name)?.lock().current.clone())
    }
}

impl Files for MemoryFiles {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.disk.lock().files.keys().cloned().collect())
    }

    fn create(&self, name: &str, length: u64) -> io::Result<Arc<dyn File>> {
        let mut disk = self.disk.lock();
        if disk.faults.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let zeros = vec![0; length as usize];
        let content = Content { durable: zeros.clone(), current: zeros, pending: Vec::new() };
        let content = Arc::new(Mutex::new(content));
        disk.files.insert(name.to_owned(), content.clone());
        Ok(Arc::new(MemoryFile { disk: self.disk.clone(), content }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let content = self.disk.lock().files.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile { disk: self.disk.clone(), content }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let content = disk.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.lock().files.remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_directory(&self) -> io::Result<()> {
        if self.disk.lock().faults.sync_fails {
            Err(io::Error::other("injected sync failure"))
        } else {
            Ok(())
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}

struct MemoryFile {
    disk: Arc<Mutex<Disk>>,
    content: Arc<Mutex<Content>>,
}

impl File for MemoryFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let content = self.content.lock();
        let from = content.current.get(offset as usize..).unwrap_or_default();
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let short = self.disk.lock().faults.short_writes;
        let written = short.map_or(bytes.len(), |most| most.min(bytes.len()));
        let mut content = self.content.lock();
        let end = offset as usize + written;
        if content.current.len() < end {
            content.current.resize(end, 0);
        }
        content.current[offset as usize..end].copy_from_slice(&bytes[..written]);
        content.pending.push((offset as usize, bytes[..written].to_vec()));
        if written < bytes.len() { Err(io::Error::other("injected short write")) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        if self.disk.lock().faults.sync_fails {
            return Err(io::Error::other("injected sync failure"));
        }
        let mut content = self.content.lock();
        content.durable = content.current.clone();
        content.pending.clear();
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.content.lock().current.len() as u64)
    }
}
