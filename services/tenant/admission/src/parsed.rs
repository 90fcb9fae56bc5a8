//! Configurations, parsed once per version of the object that holds them.

use std::collections::HashMap;
use std::sync::Arc;

use api_machinery::Object;
use parking_lot::Mutex;

/// By name, with the revision of the object that it was made from.
type ByName<T> = HashMap<Box<str>, (u64, Arc<T>)>;

/// What `T` each object of a small collection was parsed to. Holds nothing of objects that are gone.
pub(crate) struct Parsed<T>(Mutex<ByName<T>>);

impl<T> Default for Parsed<T> {
    fn default() -> Parsed<T> {
        Parsed(Mutex::default())
    }
}

impl<T> Parsed<T> {
    /// In the order of `objects`, which stores keep by name: the order upstream calls webhooks in.
    pub(crate) fn of(&self, objects: &[Arc<Object>], make: impl Fn(&Object) -> T) -> Vec<Arc<T>> {
        let mut kept = self.0.lock();
        if objects.is_empty() {
            kept.clear();
            return Vec::new();
        }
        let all: Vec<Arc<T>> = objects
            .iter()
            .map(|object| {
                let header = &object.header;
                let key: Box<str> = match &header.namespace {
                    Some(namespace) => format!("{namespace}/{}", header.name).into(),
                    None => header.name.clone(),
                };
                match kept.get(&key) {
                    Some((revision, found)) if *revision == header.revision => found.clone(),
                    _ => {
                        let made = Arc::new(make(object));
                        kept.insert(key, (header.revision, made.clone()));
                        made
                    }
                }
            })
            .collect();
        if kept.len() > objects.len() {
            let now: std::collections::HashSet<u64> = objects.iter().map(|one| one.header.revision).collect();
            kept.retain(|_, (revision, _)| now.contains(revision));
        }
        all
    }
}
