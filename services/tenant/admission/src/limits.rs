//! LimitRanger: fills in what a namespace says a container gets by default, and holds pods and claims to its
//! bounds.

use api_machinery::{Document, Gvr, Quantity, Status};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;
use crate::resources::{Amounts, amounts, of_pod};

pub(crate) struct LimitRanger;

const RANGES: Gvr = Gvr::core("limitranges");
const NOTE: &str = "kubernetes.io/limit-ranger";

#[async_trait]
impl Admission for LimitRanger {
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
        for range in attributes.lookup.list(&RANGES, Some(attributes.namespace)) {
            let limits = range.field("spec.limits");
            for item in limits.iter().filter_map(Value::as_array).flatten() {
                if item["type"] == "Container" {
                    fill(pod, item);
                }
            }
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let Some(new) = object else { return Ok(Vec::new()) };
        let pods = attributes.is_under("", "pods")
            && ((attributes.subresource.is_empty() && attributes.operation == Operation::Create)
                || attributes.subresource == "resize");
        let claims = attributes.is("", "persistentvolumeclaims");
        if !pods && !claims {
            return Ok(Vec::new());
        }
        // A claim that doesn't grow stays as it was allowed once.
        let size = |claim: &Document| claim.get("spec.resources").cloned();
        if claims && old.is_some_and(|old| size(old) == size(new)) {
            return Ok(Vec::new());
        }
        let mut errors = Vec::new();
        for range in attributes.lookup.list(&RANGES, Some(attributes.namespace)) {
            let limits = range.field("spec.limits");
            for item in limits.iter().filter_map(Value::as_array).flatten() {
                if pods {
                    check_pod(item, new, &mut errors);
                } else if item["type"] == "PersistentVolumeClaim" {
                    check_claim(item, new, &mut errors);
                }
            }
        }
        match &errors[..] {
            [] => Ok(Vec::new()),
            [one] => Err(attributes.forbidden(one)),
            more => Err(attributes.forbidden(format!("[{}]", more.join(", ")))),
        }
    }
}

/// Defaults of one LimitRange item into every container that leaves them open, with a note of what was set.
fn fill(pod: &mut Document, item: &Value) {
    let mut said = Vec::new();
    for (list, what) in [("spec.containers", "container"), ("spec.initContainers", "init container")] {
        let Some(Value::Array(containers)) = pod.get_mut(list) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let resources = container.entry("resources").or_insert_with(|| json!({}));
            for (from, to, word) in
                [("defaultRequest", "requests", "request"), ("default", "limits", "limit")]
            {
                let defaults = item.get(from).and_then(Value::as_object).into_iter().flatten();
                let mut set = Vec::new();
                for (resource, amount) in defaults {
                    if resources.get(to).and_then(|all| all.get(resource)).is_none() {
                        if !resources.get(to).is_some_and(Value::is_object) {
                            resources[to] = json!({});
                        }
                        resources[to][resource] = amount.clone();
                        set.push(resource.clone());
                    }
                }
                if !set.is_empty() {
                    set.sort();
                    said.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !said.is_empty() {
        let note = format!("LimitRanger plugin set: {}", said.join("; "));
        pod.object_mut("metadata.annotations").insert(NOTE.to_owned(), note.into());
    }
}

fn check_pod(item: &Value, pod: &Document, errors: &mut Vec<String>) {
    let kind = item["type"].as_str().unwrap_or_default();
    match kind {
        "Container" => {
            for list in ["spec.containers", "spec.initContainers"] {
                for container in pod.get_array(list) {
                    let requests = amounts(container.pointer("/resources/requests"));
                    let limits = amounts(container.pointer("/resources/limits"));
                    bounds(item, kind, &requests, &limits, errors);
                }
            }
        }
        "Pod" => bounds(item, kind, &of_pod(pod, "requests"), &of_pod(pod, "limits"), errors),
        _ => {}
    }
}

fn bounds(item: &Value, kind: &str, requests: &Amounts, limits: &Amounts, errors: &mut Vec<String>) {
    for (name, least) in amounts(item.get("min")) {
        match requests.get(&name) {
            None => {
                errors.push(format!("minimum {name} usage per {kind} is {least}.  No request is specified"))
            }
            Some(request) if *request < least => {
                errors.push(format!("minimum {name} usage per {kind} is {least}, but request is {request}"));
            }
            _ => {}
        }
        if let Some(limit) = limits.get(&name).filter(|limit| **limit < least) {
            errors.push(format!("minimum {name} usage per {kind} is {least}, but limit is {limit}"));
        }
    }
    for (name, most) in amounts(item.get("max")) {
        match limits.get(&name) {
            None => errors.push(format!("maximum {name} usage per {kind} is {most}.  No limit is specified")),
            Some(limit) if *limit > most => {
                errors.push(format!("maximum {name} usage per {kind} is {most}, but limit is {limit}"));
            }
            _ => {}
        }
        if let Some(request) = requests.get(&name).filter(|request| **request > most) {
            errors.push(format!("maximum {name} usage per {kind} is {most}, but request is {request}"));
        }
    }
    for (name, ratio) in amounts(item.get("maxLimitRequestRatio")) {
        let start = format!("{name} max limit to request ratio per {kind} is {ratio}, but");
        match (
            requests.get(&name).filter(|amount| !amount.is_zero()),
            limits.get(&name).filter(|amount| !amount.is_zero()),
        ) {
            (None, _) => errors.push(format!("{start} no request is specified or request is 0")),
            (_, None) => errors.push(format!("{start} no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let found = limit.ratio(*request);
                if found > ratio.ratio(Quantity::whole(1)) {
                    errors.push(format!("{start} provided ratio is {found:.6}"));
                }
            }
        }
    }
}

fn check_claim(item: &Value, claim: &Document, errors: &mut Vec<String>) {
    let requests = amounts(claim.get("spec.resources.requests"));
    let kind = "PersistentVolumeClaim";
    for (name, least) in amounts(item.get("min")) {
        match requests.get(&name) {
            None => {
                errors.push(format!("minimum {name} usage per {kind} is {least}.  No request is specified"))
            }
            Some(request) if *request < least => {
                errors.push(format!("minimum {name} usage per {kind} is {least}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (name, most) in amounts(item.get("max")) {
        match requests.get(&name) {
            None => {
                errors.push(format!("maximum {name} usage per {kind} is {most}.  No request is specified"))
            }
            Some(request) if *request > most => {
                errors.push(format!("maximum {name} usage per {kind} is {most}, but request is {request}"));
            }
            _ => {}
        }
    }
}
