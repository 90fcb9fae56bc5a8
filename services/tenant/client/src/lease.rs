//! The leader's Lease in kube-system.
//!
//! It reports who leads; the Raft term decides it (DESIGN §5). So it is renewed only while there is work:
//! an idle tenant writes nothing.

use std::time::Duration;

use crate::{CreateOptions, Patch, SharedApi};
use api_machinery::{Document, Gvr};
use base_clock::{Timestamp, rfc3339_micro};
use serde_json::json;

/// Between renewals while there is work.
pub const RENEW: Duration = Duration::from_secs(10);
const LEASES: Gvr = Gvr::new("coordination.k8s.io", "v1", "leases");

/// Writes the Lease `name` for `holder`. Failing is nobody's trouble: the next renewal tries again.
pub async fn renew(api: SharedApi, name: &'static str, holder: String, now: Timestamp, taking_over: bool) {
    let at = rfc3339_micro(now);
    let mut spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": at});
    if taking_over {
        spec["acquireTime"] = json!(at);
    }
    let patch = Patch::Merge(json!({"spec": spec}));
    let answer = match api.patch(&LEASES, None, Some("kube-system"), name, patch).await {
        Err(status) if status.is_not_found() => {
            spec["acquireTime"] = json!(at);
            spec["leaseTransitions"] = json!(0);
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-system"}, "spec": spec,
            });
            let Some(lease) = Document::from_value(lease) else { return };
            let options = CreateOptions { namespace: Some("kube-system".to_owned()), subresource: None };
            api.create(&LEASES, lease, options).await
        }
        other => other,
    };
    if let Err(status) = answer {
        tracing::debug!(lease = name, %status, "leader lease not renewed");
    }
}
