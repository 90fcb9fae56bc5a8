//! What one tenant's supervisor has seen of its cluster.
//!
//! A map of shared objects per resource, and the indexes controllers need: by owner, and pods by node.
//! Nothing is parsed but headers and two fields of a pod.
//!
//! What the controllers wrote themselves is taken in at once ([`World::wrote`], [`World::deleted`]), before
//! the watch tells; that is why no controller here counts expectations. Revisions decide between the two
//! sources: what a watch has shown already is never overwritten by an answer that took longer.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use api_machinery::{LabelSelector, Object};
use serde::Deserialize;
use uuid::Uuid;

use crate::catalog::{Catalog, ResourceId, res};
use crate::controller::Key;

#[derive(Debug)]
pub struct World {
    catalog: Arc<Catalog>,
    shelves: Vec<Shelf>,
    owned: HashMap<Uuid, BTreeSet<Key>>,
    pods_on: BTreeMap<Arc<str>, BTreeSet<PodName>>,
    node_of: HashMap<Uuid, Arc<str>>,
    /// Deletes the API has accepted and no watch has shown yet.
    doomed: HashSet<Uuid>,
}

/// Namespace and name.
type PodName = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
struct Shelf {
    objects: BTreeMap<(Box<str>, Box<str>), Arc<Object>>,
    /// How far the watch has come.
    observed: u64,
    synced: bool,
}

#[derive(Deserialize)]
struct PodNode<'a> {
    #[serde(borrow, default)]
    spec: PodNodeSpec<'a>,
}
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodNodeSpec<'a> {
    #[serde(borrow)]
    node_name: Option<std::borrow::Cow<'a, str>>,
}

impl World {
    pub fn new(catalog: Arc<Catalog>) -> World {
        let shelves = (0..catalog.len()).map(|_| Shelf::default()).collect();
        World {
            catalog,
            shelves,
            owned: HashMap::new(),
            pods_on: BTreeMap::new(),
            node_of: HashMap::new(),
            doomed: HashSet::new(),
        }
    }

