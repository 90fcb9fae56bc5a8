//! Slots in which a higher plane keeps what it derived from an entry or event, made once, shared by all.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Holds one derived value of whichever type its single user chooses.
///
/// The store keeps bytes only, yet the API server wants the parsed header beside them, and all watchers
/// want one encoded frame. The slot ties such a value's life to the entry's without naming its type.
#[derive(Default)]
pub struct Memo(OnceLock<Box<dyn Any + Send + Sync>>);

impl Memo {
    /// The derived value, made by `make` at the first call.
    ///
    /// # Panics
    /// If two callers use different types: a slot has one owner, so that is a bug.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        self.0
            .get_or_init(|| Box::new(make()))
            .downcast_ref()
            .expect("a memo slot has one owner and so one type")
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Memo(set)" } else { "Memo(empty)" })
    }
}

/// One word about an entry, for whoever walks over very many and must not look further at each.
///
/// What it says is the higher plane's business; 0 is what it says until it is set. Setting it again with
/// another value is a bug, since an entry never changes.
#[derive(Debug, Default)]
pub struct Mark(AtomicU64);

impl Mark {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    pub fn set(&self, word: u64) {
        self.0.store(word, Ordering::Relaxed);
    }
}
