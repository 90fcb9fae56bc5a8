//! Whether aggregated API servers answer, written into their APIServices; and the APIServices of custom groups.
//!
//! One loop per cluster, on the replica that leads. It sleeps until an APIService or a definition changes, and
//! asks again from time to time only while there is something to ask.
//!
//! Facts: upstream's `kube-aggregator/pkg/controllers/status/remote` and `crdregistration`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Gvr, Object, Status};
use futures::future::join_all;
use serde_json::{Value, json};
use store_mvcc::{ReadError, Space, Term};
use tenant_client::{CreateOptions, DeleteOptions, SharedApi, UserInfo};
use tenant_outbound::{Directory, port_name, ready_endpoints};
use tenant_registry::object;

use crate::aggregate::{self, COLLECTION, Elsewhere};
use crate::plane::ControlPlane;
use crate::services::Services;

const API_SERVICES: Gvr = Gvr::new("apiregistration.k8s.io", "v1", "apiservices");
const DEFINITIONS: &str = "customresourcedefinitions";
/// Marks what this loop made and may remove.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Between looks at servers that all answered, and while one does not.
const CALM: Duration = Duration::from_secs(30);
const WORRIED: Duration = Duration::from_secs(5);

/// Runs until it is dropped, or the cluster is closed. Writes are refused in any other term.
pub async fn keep(plane: Arc<ControlPlane>, term: Term) {
    let user = UserInfo {
        name: "system:apiserver".to_owned(),
        groups: vec![UserInfo::MASTERS.to_owned()],
        ..UserInfo::default()
    };
    let api = plane.client(user, Some(term));
    let space = plane.registry().group().space().clone();
    loop {
        let watches = (space.watch(COLLECTION, space.revision()), space.watch(DEFINITIONS, space.revision()));
        let (mut services, mut definitions) = match watches {
            (Ok(services), Ok(definitions)) => (services, definitions),
            (Err(ReadError::Closed), _) | (_, Err(ReadError::Closed)) => return,
            // Replaced in between by a peer's state.
            _ => continue,
        };
        loop {
            let again_in = round(&plane, &api, &space).await;
            let timer = async {
                match again_in {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                changed = services.next() => changed.map(drop),
                changed = definitions.next() => changed.map(drop),
                () = timer => Ok(()),
            };
            match changed {
                Ok(()) => {}
                Err(ReadError::Closed) => return,
                Err(_) => break,
            }
        }
    }
}

/// One look at everything; how long until the next, if there has to be one.
async fn round(plane: &Arc<ControlPlane>, api: &SharedApi, space: &Arc<Space>) -> Option<Duration> {
    let objects: Vec<Arc<Object>> =
        space.snapshot(COLLECTION).range("", None).filter_map(|entry| object(entry).ok()).collect();
    if let Err(status) = register_custom(plane, api, &objects).await {
        tracing::debug!(error = %status, "APIServices of custom groups are not up to date");
        return Some(WORRIED);
    }
    let elsewhere: Vec<(Arc<Object>, Elsewhere)> =
        objects.iter().filter_map(|object| Some((object.clone(), Elsewhere::of(object)?))).collect();
    if elsewhere.is_empty() {
        return None;
    }
    let services = Services(space.clone());
    let looks = elsewhere.iter().map(|(object, service)| async {
        let found = look(plane, &services, service).await;
        let fine = found.0;
        if let Err(status) = note(plane, api, object, found).await {
            tracing::debug!(service = %service.name, error = %status, "availability is not written");
            return false;
        }
        fine
    });
    let all_fine = join_all(looks).await.into_iter().all(|fine| fine);
    Some(if all_fine { CALM } else { WORRIED })
}

type Found = (bool, &'static str, String);

/// Available or not, why, and in which words.
async fn look(plane: &ControlPlane, services: &Services, to: &Elsewhere) -> Found {
    let (namespace, name, port) = (&to.namespace, &to.service, to.port);
    let Some(service) = services.service(namespace, name) else {
        return (false, "ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
    };
    let Some(port_name) = port_name(&service, &port.to_string()) else {
        let why = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return (false, "ServicePortError", why);
    };
    let slices = services.endpoint_slices(namespace, name);
    if slices.iter().all(|slice| ready_endpoints(slice, &port_name).is_empty()) {
        let why = format!(
            "endpoints for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return (false, "MissingEndpoints", why);
    }
    match aggregate::get(plane, to, &to.path()).await {
        Ok(_) => (true, "Passed", "all checks passed".to_owned()),
        Err(why) => {
            let base = format!("https://{name}.{namespace}.svc:{port}{}", to.path());
            (false, "FailedDiscoveryCheck", format!("failing or missing response from {base}: {why}"))
        }
    }
}

async fn note(
    plane: &ControlPlane,
    api: &SharedApi,
    service: &Object,
    (available, reason, message): Found,
) -> Result<(), Status> {
    let said = |object: &Object| {
        let conditions = object.field("status.conditions").unwrap_or_default();
        let conditions = conditions.as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "Available")
    };
    let status = if available { "True" } else { "False" };
    let before = said(service);
    if before.as_ref().is_some_and(|one| {
        one["status"] == status && one["reason"] == reason && one["message"] == message.as_str()
    }) {
        return Ok(());
    }
    let mut document = service.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
    let moved =
        before.as_ref().filter(|one| one["status"] == status).map(|one| one["lastTransitionTime"].clone());
    let moved = moved
        .filter(|at| !at.is_null())
        .unwrap_or_else(|| Value::from(base_clock::rfc3339(plane.clock.now())));
    let condition = json!({"type": "Available", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": moved});
    document.set("apiVersion", API_SERVICES.api_version());
    document.set("kind", "APIService");
    document.set("status.conditions", vec![condition]);
    api.update(&API_SERVICES, Some("status"), document).await.map(drop)
}

/// Each version of a custom group that is served has an APIService that says it is served here.
async fn register_custom(
    plane: &ControlPlane,
    api: &SharedApi,
    existing: &[Arc<Object>],
) -> Result<(), Status> {
    let catalogue = plane.registry().catalogue();
    let wanted: BTreeSet<(String, String)> = catalogue
        .served()
        .iter()
        .filter(|one| one.is_served() && !one.is_terminating())
        .map(|one| (one.info().gvr.group.to_string(), one.info().gvr.version.to_string()))
        .collect();
    for (group, version) in &wanted {
        let name = format!("{version}.{group}");
        // Whoever registered a server for it has the say.
        if existing.iter().any(|one| *one.header.name == *name) {
            continue;
        }
        let object = json!({
            "apiVersion": API_SERVICES.api_version(), "kind": "APIService",
            "metadata": {"name": name, "labels": {MANAGED: "true"}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 100},
        });
        let object = Document::from_value(object).unwrap_or_default();
        let made = match api.create(&API_SERVICES, object, CreateOptions::default()).await {
            Err(status) if status.is_already_exists() => continue,
            made => made?,
        };
        note(plane, api, &made, (true, "Local", "Local APIServices are always available".to_owned())).await?;
    }
    for one in existing {
        let of = (text(one, "spec.group"), text(one, "spec.version"));
        let ours = one.header.labels.get(MANAGED).is_some_and(|how| how == "true");
        if ours && !wanted.contains(&of) && Elsewhere::of(one).is_none() {
            match api.delete(&API_SERVICES, None, &one.header.name, DeleteOptions::default()).await {
                Err(status) if !status.is_not_found() => return Err(status),
                _ => {}
            }
        }
    }
    Ok(())
}

fn text(object: &Object, path: &str) -> String {
    object.field(path).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