    // ---- reading ----

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }
    pub fn is_synced(&self, of: ResourceId) -> bool {
        self.shelf(of).synced
    }
    pub fn get(&self, of: ResourceId, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.shelf(of).objects.get(&(namespace.into(), name.into()))
    }
    pub fn at(&self, key: &Key) -> Option<&Arc<Object>> {
        self.get(key.of, &key.namespace, &key.name)
    }
    pub fn all(&self, of: ResourceId) -> impl Iterator<Item = &Arc<Object>> {
        self.shelf(of).objects.values()
    }
    pub fn count(&self, of: ResourceId) -> usize {
        self.shelf(of).objects.len()
    }
    pub fn within<'a>(
        &'a self,
        of: ResourceId,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let from: (Box<str>, Box<str>) = (namespace.into(), "".into());
        let namespace = from.0.clone();
        self.shelf(of)
            .objects
            .range(from..)
            .take_while(move |((at, _), _)| *at == namespace)
            .map(|(_, object)| object)
    }
    pub fn select<'a>(
        &'a self,
        of: ResourceId,
        namespace: &str,
        selector: &'a LabelSelector,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.within(of, namespace).filter(move |object| selector.matches(&object.header.labels))
    }
    /// Everything that names `owner` among its owners.
    pub fn owned_by(&self, owner: &Uuid) -> impl Iterator<Item = (&Key, &Arc<Object>)> {
        self.owned.get(owner).into_iter().flatten().filter_map(|key| Some((key, self.at(key)?)))
    }
    /// Objects of one resource that `owner` controls.
    pub fn controlled_by(&self, of: ResourceId, owner: &Uuid) -> Vec<&Arc<Object>> {
        let text = owner.to_string();
        self.owned_by(owner)
            .filter(|(key, object)| {
                key.of == of && object.controller().is_some_and(|controller| controller.uid == text)
            })
            .map(|(_, object)| object)
            .collect()
    }
    pub fn pods_on<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<Object>> {
        let names = self.pods_on.get(node).into_iter().flatten();
        names.filter_map(|(namespace, name)| self.get(res::PODS, namespace, name))
    }
    pub fn node_of(&self, pod: &Object) -> Option<&Arc<str>> {
        self.node_of.get(&pod.header.uid)
    }
    /// Being deleted, as far as anybody knows: our own accepted deletes count before the watch shows them.
    pub fn is_deleting(&self, object: &Object) -> bool {
        object.header.deleting_since.is_some() || self.doomed.contains(&object.header.uid)
    }
    /// The object with this uid, by the resource and name its reference gives.
    pub fn owner(&self, namespace: &str, reference: &api_machinery::OwnerReference) -> Option<&Arc<Object>> {
        let of = self.catalog.by_kind(&reference.api_version, &reference.kind)?;
        let namespace = if self.catalog.get(of).namespaced { namespace } else { "" };
        let found = self.get(of, namespace, &reference.name)?;
        (found.header.uid.to_string() == reference.uid).then_some(found)
    }

    // ---- taking in ----

    /// The cluster serves other resources than before.
    pub(crate) fn serves(&mut self, catalog: Arc<Catalog>) {
        self.shelves.resize_with(catalog.len(), Shelf::default);
        self.catalog = catalog;
    }

    /// A resource is served no longer. Returns what was known of it.
    pub(crate) fn retire(&mut self, of: ResourceId) -> Vec<Arc<Object>> {
        let gone: Vec<Arc<Object>> = self.shelf(of).objects.values().cloned().collect();
        for object in &gone {
            self.take_out(of, object);
            self.doomed.remove(&object.header.uid);
        }
        self.shelves[usize::from(of.0)] = Shelf::default();
        gone
    }

    /// A fresh list. Returns what went away unseen; everything listed is to be announced too.
    pub(crate) fn listed(
        &mut self,
        of: ResourceId,
        revision: u64,
        items: &[Arc<Object>],
    ) -> Vec<Arc<Object>> {
        let present: HashSet<Uuid> = items.iter().map(|object| object.header.uid).collect();
        let shelf = &self.shelves[usize::from(of.0)];
        let gone: Vec<Arc<Object>> = shelf
            .objects
            .values()
            // What we wrote after the list was made is not gone.
            .filter(|object| !present.contains(&object.header.uid) && object.header.revision <= revision)
            .cloned()
            .collect();
        for object in &gone {
            self.take_out(of, object);
            self.doomed.remove(&object.header.uid);
        }
        self.shelves[usize::from(of.0)].observed = revision;
        self.shelves[usize::from(of.0)].synced = true;
        gone
    }

    /// An object as a list or watch shows it. `None`: nothing new. Else what was known before.
    #[allow(clippy::option_option)]
    pub(crate) fn saw(&mut self, of: ResourceId, object: &Arc<Object>) -> Option<Option<Arc<Object>>> {
        let shelf = &mut self.shelves[usize::from(of.0)];
        shelf.observed = shelf.observed.max(object.header.revision);
        self.put_in(of, object)
    }

    /// An object we wrote, as the API answered. As [`World::saw`].
    #[allow(clippy::option_option)]
    pub(crate) fn wrote(&mut self, of: ResourceId, object: &Arc<Object>) -> Option<Option<Arc<Object>>> {
        if object.header.revision <= self.shelf(of).observed {
            return None;
        }
        self.put_in(of, object)
    }

    /// A watch shows that the object is gone.
    pub(crate) fn lost(&mut self, of: ResourceId, object: &Arc<Object>) -> Option<Arc<Object>> {
        let shelf = &mut self.shelves[usize::from(of.0)];
        shelf.observed = shelf.observed.max(object.header.revision);
        self.doomed.remove(&object.header.uid);
        let known = shelf.objects.get(&name_of(object))?;
        // A namesake made since stays.
        if known.header.uid != object.header.uid {
            return None;
        }
        let known = known.clone();
        self.take_out(of, &known);
        Some(known)
    }

    /// Nothing up to `revision` is still to come.
    pub(crate) fn reached(&mut self, of: ResourceId, revision: u64) {
        let shelf = &mut self.shelves[usize::from(of.0)];
        shelf.observed = shelf.observed.max(revision);
    }

    /// The API accepted our delete.
    pub(crate) fn deleted(&mut self, of: ResourceId, namespace: &str, name: &str, uid: &str) {
        let Ok(uid) = Uuid::parse_str(uid) else { return };
        let known = self.get(of, namespace, name);
        if known.is_some_and(|known| known.header.uid == uid && known.header.deleting_since.is_none()) {
            self.doomed.insert(uid);
        }
    }

    #[allow(clippy::option_option)]
    fn put_in(&mut self, of: ResourceId, object: &Arc<Object>) -> Option<Option<Arc<Object>>> {
        let name = name_of(object);
        let known = self.shelf(of).objects.get(&name).cloned();
        if known.as_ref().is_some_and(|known| known.header.revision >= object.header.revision) {
            return None;
        }
        if object.header.deleting_since.is_some() {
            self.doomed.remove(&object.header.uid);
        }
        if let Some(known) = &known {
            self.take_out(of, known);
        }
        if !self.catalog.keeps(of, object) {
            return Some(known);
        }
        let key = Key::of(of, object);
        for owner in &object.header.owners {
            if let Ok(uid) = Uuid::parse_str(&owner.uid) {
                self.owned.entry(uid).or_default().insert(key.clone());
            }
        }
        if of == res::PODS
            && let Some(node) = node_name(object)
        {
            let node: Arc<str> = match self.pods_on.get_key_value(&*node) {
                Some((known, _)) => known.clone(),
                None => node.into(),
            };
            self.node_of.insert(object.header.uid, node.clone());
            self.pods_on.entry(node).or_default().insert((key.namespace.clone(), key.name.clone()));
        }
        self.shelves[usize::from(of.0)].objects.insert(name, object.clone());
        Some(known)
    }

    fn take_out(&mut self, of: ResourceId, object: &Arc<Object>) {
        self.shelves[usize::from(of.0)].objects.remove(&name_of(object));
        let key = Key::of(of, object);
        for owner in &object.header.owners {
            let Ok(uid) = Uuid::parse_str(&owner.uid) else { continue };
            if let Some(keys) = self.owned.get_mut(&uid) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.owned.remove(&uid);
                }
            }
        }
        if of == res::PODS
            && let Some(node) = self.node_of.remove(&object.header.uid)
            && let Some(pods) = self.pods_on.get_mut(&node)
        {
            pods.remove(&(key.namespace, key.name));
            if pods.is_empty() {
                self.pods_on.remove(&node);
            }
        }
    }

    fn shelf(&self, of: ResourceId) -> &Shelf {
        &self.shelves[usize::from(of.0)]
    }
}

