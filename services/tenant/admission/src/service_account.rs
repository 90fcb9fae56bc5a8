//! ServiceAccount: every pod runs as somebody, and has that somebody's token mounted unless it declines.

use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Gvr, Object, Status};
use async_trait::async_trait;
use rand::Rng;
use serde_json::{Value, json};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

pub(crate) struct ServiceAccount;

const ACCOUNTS: Gvr = Gvr::core("serviceaccounts");
const DEFAULT: &str = "default";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// An odd 3607 rather than an hour, as upstream: tells these tokens from those that somebody asked for.
const TOKEN_SECONDS: i64 = 3607;
/// A controller makes the default account just after the namespace: worth a moment's wait, no more.
const WAITS: usize = 10;
const WAIT: Duration = Duration::from_millis(100);

#[async_trait]
impl Admission for ServiceAccount {
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
        if pod.annotation(MIRROR).is_some() {
            return Ok(());
        }
        if pod.get_str("spec.serviceAccountName").is_none_or(str::is_empty) {
            pod.set("spec.serviceAccountName", DEFAULT);
        }
        let name = pod.get_str("spec.serviceAccountName").unwrap_or(DEFAULT).to_owned();
        pod.set("spec.serviceAccount", name.as_str());
        let account = account(attributes, &name).await?;
        let wants = |object: Option<bool>| object.unwrap_or(true);
        let mounts = match pod.get("spec.automountServiceAccountToken").and_then(Value::as_bool) {
            Some(own) => own,
            None => wants(account.field("automountServiceAccountToken").and_then(|value| value.as_bool())),
        };
        if mounts {
            mount_token(pod);
        }
        if pod.get_array("spec.imagePullSecrets").is_empty()
            && let Some(Value::Array(secrets)) = account.field("imagePullSecrets")
            && !secrets.is_empty()
        {
            pod.set("spec.imagePullSecrets", secrets);
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let Some(pod) =
            object.filter(|_| attributes.is("", "pods") && attributes.operation == Operation::Create)
        else {
            return Ok(Vec::new());
        };
        if pod.annotation(MIRROR).is_some() {
            if pod.get_str("spec.serviceAccountName").is_some_and(|name| !name.is_empty()) {
                return Err(attributes.forbidden("a mirror pod may not reference service accounts"));
            }
            for volume in pod.get_array("spec.volumes") {
                if volume.get("secret").is_some() {
                    return Err(attributes.forbidden("a mirror pod may not reference secrets"));
                }
                let sources = volume.pointer("/projected/sources").and_then(Value::as_array);
                if sources.into_iter().flatten().any(|source| source.get("serviceAccountToken").is_some()) {
                    return Err(attributes
                        .forbidden("a mirror pod may not use ServiceAccountToken volume projections"));
                }
            }
        }
        Ok(Vec::new())
    }
}

async fn account(attributes: &Attributes<'_>, name: &str) -> Result<Arc<Object>, Status> {
    let tries = if name == DEFAULT { WAITS } else { 1 };
    for attempt in 0..tries {
        if attempt > 0 {
            tokio::time::sleep(WAIT).await;
        }
        if let Some(found) = attributes.lookup.get(&ACCOUNTS, Some(attributes.namespace), name) {
            return Ok(found);
        }
    }
    Err(attributes.forbidden(format!(
        "error looking up service account {}/{name}: serviceaccount {name:?} not found",
        attributes.namespace
    )))
}

/// Adds the token's volume, and mounts it in every container that has nothing there.
fn mount_token(pod: &mut Document) {
    let present = pod.get_array("spec.volumes").iter().find_map(|volume| {
        let name = volume.get("name")?.as_str()?;
        name.starts_with("kube-api-access-").then(|| name.to_owned())
    });
    let name = present.clone().unwrap_or_else(|| format!("kube-api-access-{}", suffix()));
    let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
    let mut mounted = false;
    for list in ["spec.containers", "spec.initContainers"] {
        let Some(Value::Array(containers)) = pod.get_mut(list) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            let Value::Array(mounts) = mounts else { continue };
            if !mounts.iter().any(|one| one["mountPath"] == MOUNT_PATH) {
                mounts.push(mount.clone());
                mounted = true;
            }
        }
    }
    if !mounted || present.is_some() {
        return;
    }
    let volume = json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}});
    let volumes = pod.object_mut("spec").entry("volumes").or_insert_with(|| json!([]));
    if let Value::Array(volumes) = volumes {
        volumes.push(volume);
    }
}

fn suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rng = rand::rng();
    (0..5).map(|_| ALPHABET[rng.random_range(0..ALPHABET.len())] as char).collect()
}
