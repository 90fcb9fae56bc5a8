//! Reading the few facts that authentication needs off stored objects.
//!
//! Bodies are parsed here into what is asked for and nothing else; the entry's memo belongs to the
//! registry.

use std::sync::Arc;

use api_machinery::Stamp;
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store_mvcc::{Entry, Key, Space};

/// The name of an entry: `<namespace>/<name>`, or `<name>` for cluster scope.
pub(crate) fn key(collection: &str, namespace: &str, name: &str) -> Key {
    if namespace.is_empty() {
        Key::new(collection, name)
    } else {
        Key::new(collection, format!("{namespace}/{name}"))
    }
}

/// A stored object and who it is.
#[derive(Debug)]
pub(crate) struct Found {
    pub entry: Arc<Entry>,
    pub uid: String,
    pub deleting_since: Option<Timestamp>,
}

/// `None` when it isn't there, or isn't an object of ours.
pub(crate) fn find(space: &Space, key: &Key) -> Option<Found> {
    #[derive(Deserialize)]
    struct Outer {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        #[serde(default)]
        deletion_timestamp: Option<Timestamp>,
    }
    let entry = space.get(key)?;
    let stamp = Stamp::decode(&entry.value.stamp).ok()?;
    let Outer { metadata } = body(&entry)?;
    Some(Found { entry, uid: stamp.uid.to_string(), deleting_since: metadata.deletion_timestamp })
}

/// The parts of a body that `T` names. Whoever reads this way says with `#[serde(default)]` what may lack.
pub(crate) fn body<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    match serde_json::from_slice(&entry.value.body) {
        Ok(parsed) => Some(parsed),
        Err(cause) => {
            // What is stored was validated, so this is corruption or an older version's mistake.
            tracing::warn!(key = %entry.key, %cause, "stored object can not be read");
            None
        }
    }
}