fn name_of(object: &Object) -> (Box<str>, Box<str>) {
    (object.header.namespace.clone().unwrap_or_default(), object.header.name.clone())
}

fn node_name(pod: &Object) -> Option<String> {
    let parsed: PodNode<'_> = serde_json::from_slice(pod.body()).ok()?;
    parsed.spec.node_name.filter(|node| !node.is_empty()).map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::res::PODS;
    use api_machinery::Document;
    use serde_json::json;

    fn pod(name: &str, uid: u8, revision: u64, node: &str, owner: u8) -> Arc<Object> {
        let value = json!({
            "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": "d", "uid": Uuid::from_bytes([uid; 16]).to_string(),
                "resourceVersion": revision.to_string(),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "controller": true,
                    "uid": Uuid::from_bytes([owner; 16]).to_string()}],
            },
            "spec": {"nodeName": node},
        });
        Arc::new(Object::from_document(&Document::from_value(value).unwrap()).unwrap())
    }
    fn names(world: &World) -> Vec<String> {
        world.all(PODS).map(|pod| format!("{}@{}", pod.header.name, pod.header.revision)).collect()
    }

    #[test]
    fn our_own_writes_count_until_the_watch_has_caught_up() {
        let mut world = World::new(Arc::new(Catalog::known()));
        assert!(world.listed(PODS, 10, &[]).is_empty());
        assert!(world.wrote(PODS, &pod("a", 1, 12, "", 9)).is_some());
        assert_eq!(names(&world), ["a@12"]);
        assert!(world.saw(PODS, &pod("a", 1, 12, "", 9)).is_none(), "shown already");
        assert!(world.saw(PODS, &pod("a", 1, 14, "n1", 9)).is_some());
        assert!(world.lost(PODS, &pod("a", 1, 15, "n1", 9)).is_some());
        assert!(world.wrote(PODS, &pod("a", 1, 13, "", 9)).is_none(), "an answer that took longer");
        assert_eq!(names(&world), Vec::<String>::new());
        assert_eq!(world.pods_on("n1").count(), 0);
    }

    #[test]
    fn indexes_follow_their_objects() {
        let mut world = World::new(Arc::new(Catalog::known()));
        world.listed(PODS, 1, &[]);
        world.saw(PODS, &pod("a", 1, 2, "n1", 9));
        world.saw(PODS, &pod("b", 2, 3, "n1", 8));
        let owner = |byte: u8| Uuid::from_bytes([byte; 16]);
        assert_eq!(world.pods_on("n1").count(), 2);
        assert_eq!(world.controlled_by(PODS, &owner(9)).len(), 1);
        world.saw(PODS, &pod("a", 1, 4, "n2", 8));
        assert_eq!(world.pods_on("n1").count(), 1);
        assert_eq!(world.controlled_by(PODS, &owner(9)).len(), 0);
        assert_eq!(world.controlled_by(PODS, &owner(8)).len(), 2);
        world.deleted(PODS, "d", "a", &owner(1).to_string());
        assert!(world.is_deleting(&pod("a", 1, 4, "n2", 8)));
        let gone = world.listed(PODS, 9, &[]);
        assert_eq!(gone.len(), 2);
        assert_eq!(world.owned.len(), 0);
    }

    #[test]
    fn a_namesake_survives_the_news_of_an_older_death() {
        let mut world = World::new(Arc::new(Catalog::known()));
        world.listed(PODS, 1, &[]);
        world.wrote(PODS, &pod("a", 2, 7, "", 9));
        assert!(world.lost(PODS, &pod("a", 1, 6, "", 9)).is_none());
        assert_eq!(names(&world), ["a@7"]);
    }
}
