//! ResourceQuota: what a namespace may hold.
//!
//! The use is written in the same command as the object that causes it, so two requests can never share the
//! last slot: the one that comes second is decided again and finds the quota as the first one left it. Uses
//! shrink through the quota controller, which counts anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_machinery::{Document, Gvr, Object, Quantity, Status};
use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;
use crate::resources::{Amounts, of_pod};

pub(crate) struct ResourceQuota;

const QUOTAS: Gvr = Gvr::core("resourcequotas");

#[async_trait]
impl Admission for ResourceQuota {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let Some(new) = object else { return Ok(Vec::new()) };
        let counted = attributes.subresource.is_empty() || attributes.subresource == "resize";
        if attributes.namespace.is_empty() || !counted || attributes.is("", "resourcequotas") {
            return Ok(Vec::new());
        }
        let quotas = attributes.lookup.list(&QUOTAS, Some(attributes.namespace));
        if quotas.is_empty() {
            return Ok(Vec::new());
        }
        let group_resource = attributes.gvr.group_resource();
        let mut grows = uses(attributes, new);
        if attributes.operation == Operation::Update
            && let Some(old) = old
        {
            let before = uses(attributes, old);
            for (name, amount) in &mut grows {
                if let Some(before) = before.get(name) {
                    *amount = amount.minus(*before);
                }
            }
            // Giving back is the quota controller's to see; asking for more is ours.
            grows.retain(|_, amount| *amount > Quantity::ZERO);
        }
        let mut writes = Vec::new();
        for quota in quotas {
            if let Some(write) = charge(attributes, &quota, new, &grows, &group_resource)? {
                writes.push(write);
            }
        }
        Ok(writes)
    }
}

fn charge(
    attributes: &Attributes<'_>,
    quota: &Arc<Object>,
    new: &Document,
    grows: &Amounts,
    group_resource: &str,
) -> Result<Option<SideWrite>, Status> {
    if !in_scope(quota, new, group_resource) {
        return Ok(None);
    }
    let amounts = |path: &str| crate::resources::amounts(quota.field(path).as_ref());
    let hard = amounts("spec.hard");
    let name = &quota.header.name;
    if group_resource == "pods" && attributes.operation == Operation::Create {
        must_specify(attributes, name, &hard, new)?;
    }
    let asked: Amounts = grows
        .iter()
        .filter(|(name, _)| hard.contains_key(*name))
        .map(|(name, amount)| (name.clone(), *amount))
        .collect();
    if asked.is_empty() {
        return Ok(None);
    }
    let known = quota.field("status.hard");
    let used = amounts("status.used");
    if known.is_none() {
        let names: Vec<&str> = asked.keys().map(String::as_str).collect();
        return Err(
            attributes.forbidden(format!("status unknown for quota: {name}, resources: {}", names.join(",")))
        );
    }
    let over: Vec<&String> = asked
        .iter()
        .filter(|(name, amount)| {
            let used = used.get(*name).copied().unwrap_or(Quantity::ZERO);
            hard.get(*name).is_some_and(|hard| used.plus(**amount) > *hard)
        })
        .map(|(name, _)| name)
        .collect();
    if !over.is_empty() {
        let show = |amounts: &Amounts| {
            let shown = over
                .iter()
                .map(|name| format!("{name}={}", amounts.get(*name).copied().unwrap_or(Quantity::ZERO)));
            shown.collect::<Vec<_>>().join(",")
        };
        return Err(attributes.forbidden(format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            show(&asked),
            show(&used),
            show(&hard)
        )));
    }
    if attributes.dry_run {
        return Ok(None);
    }
    let mut document = quota.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
    document.set("apiVersion", "v1");
    document.set("kind", "ResourceQuota");
    let mut now: Map<String, Value> =
        document.get("status.used").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, amount) in &asked {
        let used = used.get(name).copied().unwrap_or(Quantity::ZERO);
        now.insert(name.clone(), used.plus(*amount).to_string().into());
    }
    document.set("status.used", now);
    Ok(Some(SideWrite {
        gvr: QUOTAS,
        namespace: Some(attributes.namespace.to_owned()),
        name: name.to_string(),
        document,
        at: quota.header.revision,
    }))
}

