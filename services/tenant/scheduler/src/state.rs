//! What the scheduler knows: nodes, the pods on them, and those it has just decided about.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api_machinery::{Gvk, Object};
use api_placement::{NodeInfo, PodInfo, Snapshot};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::waiting::Key;

const POD: Gvk = Gvk::new("", "v1", "Pod");
const NODE: Gvk = Gvk::new("", "v1", "Node");

#[derive(Default)]
pub(crate) struct State {
    pub snapshot: Snapshot,
    /// Pods that have a node, or are assumed to get one.
    placed: HashMap<Key, Arc<PodInfo>>,
    assumed: HashSet<Key>,
}

/// What a change of a pod means to those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It wants a node.
    Wants,
    /// It has one; that may satisfy others' affinity.
    Placed,
    /// Room became free.
    Freed,
    Nothing,
}

impl State {
    /// `None` when the bytes are not a pod; nothing can be decided about it then.
    pub fn parse_pod(object: &Object) -> Option<PodInfo> {
        object.view::<Pod>(&POD).ok().map(|pod| PodInfo::of(&pod))
    }

    pub fn saw_pod(&mut self, key: &Key, object: &Object) -> (Meaning, Option<Arc<PodInfo>>) {
        let Some(pod) = State::parse_pod(object) else { return (Meaning::Nothing, None) };
        let phase = object.field("status.phase");
        let over = phase.is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
        if over {
            let freed = self.lost_pod(key);
            return (if freed { Meaning::Freed } else { Meaning::Nothing }, None);
        }
        let pod = Arc::new(pod);
        if pod.node.is_empty() {
            // What is decided stays decided until the binding has been answered.
            let undecided = !self.assumed.contains(key) && !pod.is_deleting && !pod.gated;
            return (if undecided { Meaning::Wants } else { Meaning::Nothing }, Some(pod));
        }
        self.assumed.remove(key);
        let before = self.take(key);
        let news = before.as_ref().is_none_or(|before| before.labels != pod.labels);
        self.put(key.clone(), pod.clone());
        (if news { Meaning::Placed } else { Meaning::Nothing }, Some(pod))
    }

    /// True when it had taken room.
    pub fn lost_pod(&mut self, key: &Key) -> bool {
        self.assumed.remove(key);
        self.take(key).is_some()
    }

    /// Counts the pod as being on `node` before the API says so.
    pub fn assume(&mut self, key: &Key, pod: &PodInfo, node: &str) {
        let pod = PodInfo { node: node.to_owned(), ..pod.clone() };
        self.take(key);
        self.put(key.clone(), Arc::new(pod));
        self.assumed.insert(key.clone());
    }
    /// The binding was refused.
    pub fn forget(&mut self, key: &Key) {
        if self.assumed.remove(key) {
            self.take(key);
        }
    }

    /// True when pods that wait may fit now.
    pub fn saw_node(&mut self, object: &Object) -> bool {
        let Ok(node) = object.view::<Node>(&NODE) else { return false };
        let mut node = NodeInfo::of(&node);
        let name = node.name.clone();
        let news = match self.snapshot.nodes.remove(&name) {
            Some(known) => {
                let same = known.labels == node.labels
                    && known.taints == node.taints
                    && known.unschedulable == node.unschedulable
                    && known.allocatable == node.allocatable;
                node = node.with_pods_of(known);
                !same
            }
            None => {
                self.placed.values().filter(|pod| pod.node == name).for_each(|pod| node.add(pod.clone()));
                true
            }
        };
        self.snapshot.nodes.insert(name, node);
        news
    }
    pub fn lost_node(&mut self, name: &str) {
        self.snapshot.nodes.remove(name);
    }

    pub fn saw_namespace(&mut self, object: &Object) -> bool {
        let labels = object.header.labels.clone();
        let before = self.snapshot.namespaces.insert(object.header.name.to_string(), labels.clone());
        before.is_none_or(|before| before != labels)
    }
    pub fn lost_namespace(&mut self, name: &str) {
        self.snapshot.namespaces.remove(name);
    }

    pub fn placed_keys(&self) -> Vec<Key> {
        self.placed.keys().filter(|key| !self.assumed.contains(*key)).cloned().collect()
    }

    fn put(&mut self, key: Key, pod: Arc<PodInfo>) {
        if let Some(node) = self.snapshot.nodes.get_mut(&pod.node) {
            node.add(pod.clone());
        }
        self.placed.insert(key, pod);
    }
    fn take(&mut self, key: &Key) -> Option<Arc<PodInfo>> {
        let pod = self.placed.remove(key)?;
        if let Some(node) = self.snapshot.nodes.get_mut(&pod.node) {
            node.remove(&pod.uid);
        }
        Some(pod)
    }
}
