//! What a node may do: run the pods bound to it.
//!
//! A node (`system:node:<name>` in `system:nodes`) may read the objects its pods refer to and write its
//! own; who it may create or change in detail is the NodeRestriction admission's. Upstream keeps a graph
//! of all objects; here the pods by node are the only index, brought up to date from the store's events
//! when a node asks, so a cluster without nodes pays nothing. Everything else is looked up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use store_mvcc::{Entry, EventKind, Key, Space, Watch};
use tenant_client::{Access, Authorizer, Decision, Target, UserInfo};

use crate::policy;
use crate::rbac::Rule;
use crate::stored;

/// Decides for nodes; has no opinion on anybody else.
pub struct NodeAuthorizer {
    space: Arc<Space>,
    rules: Vec<Rule>,
    pods: Mutex<Option<PodIndex>>,
}

impl std::fmt::Debug for NodeAuthorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeAuthorizer").finish_non_exhaustive()
    }
}

/// Bound pods, and the watch that keeps them current. The watch reads the collection's shared ring of
/// events when a node asks; nothing runs in between.
struct PodIndex {
    watch: Watch,
    nodes: HashMap<Box<str>, BTreeMap<Arc<str>, Pod>>,
}

/// What a pod refers to, in its own namespace.
#[derive(Debug, Default)]
struct Pod {
    references: Vec<(Kind, Box<str>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    ResourceClaim,
}

/// The node that `user` is: `Some("")` for one that doesn't say which.
fn node_of(user: &UserInfo) -> Option<&str> {
    if !user.is_in("system:nodes") {
        return None;
    }
    user.name.strip_prefix("system:node:")
}

fn no(reason: impl Into<String>) -> Decision {
    Decision::NoOpinion { reason: reason.into() }
}

fn yes() -> Decision {
    Decision::Allow { reason: String::new() }
}

impl Authorizer for NodeAuthorizer {
    fn decide(&self, user: &UserInfo, access: &Access) -> Decision {
        let Some(node) = node_of(user) else { return no("") };
        if node.is_empty() {
            return no(format!("unknown node for user {:?}", user.name));
        }
        if let Target::Resource { group, resource, subresource, namespace, name, .. } = &access.target {
            let ask = Ask { node, verb: &access.verb, subresource, namespace, name, access };
            match (group.as_str(), resource.as_str()) {
                ("", "secrets") => return self.read(&ask, Kind::Secret),
                ("", "configmaps") => return self.read(&ask, Kind::ConfigMap),
                ("", "persistentvolumeclaims") if subresource == "status" => {
                    return match ask.verb {
                        "update" | "patch" => self.related(&ask, |index| index.refers(&ask, Kind::Claim)),
                        _ => no("can only get/update/patch this type"),
                    };
                }
                ("", "persistentvolumeclaims") => {
                    return self.get(&ask, |index| index.refers(&ask, Kind::Claim));
                }
                ("", "persistentvolumes") => return self.get(&ask, |index| self.volume_is_near(index, &ask)),
                ("resource.k8s.io", "resourceclaims") => {
                    return self.get(&ask, |index| index.refers(&ask, Kind::ResourceClaim));
                }
                ("storage.k8s.io", "volumeattachments") => {
                    return self.get(&ask, |_| self.names_node("volumeattachments", &ask));
                }
                ("", "serviceaccounts") => return self.service_account(&ask),
                ("coordination.k8s.io", "leases") => return lease(&ask),
                ("storage.k8s.io", "csinodes") => return csi_node(&ask),
                ("resource.k8s.io", "resourceslices") => return self.resource_slice(&ask),
                ("", "nodes") => return own_node(&ask),
                ("", "pods") => return self.pod(&ask),
                _ => {}
            }
        }
        if self.rules.iter().any(|rule| rule.allows(access)) { yes() } else { no("") }
    }
}

/// One question of one node's.
struct Ask<'a> {
    node: &'a str,
    verb: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
    access: &'a Access,
}

