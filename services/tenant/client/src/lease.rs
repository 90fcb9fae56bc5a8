//! The leader's Lease in kube-system.
//!
//! It reports who leads; the Raft term decides it (DESIGN §5). So it is renewed only while there is work:
//! an idle tenant writes nothing.

use std::time::Duration;

use crate::{CreateOptions, SharedApi};
use api_machinery::{Document, Gvr, Status};
use base_clock::{Timestamp, rfc3339_micro};
use serde_json::json;

/// Between renewals while there is work.
pub const RENEW: Duration = Duration::from_secs(10);
const LEASES: Gvr = Gvr::new("coordination.k8s.io", "v1", "leases");

/// Writes the Lease `name` for `holder`. Failing is nobody's trouble: the next renewal tries again.
/// By get and update, not by patch: that is what the roles of these components allow.
pub async fn renew(api: SharedApi, name: &'static str, holder: String, now: Timestamp, taking_over: bool) {
    if let Err(status) = write(&api, name, &holder, now, taking_over).await {
        tracing::debug!(lease = name, %status, "leader lease not renewed");
    }
}

async fn write(
    api: &SharedApi,
    name: &str,
    holder: &str,
    now: Timestamp,
    taking_over: bool,
) -> Result<(), Status> {
    let at = rfc3339_micro(now);
    let known = match api.get(&LEASES, Some("kube-system"), name).await {
        Ok(known) => known.to_document().map_err(|cause| Status::internal(cause.to_string()))?,
        Err(status) if status.is_not_found() => {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-system"},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": at,
                    "renewTime": at, "leaseTransitions": 0},
            });
            let options = CreateOptions { namespace: Some("kube-system".to_owned()), subresource: None };
            return api
                .create(&LEASES, Document::from_value(lease).unwrap_or_default(), options)
                .await
                .map(drop);
        }
        Err(status) => return Err(status),
    };
    let mut lease = known;
    lease.set("apiVersion", "coordination.k8s.io/v1");
    lease.set("kind", "Lease");
    if taking_over {
        if lease.get_str("spec.holderIdentity") != Some(holder) {
            let transitions = lease.get_i64("spec.leaseTransitions").unwrap_or(0);
            lease.set("spec.leaseTransitions", transitions + 1);
        }
        lease.set("spec.acquireTime", at.clone());
    }
    lease.set("spec.holderIdentity", holder);
    lease.set("spec.leaseDurationSeconds", 15);
    lease.set("spec.renewTime", at);
    api.update(&LEASES, None, lease).await.map(drop)
}
