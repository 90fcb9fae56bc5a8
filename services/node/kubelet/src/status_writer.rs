//! Brings a pod's status to the API server, off the worker's way.
//!
//! Only the newest status matters: what was overtaken while the API server was busy is never sent.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::pod::PodExt;
use crate::shared::Shared;

/// Between two attempts while the API server is away.
const RETRY_AFTER: Duration = Duration::from_secs(1);

type Newest = Option<(Arc<Pod>, PodStatus)>;

pub struct StatusWriter {
    newest: watch::Sender<Newest>,
    written: watch::Receiver<Option<PodStatus>>,
    last: Option<PodStatus>,
    task: AbortHandle,
}

impl StatusWriter {
    pub fn start(shared: &Arc<Shared>) -> StatusWriter {
        let (newest, from) = watch::channel(None);
        let (written_to, written) = watch::channel(None);
        let task = tokio::spawn(write(shared.config.client.clone(), from, written_to)).abort_handle();
        StatusWriter { newest, written, last: None, task }
    }

    /// The status that was last set, sent or not.
    pub fn last(&self) -> Option<&PodStatus> {
        self.last.as_ref()
    }

    pub fn set(&mut self, pod: Arc<Pod>, status: PodStatus) {
        if self.last.as_ref() != Some(&status) {
            self.last = Some(status.clone());
            self.newest.send_replace(Some((pod, status)));
        }
    }

    /// Waits until the newest status has been taken, `patience` at most. False: it has not.
    pub async fn flush(&mut self, patience: Duration) -> bool {
        let Some(last) = self.last.clone() else { return true };
        let written = self.written.wait_for(|written| written.as_ref() == Some(&last));
        matches!(tokio::time::timeout(patience, written).await, Ok(Ok(_)))
    }
}

impl Drop for StatusWriter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write(
    client: kube::Client,
    mut newest: watch::Receiver<Newest>,
    written: watch::Sender<Option<PodStatus>>,
) {
    while newest.changed().await.is_ok() {
        loop {
            let Some((pod, status)) = newest.borrow_and_update().clone() else { break };
            // A restarted kubelet finds most pods as it left them.
            if written.borrow().is_none() && pod.status.as_ref() == Some(&status) {
                written.send_replace(Some(status));
                break;
            }
            let patch = patch(&pod, written.borrow().as_ref().or(pod.status.as_ref()), &status);
            let pods = Api::<Pod>::namespaced(client.clone(), pod.namespace());
            match pods.patch_status(pod.name(), &PatchParams::default(), &Patch::Strategic(patch)).await {
                Ok(_) => {
                    written.send_replace(Some(status));
                }
                // Deleted meanwhile, or another pod of that name: there is nobody to tell.
                Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {
                    tracing::debug!(pod = pod.name(), reason = answer.reason, "status has nobody to go to");
                    written.send_replace(Some(status));
                }
                Err(error) => {
                    let error = crate::container::chain(&error);
                    tracing::warn!(
                        pod = pod.name(),
                        namespace = pod.namespace(),
                        error,
                        "status is not taken, trying on"
                    );
                    tokio::time::sleep(RETRY_AFTER).await;
                    continue;
                }
            }
            break;
        }
    }
}

/// A strategic merge patch: conditions of other writers stay, lists of containers are replaced.
fn patch(pod: &Pod, old: Option<&PodStatus>, new: &PodStatus) -> Value {
    let mut status = json!(new);
    let had = |get: fn(&PodStatus) -> &Option<String>| old.is_some_and(|old| get(old).is_some());
    if new.reason.is_none() && had(|status| &status.reason) {
        status["reason"] = Value::Null;
    }
    if new.message.is_none() && had(|status| &status.message) {
        status["message"] = Value::Null;
    }
    // Addresses are merged by their value: without the directive an old one would stay beside the new.
    let replaced = old.is_some_and(|old| old.pod_ips.is_some() && old.pod_ips != new.pod_ips);
    if let (true, Some(list)) = (replaced, status["podIPs"].as_array_mut()) {
        list.insert(0, json!({ "$patch": "replace" }));
    }
    json!({ "metadata": { "uid": pod.uid() }, "status": status })
}