impl Ask<'_> {
    /// Whether the request's field selector pins `field` to this node.
    fn selects_own(&self, field: &str) -> bool {
        let terms = &self.access.fields.terms;
        terms.iter().any(|(path, value, equal)| *equal && path == field && value == self.node)
    }
}

impl NodeAuthorizer {
    pub fn new(space: Arc<Space>) -> NodeAuthorizer {
        NodeAuthorizer { space, rules: policy::node_rules(), pods: Mutex::new(None) }
    }

    fn related(&self, ask: &Ask<'_>, test: impl FnOnce(&PodIndex) -> bool) -> Decision {
        if ask.name.is_empty() {
            return no("No Object name found");
        }
        if self.with_pods(test) {
            yes()
        } else {
            no(format!("no relationship found between node '{}' and this object", ask.node))
        }
    }

    fn get(&self, ask: &Ask<'_>, test: impl FnOnce(&PodIndex) -> bool) -> Decision {
        if ask.verb != "get" {
            return no("can only get individual resources of this type");
        }
        if !ask.subresource.is_empty() {
            return no("cannot get subresource");
        }
        self.related(ask, test)
    }

    /// Lists and watches of one object by name are reads of it too: kubelets watch what they mount.
    fn read(&self, ask: &Ask<'_>, kind: Kind) -> Decision {
        if !matches!(ask.verb, "get" | "list" | "watch") {
            return no("can only read resources of this type");
        }
        if !ask.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if ask.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related(ask, |index| {
            index.refers(ask, kind) || (kind == Kind::Secret && self.volume_secret_is_near(index, ask))
        })
    }

    fn service_account(&self, ask: &Ask<'_>) -> Decision {
        if ask.verb == "get" && ask.subresource.is_empty() {
            return self.read(ask, Kind::ServiceAccount);
        }
        if ask.verb != "create" || ask.name.is_empty() {
            return no("can only create tokens for individual service accounts");
        }
        if ask.subresource != "token" {
            return no("can only create token subresource of serviceaccount");
        }
        self.related(ask, |index| index.refers(ask, Kind::ServiceAccount))
    }

    fn pod(&self, ask: &Ask<'_>) -> Decision {
        match (ask.subresource, ask.verb) {
            ("", "get") => self.get(ask, |index| index.has(ask)),
            ("", "list" | "watch") if ask.selects_own("spec.nodeName") => yes(),
            ("", "list" | "watch") if !ask.name.is_empty() => self.related(ask, |index| index.has(ask)),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            // NodeRestriction limits these to mirror pods and pods of this node.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => yes(),
            _ => no(""),
        }
    }

