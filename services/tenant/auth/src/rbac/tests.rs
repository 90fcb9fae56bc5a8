use api_machinery::{Document, Gvr};
use serde_json::{Value, json};
use store_mvcc::{Command, Expect, Key, Limits, Op, Term};

use super::*;

/// Puts an object where the registry would.
pub(crate) fn put(space: &Space, collection: &str, object: Value) {
    let document = Document::from_value(object).unwrap();
    let (body, stamp) = document.to_stored();
    let name = match document.namespace() {
        "" => document.name().to_owned(),
        namespace => format!("{namespace}/{}", document.name()),
    };
    let value = store_mvcc::Value { body, stamp: stamp.encode() };
    let op = Op::Put {
        key: Key::new(collection, name),
        value,
        expect: Expect::Any,
        expires_at_ms: None,
        shared: true,
    };
    space.apply(Term(1), &Command { ops: vec![op], ..Command::default() }).unwrap();
}

fn role(namespace: &str, name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "rules": rules})
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1}, "subjects": subjects})
}

fn cluster() -> Arc<Space> {
    let space = Arc::new(Space::new(Limits::default()));
    let readers = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}]);
    put(&space, "clusterroles", role("", "reader", readers));
    put(
        &space,
        "clusterroles",
        role("", "scaler", json!([{"verbs": ["update"], "apiGroups": ["*"], "resources": ["*/scale"]}])),
    );
    put(
        &space,
        "clusterroles",
        role("", "probes", json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/logs/*"]}])),
    );
    put(
        &space,
        "clusterroles",
        role(
            "",
            "everything",
            json!([
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]),
        ),
    );
    put(
        &space,
        "roles",
        role(
            "blue",
            "one-secret",
            json!([
        {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["tls"]}]),
        ),
    );
    let user = |name: &str| json!([{"kind": "User", "name": name}]);
    put(
        &space,
        "clusterrolebindings",
        binding("", "ops", ("ClusterRole", "reader"), json!([{"kind": "Group", "name": "ops"}])),
    );
    put(&space, "clusterrolebindings", binding("", "scale", ("ClusterRole", "scaler"), user("ann")));
    put(&space, "clusterrolebindings", binding("", "probe", ("ClusterRole", "probes"), user("ann")));
    put(&space, "clusterrolebindings", binding("", "root", ("ClusterRole", "everything"), user("root")));
    put(&space, "clusterrolebindings", binding("", "gone", ("ClusterRole", "missing"), user("bob")));
    put(
        &space,
        "rolebindings",
        binding("blue", "tls", ("Role", "one-secret"), json!([{"kind": "ServiceAccount", "name": "web"}])),
    );
    put(&space, "rolebindings", binding("blue", "read", ("ClusterRole", "reader"), user("ann")));
    space
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..UserInfo::default()
    }
}

/// `get pods/log` in `blue`, `get pods web` …: verb, resource(/subresource)(.group), name.
fn access(verb: &str, resource: &str, namespace: &str, name: &str) -> Access {
    let target = if resource.starts_with('/') {
        Target::Path(resource.to_owned())
    } else {
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Target::Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    };
    Access { verb: verb.to_owned(), target, ..Access::default() }
}

#[test]
fn bindings_grant_what_their_roles_say() {
    let rbac = Rbac::new(cluster());
    let ops = user("olga", &["ops"]);
    let ann = user("ann", &[]);
    let web = UserInfo::service_account("blue", "web");
    let red = UserInfo::service_account("red", "web");
    let by_ops = "RBAC: allowed by ClusterRoleBinding \"ops\" of ClusterRole \"reader\" to Group \"ops\"";
    let by_tls =
        "RBAC: allowed by RoleBinding \"tls/blue\" of Role \"one-secret\" to ServiceAccount \"web/blue\"";
    let by_read = "RBAC: allowed by RoleBinding \"read/blue\" of ClusterRole \"reader\" to User \"ann\"";
    let by_scale = "RBAC: allowed by ClusterRoleBinding \"scale\" of ClusterRole \"scaler\" to User \"ann\"";
    let by_probe = "RBAC: allowed by ClusterRoleBinding \"probe\" of ClusterRole \"probes\" to User \"ann\"";
    for (who, what, wanted) in [
        (&ops, access("get", "pods", "blue", "a"), by_ops),
        (&ops, access("list", "pods", "", ""), by_ops),
        (&ops, access("get", "pods/log", "blue", "a"), by_ops),
        (&ops, access("get", "pods/exec", "blue", "a"), ""),
        (&ops, access("watch", "pods", "blue", ""), ""),
        (&ops, access("get", "pods.metrics.k8s.io", "blue", "a"), ""),
        (&ann, access("get", "pods", "blue", "a"), by_read),
        (&ann, access("get", "pods", "red", "a"), ""),
        (&ann, access("list", "pods", "", ""), ""),
        (&ann, access("update", "deployments/scale.apps", "red", "a"), by_scale),
        (&ann, access("update", "deployments.apps", "red", "a"), ""),
        (&ann, access("get", "/healthz", "", ""), by_probe),
        (&ann, access("get", "/healthz/ping", "", ""), ""),
        (&ann, access("get", "/logs/x", "", ""), by_probe),
        (&web, access("get", "secrets", "blue", "tls"), by_tls),
        (&web, access("get", "secrets", "blue", "other"), ""),
        (&web, access("list", "secrets", "blue", ""), ""),
        (&red, access("get", "secrets", "blue", "tls"), ""),
    ] {
        let reason = match rbac.decide(who, &what) {
            Decision::Allow { reason } | Decision::NoOpinion { reason } | Decision::Deny { reason } => reason,
        };
        assert_eq!(reason, wanted, "{} {what:?}", who.name);
    }
    let lost = rbac.decide(&user("bob", &[]), &access("get", "pods", "blue", "a"));
    let reason = "RBAC: clusterrole.rbac.authorization.k8s.io \"missing\" not found".to_owned();
    assert_eq!(lost, Decision::NoOpinion { reason });
}

#[test]
fn a_change_counts_at_once_and_only_rbac_is_read_again() {
    let space = cluster();
    let rbac = Rbac::new(space.clone());
    let carl = user("carl", &[]);
    let read = access("get", "pods", "red", "a");
    assert!(!rbac.decide(&carl, &read).is_allowed());
    let before = rbac.index();
    put(&space, "configmaps", json!({"metadata": {"name": "x", "namespace": "blue"}}));
    assert!(Arc::ptr_eq(&before, &rbac.index()), "a ConfigMap changes no policy");
    put(
        &space,
        "clusterrolebindings",
        binding("", "carl", ("ClusterRole", "reader"), json!([{"kind": "User", "name": "carl"}])),
    );
    assert!(rbac.decide(&carl, &read).is_allowed());
    let gone = Op::Delete { key: Key::new("clusterrolebindings", "carl"), expect: Expect::Any };
    space.apply(Term(1), &Command { ops: vec![gone], ..Command::default() }).unwrap();
    assert!(!rbac.decide(&carl, &read).is_allowed());
}

#[test]
fn clusters_with_the_same_policy_share_its_index() {
    let (one, two, other) = (cluster(), cluster(), cluster());
    put(&other, "clusterroles", role("", "reader", json!([])));
    let [one, two, other] = [one, two, other].map(|space| Rbac::new(space).index());
    assert!(Arc::ptr_eq(&one, &two));
    assert!(!Arc::ptr_eq(&one, &other));
}

#[test]
fn nobody_grants_what_they_do_not_hold() {
    let rbac = Rbac::new(cluster());
    let role_of = |rules: Value| Document::from_value(role("blue", "new", rules)).unwrap();
    let roles = Gvr::new(GROUP, "v1", "roles");
    let pods = |verb: &str| json!([{"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}]);
    let root = user("root", &[]);
    let ann = user("ann", &[]);
    let masters = user("x", &[UserInfo::MASTERS]);
    for (row, who, rules, fine) in [
        ("held", &ann, pods("get"), true),
        ("nothing", &ann, json!([]), true),
        ("not held", &ann, pods("delete"), false),
        (
            "a wildcard isn't held by holding some of it",
            &ann,
            json!([{"verbs": ["get"], "apiGroups": ["*"], "resources": ["pods"]}]),
            false,
        ),
        ("everything", &root, pods("delete"), true),
        ("masters", &masters, pods("delete"), true),
    ] {
        let result = rbac.check_role_write(&rbac, who, &roles, None, &role_of(rules));
        assert_eq!(result.is_ok(), fine, "{row}: {result:?}");
    }
    let refused = rbac.check_role_write(&rbac, &ann, &roles, None, &role_of(pods("delete"))).unwrap_err();
    assert_eq!(
        refused.message,
        "roles.rbac.authorization.k8s.io \"new\" is forbidden: user \"ann\" (groups=[]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );

    let bindings = Gvr::new(GROUP, "v1", "rolebindings");
    let subjects = json!([{"kind": "User", "name": "bob"}]);
    for (row, who, to, code) in [
        ("held", &ann, ("ClusterRole", "reader"), None),
        ("not held", &ann, ("ClusterRole", "everything"), Some(403)),
        ("no such role", &ann, ("Role", "nowhere"), Some(404)),
        ("may bind", &root, ("ClusterRole", "everything"), None),
    ] {
        let new = Document::from_value(binding("blue", "new", to, subjects.clone())).unwrap();
        let result = rbac.check_binding_write(&rbac, who, &bindings, None, &new);
        assert_eq!(result.err().map(|status| status.code), code, "{row}");
    }
}

const GROUP: &str = "rbac.authorization.k8s.io";

/// A cluster in which admission finds nothing it would need.
struct Nowhere(Rbac);

#[async_trait::async_trait]
impl tenant_admission::Lookup for Nowhere {
    fn get(&self, _: &Gvr, _: Option<&str>, _: &str) -> Option<Arc<api_machinery::Object>> {
        None
    }
    fn list(&self, _: &Gvr, _: Option<&str>) -> Vec<Arc<api_machinery::Object>> {
        Vec::new()
    }
    fn authorizer(&self) -> &dyn Authorizer {
        &self.0
    }
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
    fn authorizer_handle(&self) -> tenant_client::SharedAuthorizer {
        unreachable!("nothing is evaluated here")
    }
    fn merge(&self, _: &Gvr, live: &Document, _: &Document) -> Result<Document, String> {
        Ok(live.clone())
    }
    fn resource_of(&self, _: &api_machinery::Gvk) -> Option<(Gvr, bool)> {
        None
    }
    fn equivalents(&self, _: &Gvr) -> Vec<(Gvr, api_machinery::Gvk)> {
        Vec::new()
    }
    async fn to_version(
        &self,
        document: Document,
        _: &api_machinery::Gvk,
    ) -> Result<Document, api_machinery::Status> {
        Ok(document)
    }
    fn settle(&self, _: &Gvr, _: &mut Document) -> Result<(), api_machinery::Status> {
        Ok(())
    }
}

#[tokio::test]
async fn admission_stops_whoever_grants_too_much() {
    use tenant_admission::{Admission, Annotations, Attributes, Operation, Options, Reinvocation, Warnings};
    let space = cluster();
    let plugin = NoEscalation::new(Arc::new(crate::Authority::new(space.clone())));
    let lookup = Nowhere(Rbac::new(space));
    let everything = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let role = Document::from_value(role("blue", "new", everything)).unwrap();
    let to = binding("blue", "new", ("ClusterRole", "everything"), json!([{"kind": "User", "name": "ann"}]));
    let to = Document::from_value(to).unwrap();
    let ann = user("ann", &[]);
    let masters = user("x", &[UserInfo::MASTERS]);
    for (row, operation, resource, who, object, old, refused) in [
        ("a role", Operation::Create, "roles", &ann, &role, None, true),
        ("a cluster role", Operation::Update, "clusterroles", &ann, &role, None, true),
        ("a binding", Operation::Create, "rolebindings", &ann, &to, None, true),
        ("a cluster binding", Operation::Create, "clusterrolebindings", &ann, &to, None, true),
        ("only finalizers", Operation::Update, "roles", &ann, &role, Some(&role), false),
        ("by a master", Operation::Create, "rolebindings", &masters, &to, None, false),
        ("deleting", Operation::Delete, "roles", &ann, &role, Some(&role), false),
        ("something else", Operation::Create, "things", &ann, &role, None, false),
    ] {
        let gvr = Gvr { group: GROUP.into(), version: "v1".into(), resource: resource.into() };
        let gvk = api_machinery::Gvk::new(GROUP, "v1", "Any");
        let attributes = Attributes {
            operation,
            gvr: &gvr,
            gvk: &gvk,
            namespace: "blue",
            name: "new",
            subresource: "",
            user: who,
            dry_run: false,
            options: Options::default(),
            internal: false,
            warnings: &Warnings::default(),
            annotations: &Annotations::default(),
            lookup: &lookup,
            reinvocation: Reinvocation::default(),
        };
        let result = plugin.validate(&attributes, Some(object), old).await;
        assert_eq!(result.is_err(), refused, "{row}");
    }
}
