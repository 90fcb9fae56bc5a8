//! One copy per process of what all tenants hold alike: collection names and default objects' bodies.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use parking_lot::Mutex;

/// Bodies kept for sharing, at most. Default objects are some 200; the rest is for other versions of them.
const MAX_BODIES: usize = 4096;
/// Collection names kept for sharing, at most; custom resources beyond it simply own their names.
const MAX_NAMES: usize = 16_384;

static BODIES: LazyLock<Mutex<HashSet<Bytes>>> = LazyLock::new(Mutex::default);
static NAMES: LazyLock<Mutex<HashSet<Arc<str>>>> = LazyLock::new(Mutex::default);

pub(crate) fn body(body: &[u8]) -> Bytes {
    let mut bodies = BODIES.lock();
    if let Some(kept) = bodies.get(body) {
        return kept.clone();
    }
    // A copy, since `body` may be a slice that keeps a whole log entry alive.
    let kept = Bytes::copy_from_slice(body);
    if bodies.len() < MAX_BODIES {
        bodies.insert(kept.clone());
    }
    kept
}

pub(crate) fn name(name: &str) -> Arc<str> {
    let mut names = NAMES.lock();
    if let Some(kept) = names.get(name) {
        return kept.clone();
    }
    let kept: Arc<str> = name.into();
    if names.len() < MAX_NAMES {
        names.insert(kept.clone());
    }
    kept
}