    fn resource_slice(&self, ask: &Ask<'_>) -> Decision {
        if !ask.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match ask.verb {
            "create" => yes(),
            "get" | "update" | "patch" | "delete" => {
                self.related(ask, |_| self.names_node("resourceslices", ask))
            }
            "watch" | "list" | "deletecollection" if ask.selects_own("spec.nodeName") => yes(),
            "watch" | "list" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    /// Whether a cluster-scoped object's `spec.nodeName` is the asking node.
    fn names_node(&self, collection: &str, ask: &Ask<'_>) -> bool {
        let body = self.body(&stored::key(collection, "", ask.name));
        body.is_some_and(|body| text(&body, "/spec/nodeName") == Some(ask.node))
    }

    /// Whether a pod of the node uses the claim that a volume is bound to.
    fn volume_is_near(&self, index: &PodIndex, ask: &Ask<'_>) -> bool {
        let Some(body) = self.body(&stored::key("persistentvolumes", "", ask.name)) else { return false };
        let (Some(namespace), Some(name)) =
            (text(&body, "/spec/claimRef/namespace"), text(&body, "/spec/claimRef/name"))
        else {
            return false;
        };
        index.refers(&Ask { namespace, name, ..*ask }, Kind::Claim)
    }

    /// Whether a volume that a pod of the node uses names this secret.
    fn volume_secret_is_near(&self, index: &PodIndex, ask: &Ask<'_>) -> bool {
        let pods = index.nodes.get(ask.node).into_iter().flatten();
        let claims = pods.flat_map(|(key, pod)| {
            let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
            let claims = pod.references.iter().filter(|(kind, _)| *kind == Kind::Claim);
            claims.map(move |(_, name)| (namespace, name))
        });
        for (namespace, claim) in claims {
            let volume =
                self.body(&stored::key("persistentvolumeclaims", namespace, claim)).and_then(|body| {
                    self.body(&stored::key("persistentvolumes", "", text(&body, "/spec/volumeName")?))
                });
            let Some(volume) = volume else { continue };
            let claimed = (text(&volume, "/spec/claimRef/namespace"), text(&volume, "/spec/claimRef/name"));
            // A claim may name any volume; only the volume's own word binds them.
            if claimed == (Some(namespace), Some(claim)) && names_secret(&volume["spec"], namespace, ask) {
                return true;
            }
        }
        false
    }

    fn body(&self, key: &Key) -> Option<Value> {
        stored::body(&*self.space.get(key)?)
    }

    /// Runs `test` on the index as of now. Without one (the key space is being closed) nothing is related.
    fn with_pods(&self, test: impl FnOnce(&PodIndex) -> bool) -> bool {
        let mut pods = self.pods.lock();
        let current = pods.take().and_then(PodIndex::follow).or_else(|| PodIndex::build(&self.space));
        *pods = current;
        pods.as_ref().is_some_and(test)
    }
}

impl PodIndex {
    fn build(space: &Arc<Space>) -> Option<PodIndex> {
        let all = space.snapshot("pods");
        let watch = space.watch("pods", all.revision).ok()?;
        let mut index = PodIndex { watch, nodes: HashMap::new() };
        all.entries.values().for_each(|entry| index.add(entry));
        index.follow()
    }

    /// `None` when the ring no longer reaches back to where this index is.
    fn follow(mut self) -> Option<PodIndex> {
        loop {
            let events = self.watch.poll().ok()?.events;
            if events.is_empty() {
                return Some(self);
            }
            for event in events {
                match event.kind {
                    EventKind::Delete => self.remove(&event.entry),
                    EventKind::Put => {
                        if let Some(previous) = &event.previous {
                            self.remove(previous);
                        }
                        self.add(&event.entry);
                    }
                }
            }
        }
    }

    fn add(&mut self, entry: &Entry) {
        if let Some((node, pod)) = bound_pod(entry) {
            self.nodes.entry(node).or_default().insert(entry.key.name.clone(), pod);
        }
    }

    fn remove(&mut self, entry: &Entry) {
        if let Some((node, _)) = bound_pod(entry)
            && let Some(pods) = self.nodes.get_mut(&node)
        {
            pods.remove(&entry.key.name);
            if pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }

    /// Whether the pod asked about is bound to the node.
    fn has(&self, ask: &Ask<'_>) -> bool {
        let key = format!("{}/{}", ask.namespace, ask.name);
        self.nodes.get(ask.node).is_some_and(|pods| pods.contains_key(key.as_str()))
    }

    /// Whether a pod bound to the node refers to the object asked about.
    fn refers(&self, ask: &Ask<'_>, wanted: Kind) -> bool {
        let Some(pods) = self.nodes.get(ask.node) else { return false };
        let prefix: Arc<str> = format!("{}/", ask.namespace).into();
        pods.range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&*prefix))
            .any(|(_, pod)| pod.references.iter().any(|(kind, name)| *kind == wanted && **name == *ask.name))
    }
}

fn own_node(ask: &Ask<'_>) -> Decision {
    match (ask.subresource, ask.verb) {
        // NodeRestriction limits writes to its own object. Reads compare names, since a kubelet looks for
        // its Node before there is one.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => yes(),
        ("", "get" | "list" | "watch") => match ask.name {
            name if name == ask.node => yes(),
            "" => no(format!("node '{}' cannot read all nodes, only its own Node object", ask.node)),
            other => no(format!("node '{}' cannot read '{other}', only its own Node object", ask.node)),
        },
        _ => no(""),
    }
}

fn lease(ask: &Ask<'_>) -> Decision {
    if !matches!(ask.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a node lease");
    }
    if ask.namespace != "kube-node-lease" {
        return no("can only access leases in the \"kube-node-lease\" system namespace");
    }
    // The name of what is being created isn't known here; NodeRestriction sees it.
    if ask.verb != "create" && ask.name != ask.node {
        return no("can only access node lease with the same name as the requesting node");
    }
    yes()
}

fn csi_node(ask: &Ask<'_>) -> Decision {
    if !matches!(ask.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a CSINode");
    }
    if !ask.subresource.is_empty() {
        return no("cannot authorize CSINode subresources");
    }
    if ask.verb != "create" && ask.name != ask.node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    yes()
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
}

fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The node a pod is bound to, and what the pod refers to.
fn bound_pod(entry: &Entry) -> Option<(Box<str>, Pod)> {
    let body: Value = stored::body(entry)?;
    let node = text(&body, "/spec/nodeName")?;
    let mut references = Vec::new();
    // A mirror pod is the node's own invention: were its references believed, a node could read anything.
    let mirror = body
        .pointer("/metadata/annotations")
        .is_some_and(|all| all.get("kubernetes.io/config.mirror").is_some());
    if !mirror {
        let mut refer = |kind, name: Option<&str>| {
            if let Some(name) = name
                && !references
                    .iter()
                    .any(|(other, known): &(Kind, Box<str>)| *other == kind && **known == *name)
            {
                references.push((kind, name.into()));
            }
        };
        refer(Kind::ServiceAccount, text(&body, "/spec/serviceAccountName"));
        for secret in items(&body, "/spec/imagePullSecrets") {
            refer(Kind::Secret, text(secret, "/name"));
        }
        for list in ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"] {
            for container in items(&body, list) {
                for source in items(container, "/envFrom") {
                    refer(Kind::Secret, text(source, "/secretRef/name"));
                    refer(Kind::ConfigMap, text(source, "/configMapRef/name"));
                }
                for variable in items(container, "/env") {
                    refer(Kind::Secret, text(variable, "/valueFrom/secretKeyRef/name"));
                    refer(Kind::ConfigMap, text(variable, "/valueFrom/configMapKeyRef/name"));
                }
            }
        }
        let pod_name = text(&body, "/metadata/name").unwrap_or_default();
        for volume in items(&body, "/spec/volumes") {
            refer(Kind::Secret, text(volume, "/secret/secretName"));
            refer(Kind::ConfigMap, text(volume, "/configMap/name"));
            refer(Kind::Claim, text(volume, "/persistentVolumeClaim/claimName"));
            if volume.get("ephemeral").is_some() {
                let claim = format!("{pod_name}-{}", text(volume, "/name").unwrap_or_default());
                refer(Kind::Claim, Some(&claim));
            }
            for source in items(volume, "/projected/sources") {
                refer(Kind::Secret, text(source, "/secret/name"));
                refer(Kind::ConfigMap, text(source, "/configMap/name"));
            }
            // What remains are drivers with a secret of their own (cephfs, rbd, iscsi, csi, azureFile, …).
            for driver in volume.as_object().into_iter().flat_map(|volume| volume.values()) {
                refer(Kind::Secret, text(driver, "/secretRef/name"));
                refer(Kind::Secret, text(driver, "/nodePublishSecretRef/name"));
                refer(Kind::Secret, text(driver, "/secretName"));
            }
        }
        for claim in items(&body, "/spec/resourceClaims") {
            refer(Kind::ResourceClaim, text(claim, "/resourceClaimName"));
        }
        for claim in items(&body, "/status/resourceClaimStatuses") {
            refer(Kind::ResourceClaim, text(claim, "/resourceClaimName"));
        }
        refer(Kind::ResourceClaim, text(&body, "/status/extendedResourceClaimStatus/resourceClaimName"));
    }
    Some((node.into(), Pod { references }))
}