/// What one object counts as, by the names quotas use.
fn uses(attributes: &Attributes<'_>, object: &Document) -> Amounts {
    let one = Quantity::whole(1);
    let mut all = Amounts::new();
    let gvr = attributes.gvr;
    let generic = if gvr.group.is_empty() {
        format!("count/{}", gvr.resource)
    } else {
        format!("count/{}.{}", gvr.resource, gvr.group)
    };
    all.insert(generic, one);
    if !gvr.group.is_empty() {
        return all;
    }
    match &*gvr.resource {
        "pods" => pod_uses(object, &mut all),
        "services" => {
            all.insert("services".to_owned(), one);
            let ports =
                Quantity::whole(i64::try_from(object.get_array("spec.ports").len()).unwrap_or(i64::MAX));
            match object.get_str("spec.type") {
                Some("NodePort") => {
                    all.insert("services.nodeports".to_owned(), ports);
                }
                Some("LoadBalancer") => {
                    all.insert("services.loadbalancers".to_owned(), one);
                    if object.get("spec.allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)) {
                        all.insert("services.nodeports".to_owned(), ports);
                    }
                }
                _ => {}
            }
        }
        "persistentvolumeclaims" => {
            all.insert("persistentvolumeclaims".to_owned(), one);
            let size =
                object.get("spec.resources.requests.storage").and_then(|size| Quantity::from_json(size).ok());
            let class = object.get_str("spec.storageClassName").unwrap_or_default();
            let of_class = |rest: &str| format!("{class}.storageclass.storage.k8s.io/{rest}");
            if !class.is_empty() {
                all.insert(of_class("persistentvolumeclaims"), one);
            }
            if let Some(size) = size {
                all.insert("requests.storage".to_owned(), size);
                if !class.is_empty() {
                    all.insert(of_class("requests.storage"), size);
                }
            }
        }
        name @ ("configmaps" | "secrets" | "resourcequotas" | "replicationcontrollers") => {
            all.insert(name.to_owned(), one);
        }
        _ => {}
    }
    all
}

fn pod_uses(pod: &Document, all: &mut Amounts) {
    // A pod that has ended counts as an object but holds nothing.
    if matches!(pod.get_str("status.phase"), Some("Succeeded" | "Failed")) {
        return;
    }
    all.insert("pods".to_owned(), Quantity::whole(1));
    for (name, amount) in of_pod(pod, "requests") {
        match &*name {
            "cpu" | "memory" | "ephemeral-storage" => {
                all.insert(name.clone(), amount);
                all.insert(format!("requests.{name}"), amount);
            }
            _ if name.starts_with("hugepages-") => {
                all.insert(name.clone(), amount);
                all.insert(format!("requests.{name}"), amount);
            }
            _ => {
                all.insert(format!("requests.{name}"), amount);
            }
        }
    }
    for (name, amount) in of_pod(pod, "limits") {
        if matches!(&*name, "cpu" | "memory" | "ephemeral-storage") {
            all.insert(format!("limits.{name}"), amount);
        }
    }
}

/// With a quota on CPU or memory, a pod must say what it wants of them.
fn must_specify(
    attributes: &Attributes<'_>,
    quota: &str,
    hard: &Amounts,
    pod: &Document,
) -> Result<(), Status> {
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in hard.keys() {
        let (kind, resource) = match name.split_once('.') {
            Some((kind @ ("requests" | "limits"), resource)) => (kind, resource),
            None => ("requests", name.as_str()),
            Some(_) => continue,
        };
        if !matches!(resource, "cpu" | "memory") {
            continue;
        }
        for list in ["spec.containers", "spec.initContainers"] {
            for container in pod.get_array(list) {
                if container.pointer(&format!("/resources/{kind}/{resource}")).is_none() {
                    let container = container["name"].as_str().unwrap_or_default().to_owned();
                    missing.entry(name.clone()).or_default().push(container);
                }
            }
        }
    }
    if missing.is_empty() || pod.get("spec.resources").is_some() {
        return Ok(());
    }
    let all: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| format!("{name} for: {}", containers.join(",")))
        .collect();
    Err(attributes.forbidden(format!("failed quota: {quota}: must specify {}", all.join("; "))))
}

/// Whether a quota's scopes cover the object; scopes other than a claim's class are about pods.
fn in_scope(quota: &Object, new: &Document, group_resource: &str) -> bool {
    let scopes = quota.field("spec.scopes");
    let simple = scopes
        .iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(Value::as_str)
        .map(|scope| scope_matches(scope, "Exists", &[], new, group_resource));
    let selector = quota.field("spec.scopeSelector.matchExpressions");
    let selected = selector.iter().filter_map(Value::as_array).flatten().map(|one| {
        let text = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default();
        let values: Vec<&str> = one
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        scope_matches(text("scopeName"), text("operator"), &values, new, group_resource)
    });
    simple.chain(selected).all(|fits| fits)
}

fn scope_matches(scope: &str, operator: &str, values: &[&str], new: &Document, group_resource: &str) -> bool {
    let compare = |value: &str| match operator {
        "In" => values.contains(&value),
        "NotIn" => !values.contains(&value),
        "DoesNotExist" => value.is_empty(),
        _ => !value.is_empty(),
    };
    if scope == "VolumeAttributesClass" {
        return group_resource == "persistentvolumeclaims"
            && compare(new.get_str("spec.volumeAttributesClassName").unwrap_or_default());
    }
    if group_resource != "pods" {
        return false;
    }
    let terminating = new.get_i64("spec.activeDeadlineSeconds").is_some_and(|seconds| seconds >= 0);
    let best_effort = of_pod(new, "requests").is_empty() && of_pod(new, "limits").is_empty();
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        "PriorityClass" => compare(new.get_str("spec.priorityClassName").unwrap_or_default()),
        "CrossNamespacePodAffinity" => ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
            let text = new.get(&format!("spec.affinity.{kind}")).map(Value::to_string).unwrap_or_default();
            text.contains("\"namespaces\"") || text.contains("\"namespaceSelector\"")
        }),
        _ => false,
    }
}
