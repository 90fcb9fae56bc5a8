//! What pods get from the cluster: a priority, patience with broken nodes, a runtime's overhead. And the rules
//! of PriorityClasses among themselves.

use api_machinery::{Document, Gvr, Status};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

/// Sets `spec.priority` from the class.
pub(crate) struct Priority;

const CLASSES: Gvr = Gvr::new("scheduling.k8s.io", "v1", "priorityclasses");

#[async_trait]
impl Admission for Priority {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        old: Option<&Document>,
    ) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| attributes.is("", "pods")) else { return Ok(()) };
        if attributes.operation == Operation::Update {
            // What was computed once stays, also for clients that leave it out.
            for path in ["spec.priority", "spec.preemptionPolicy"] {
                if let Some(value) = old.and_then(|old| old.get(path)) {
                    pod.set_default(path, value.clone());
                }
            }
            return Ok(());
        }
        let class = pod.get_str("spec.priorityClassName").unwrap_or_default().to_owned();
        let (name, priority, policy) = if class.is_empty() {
            default_class(attributes)
        } else {
            let Some(found) = attributes.lookup.get(&CLASSES, None, &class) else {
                return Err(attributes.forbidden(format!("no PriorityClass with name {class} was found")));
            };
            (class, value_of(&found), policy_of(&found))
        };
        if let Some(given) = pod.get_i64("spec.priority")
            && given != priority
        {
            return Err(attributes.forbidden(format!("the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name")));
        }
        if let Some(given) = pod.get_str("spec.preemptionPolicy")
            && given != policy
        {
            return Err(attributes.forbidden(format!("the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name")));
        }
        if !name.is_empty() {
            pod.set("spec.priorityClassName", name);
        }
        pod.set("spec.priority", priority);
        pod.set("spec.preemptionPolicy", policy);
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let Some(class) = object.filter(|_| attributes.is("scheduling.k8s.io", "priorityclasses")) else {
            return Ok(Vec::new());
        };
        if class.get("globalDefault") == Some(&Value::Bool(true)) {
            let other = attributes.lookup.list(&CLASSES, None).into_iter().find(|one| {
                &*one.header.name != attributes.name && one.field("globalDefault") == Some(Value::Bool(true))
            });
            if let Some(other) = other {
                let name = &other.header.name;
                let why =
                    format!("PriorityClass {name} is already marked as default. Only one default can exist");
                return Err(attributes.forbidden(why));
            }
        }
        Ok(Vec::new())
    }
}

fn value_of(class: &api_machinery::Object) -> i64 {
    class.field("value").and_then(|value| value.as_i64()).unwrap_or(0)
}
fn policy_of(class: &api_machinery::Object) -> String {
    let policy = class.field("preemptionPolicy");
    policy
        .and_then(|policy| policy.as_str().map(str::to_owned))
        .unwrap_or_else(|| "PreemptLowerPriority".to_owned())
}

/// The class marked as default, the least of them if there are several; no class is priority 0.
fn default_class(attributes: &Attributes<'_>) -> (String, i64, String) {
    let all = attributes.lookup.list(&CLASSES, None);
    let defaults = all.iter().filter(|class| class.field("globalDefault") == Some(Value::Bool(true)));
    match defaults.min_by_key(|class| value_of(class)) {
        Some(class) => (class.header.name.to_string(), value_of(class), policy_of(class)),
        None => (String::new(), 0, "PreemptLowerPriority".to_owned()),
    }
}

/// Pods bear with a node that is not ready or not reachable for five minutes.
pub(crate) struct DefaultTolerationSeconds;

const PATIENCE_SECONDS: i64 = 300;

#[async_trait]
impl Admission for DefaultTolerationSeconds {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| attributes.is("", "pods")) else { return Ok(()) };
        let covered = |pod: &Document, taint: &str| {
            pod.get_array("spec.tolerations").iter().any(|toleration| {
                let text = |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or_default();
                (text("key") == taint || text("key").is_empty())
                    && (text("effect") == "NoExecute" || text("effect").is_empty())
            })
        };
        for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            if covered(pod, taint) {
                continue;
            }
            let toleration = json!({"key": taint, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": PATIENCE_SECONDS});
            let all = pod.object_mut("spec").entry("tolerations").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.push(toleration);
            }
        }
        Ok(())
    }
}

/// What a RuntimeClass says of its pods: overhead and where they can run.
pub(crate) struct RuntimeClass;

const RUNTIMES: Gvr = Gvr::new("node.k8s.io", "v1", "runtimeclasses");

#[async_trait]
impl Admission for RuntimeClass {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let Some(pod) =
            object.filter(|_| attributes.is("", "pods") && attributes.operation == Operation::Create)
        else {
            return Ok(());
        };
        let name = pod.get_str("spec.runtimeClassName").unwrap_or_default().to_owned();
        if name.is_empty() {
            if pod.get("spec.overhead").and_then(Value::as_object).is_some_and(|all| !all.is_empty()) {
                return Err(attributes.forbidden(
                    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
                ));
            }
            return Ok(());
        }
        let Some(class) = attributes.lookup.get(&RUNTIMES, None, &name) else {
            return Err(attributes.forbidden(format!("pod rejected: RuntimeClass {name:?} not found")));
        };
        if let Some(overhead) = class.field("overhead.podFixed") {
            match pod.get("spec.overhead") {
                Some(given) if *given != overhead => {
                    return Err(attributes.forbidden(
                        "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
                    ));
                }
                _ => pod.set("spec.overhead", overhead),
            }
        }
        if let Some(Value::Object(selector)) = class.field("scheduling.nodeSelector") {
            let wanted = pod.object_mut("spec.nodeSelector");
            for (key, value) in selector {
                if let Some(given) = wanted.get(&key).filter(|given| **given != value) {
                    let (ours, theirs) =
                        (value.as_str().unwrap_or_default(), given.as_str().unwrap_or_default());
                    return Err(attributes.forbidden(format!("conflict: runtimeClass.scheduling.nodeSelector[{key}] = {ours}; pod.spec.nodeSelector[{key}] = {theirs}")));
                }
                wanted.insert(key, value);
            }
        }
        if let Some(Value::Array(added)) = class.field("scheduling.tolerations") {
            let all = pod.object_mut("spec").entry("tolerations").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                for one in added {
                    if !all.contains(&one) {
                        all.push(one);
                    }
                }
            }
        }
        Ok(())
    }
}