/// Whether a volume's source names the secret asked about; without a namespace of its own it means the
/// claim's.
fn names_secret(spec: &Value, claim_namespace: &str, ask: &Ask<'_>) -> bool {
    let sources = spec.as_object().into_iter().flat_map(|spec| spec.values());
    sources.filter_map(Value::as_object).any(|source| {
        // What a CSI driver's controller needs is not the node's to read.
        let named = source.iter().filter(|(field, _)| {
            (field.ends_with("SecretRef") && !field.starts_with("controller")) || *field == "secretRef"
        });
        let by_reference = named.filter_map(|(_, reference)| {
            Some((text(reference, "/namespace").unwrap_or(claim_namespace), text(reference, "/name")?))
        });
        let field = |name: &str| source.get(name).and_then(Value::as_str);
        let azure =
            field("secretName").map(|name| (field("secretNamespace").unwrap_or(claim_namespace), name));
        by_reference.chain(azure).any(|(namespace, name)| namespace == ask.namespace && name == ask.name)
    })
}

#[cfg(test)]
mod tests {
    use api_machinery::FieldSelector;
    use serde_json::json;
    use store_mvcc::{Command, Expect, Limits, Op, Term};

    use super::*;
    use crate::rbac::tests::put;

    fn pod(name: &str, node: &str, spec: Value) -> Value {
        let mut pod = json!({"metadata": {"name": name, "namespace": "blue"}, "spec": spec});
        pod["spec"]["nodeName"] = node.into();
        pod
    }

