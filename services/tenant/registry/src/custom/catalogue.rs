//! Every custom resource of one cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use api_machinery::Gvk;
use store_mvcc::{Memo, Revision, Snapshot};

use super::DEFINITIONS;
use super::definition::{CustomResource, Definition};
use crate::registry::Registry;
use crate::resource::Resource;

/// What the definitions of a cluster come to, at one state of their collection.
pub struct Catalogue {
    /// The state this was made from.
    of: Snapshot,
    /// By name, which is `<plural>.<group>`.
    definitions: BTreeMap<Arc<str>, (Revision, Arc<Definition>)>,
    served: Vec<Arc<CustomResource>>,
    memo: Memo,
}

/// Of the clusters that have no definitions, which are most.
static NOTHING: LazyLock<Arc<Catalogue>> = LazyLock::new(|| Arc::new(Catalogue::of_nothing()));

impl Catalogue {
    fn of_nothing() -> Catalogue {
        Catalogue {
            of: Snapshot { revision: Revision(0), entries: Default::default() },
            definitions: BTreeMap::new(),
            served: Vec::new(),
            memo: Memo::default(),
        }
    }
    pub(crate) fn nothing() -> Arc<Catalogue> {
        NOTHING.clone()
    }

    /// The resource of these parts of a URL; it need not be served (see [`CustomResource::is_served`]). Costs one
    /// look-up by name.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Resource> {
        if self.definitions.is_empty() {
            return None;
        }
        let (_, definition) = self.definitions.get(&*format!("{plural}.{group}"))?;
        let found = definition.resources().iter().find(|one| one.info().gvr.version == version)?;
        Some(found.clone().into())
    }

    /// The resource whose objects have this kind.
    pub fn by_kind(&self, gvk: &Gvk) -> Option<Resource> {
        self.served.iter().find(|one| one.info().gvk == *gvk).map(|one| one.clone().into())
    }

    /// All that is served, in every version: group by group, in the order discovery shows them.
    pub fn served(&self) -> &[Arc<CustomResource>] {
        &self.served
    }
    pub fn is_empty(&self) -> bool {
        self.served.is_empty()
    }

    /// For what is made from this catalogue and lasts as long as it does: documents.
    pub fn memo(&self) -> &Memo {
        &self.memo
    }

    fn is_of(&self, state: &Snapshot) -> bool {
        self.of.entries.ptr_eq(&state.entries)
    }

    /// The one for `state`; definitions that did not change since `self` are taken over.
    fn next(&self, state: Snapshot) -> Catalogue {
        let mut definitions = BTreeMap::new();
        for entry in state.range("", None) {
            let name = &entry.key.name;
            let before = self.definitions.get(name);
            let definition = match before {
                Some((revision, definition)) if *revision == entry.modified => definition.clone(),
                _ => match Definition::read(entry, before.map(|(_, definition)| &**definition)) {
                    Ok(definition) => Arc::new(definition),
                    // Said to the operator when the object could not be read; nobody else is harmed.
                    Err(_) => continue,
                },
            };
            definitions.insert(name.clone(), (entry.modified, definition));
        }
        let all = definitions.values().flat_map(|(_, definition)| definition.resources());
        let mut served: Vec<Arc<CustomResource>> = all.filter(|one| one.is_served()).cloned().collect();
        served.sort_by(|a, b| {
            let key = |one: &CustomResource| (one.info().gvr.group.clone(), one.info().gvr.resource.clone());
            key(a).cmp(&key(b))
        });
        Catalogue { of: state, definitions, served, memo: Memo::default() }
    }
}

impl Registry {
    /// The cluster's custom resources, as of what this replica has applied.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        let state = self.group.space().snapshot(DEFINITIONS);
        let known = self.catalogue.load_full();
        if known.is_of(&state) {
            return known;
        }
        let _one_at_a_time = self.cataloguing.lock();
        // Whoever was here before may have done it, and more may have changed meanwhile.
        let state = self.group.space().snapshot(DEFINITIONS);
        let known = self.catalogue.load_full();
        if known.is_of(&state) {
            return known;
        }
        let next = if state.entries.is_empty() { Catalogue::nothing() } else { Arc::new(known.next(state)) };
        self.catalogue.store(next.clone());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_without_definitions_share_one() {
        let nothing = Catalogue::nothing();
        let empty = Snapshot { revision: Revision(9), entries: Default::default() };
        assert!(nothing.is_of(&empty) && nothing.is_empty());
        assert!(nothing.find("example.com", "v1", "widgets").is_none());
    }
}