    fn cluster() -> Arc<Space> {
        let space = Arc::new(Space::new(Limits::default()));
        put(
            &space,
            "pods",
            pod(
                "web",
                "n1",
                json!({
                    "serviceAccountName": "web",
                    "imagePullSecrets": [{"name": "pull"}],
                    "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "from"}}],
                        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}]}],
                    "volumes": [
                        {"name": "a", "secret": {"secretName": "mounted"}},
                        {"name": "b", "projected": {"sources": [{"configMap": {"name": "projected"}}]}},
                        {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                        {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "publish"}}},
                        {"name": "e", "ephemeral": {}},
                    ],
                }),
            ),
        );
        put(
            &space,
            "pods",
            pod("other", "n2", json!({"volumes": [{"name": "a", "secret": {"secretName": "theirs"}}]})),
        );
        let mut mirror =
            pod("mirror", "n1", json!({"volumes": [{"name": "a", "secret": {"secretName": "claimed"}}]}));
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        put(&space, "pods", mirror);
        put(
            &space,
            "persistentvolumeclaims",
            json!({"metadata": {"name": "data", "namespace": "blue"}, "spec": {"volumeName": "pv1"}}),
        );
        put(
            &space,
            "persistentvolumes",
            json!({"metadata": {"name": "pv1"}, "spec": {
            "claimRef": {"namespace": "blue", "name": "data"},
            "csi": {"nodeStageSecretRef": {"namespace": "storage", "name": "stage"}, "controllerPublishSecretRef": {"namespace": "storage", "name": "control"}}}}),
        );
        put(
            &space,
            "persistentvolumes",
            json!({"metadata": {"name": "pv2"}, "spec": {"claimRef": {"namespace": "blue", "name": "else"}}}),
        );
        put(&space, "volumeattachments", json!({"metadata": {"name": "va1"}, "spec": {"nodeName": "n1"}}));
        space
    }

    /// `get secrets blue/x`; a subresource after a slash, a group after a dot.
    fn access(text: &str) -> Access {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let verb = word();
        let resource = word();
        let name = word();
        let (resource, group) = resource.split_once('.').unwrap_or((&resource, ""));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (namespace, name) = name.split_once('/').unwrap_or(("", &name));
        let target = Target::Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Access { verb, target, fields: FieldSelector::parse(&word()).unwrap() }
    }

    fn node(name: &str) -> UserInfo {
        UserInfo {
            name: format!("system:node:{name}"),
            groups: vec!["system:nodes".to_owned()],
            ..UserInfo::default()
        }
    }

    #[test]
    fn a_node_reads_what_its_pods_refer_to_and_writes_its_own() {
        let authorizer = NodeAuthorizer::new(cluster());
        for (what, wanted) in [
            ("get secrets blue/mounted", true),
            ("watch secrets blue/mounted", true),
            ("get secrets blue/env", true),
            ("get secrets blue/pull", true),
            ("get secrets blue/publish", true),
            ("get secrets storage/stage", true),
            ("get secrets storage/control", false),
            ("get secrets blue/theirs", false),
            ("get secrets blue/claimed", false),
            ("get secrets red/mounted", false),
            ("list secrets blue/", false),
            ("update secrets blue/mounted", false),
            ("get configmaps blue/from", true),
            ("get configmaps blue/projected", true),
            ("get configmaps blue/mounted", false),
            ("get persistentvolumeclaims blue/data", true),
            ("get persistentvolumeclaims blue/web-e", true),
            ("list persistentvolumeclaims blue/data", false),
            ("patch persistentvolumeclaims/status blue/data", true),
            ("get persistentvolumes pv1", true),
            ("get persistentvolumes pv2", false),
            ("get volumeattachments.storage.k8s.io va1", true),
            ("create serviceaccounts/token blue/web", true),
            ("create serviceaccounts/token blue/default", false),
            ("get pods blue/web", true),
            ("get pods blue/other", false),
            ("list pods / spec.nodeName=n1", true),
            ("list pods / spec.nodeName=n2", false),
            ("list pods / spec.nodeName!=n1", false),
            ("list pods /", false),
            ("patch pods/status blue/web", true),
            ("patch pods blue/web", false),
            ("get nodes n1", true),
            ("get nodes n2", false),
            ("list nodes ", false),
            ("create nodes ", true),
            ("update leases.coordination.k8s.io kube-node-lease/n1", true),
            ("update leases.coordination.k8s.io kube-node-lease/n2", false),
            ("update leases.coordination.k8s.io kube-system/n1", false),
            ("create certificatesigningrequests.certificates.k8s.io ", true),
            ("list services ", true),
            ("create deployments.apps blue/x", false),
        ] {
            let decision = authorizer.decide(&node("n1"), &access(what));
            assert_eq!(decision.is_allowed(), wanted, "{what}: {decision:?}");
        }
        let person = UserInfo { name: "system:node:n1".to_owned(), ..UserInfo::default() };
        assert!(!authorizer.decide(&person, &access("get nodes n1")).is_allowed(), "the group makes a node");
    }

    #[test]
    fn rights_end_with_the_pod() {
        let space = cluster();
        let authorizer = NodeAuthorizer::new(space.clone());
        let read = access("get secrets blue/mounted");
        assert!(authorizer.decide(&node("n1"), &read).is_allowed());
        assert!(!authorizer.decide(&node("n2"), &read).is_allowed());
        put(
            &space,
            "pods",
            pod("copy", "n2", json!({"volumes": [{"name": "a", "secret": {"secretName": "mounted"}}]})),
        );
        let gone = Op::Delete { key: Key::new("pods", "blue/web"), expect: Expect::Any };
        space.apply(Term(1), &Command { ops: vec![gone], ..Command::default() }).unwrap();
        assert!(!authorizer.decide(&node("n1"), &read).is_allowed());
        assert!(authorizer.decide(&node("n2"), &read).is_allowed());
    }
}
