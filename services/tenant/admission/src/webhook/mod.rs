//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook.
//!
//! A mutating webhook is asked one after the other, in the order of names, each about the object as the one
//! before left it; validating ones are asked at the same time. What a webhook says is in `review`, how it is
//! called in `call`; whom a request concerns is in [`crate::matching`]. A webhook that does not answer is
//! kept from holding requests by its `breaker`.
//!
//! Facts: upstream's `plugin/webhook/{generic,mutating,validating}`.

mod breaker;
mod call;
mod hook;
mod review;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use api_machinery::{Document, Gvk, Gvr, Status};
use async_trait::async_trait;
use futures::future::join_all;
use serde_json::{Value, json};
use tenant_outbound::Outbound;

use crate::attributes::{Attributes, SideWrite};
use crate::chain::Admission;
use crate::expression::{Seen, Variables};
use crate::matching::{Matched, is_exempt};
use crate::parsed::Parsed;
use crate::reinvocation::Who;
use crate::versions::{check_identity, in_version};
use call::{Failure, call};
use hook::{Hook, parse_all};

pub(crate) use review::user_info;

const MUTATING: Gvr = Gvr::new("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations");
const VALIDATING: Gvr = Gvr::new("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations");

const MUTATION: &str = "mutation.webhook.admission.k8s.io/";
const PATCH: &str = "patch.webhook.admission.k8s.io/";
const VALIDATION_FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";

/// One cluster's mutating webhooks.
pub struct MutatingWebhooks {
    outbound: Arc<dyn Outbound>,
    parsed: Parsed<Vec<Hook>>,
}

/// One cluster's validating webhooks.
pub struct ValidatingWebhooks {
    outbound: Arc<dyn Outbound>,
    parsed: Parsed<Vec<Hook>>,
}

impl MutatingWebhooks {
    pub fn new(outbound: Arc<dyn Outbound>) -> MutatingWebhooks {
        MutatingWebhooks { outbound, parsed: Parsed::default() }
    }
}

impl ValidatingWebhooks {
    pub fn new(outbound: Arc<dyn Outbound>) -> ValidatingWebhooks {
        ValidatingWebhooks { outbound, parsed: Parsed::default() }
    }
}

/// A webhook that a request is to be shown to, with the object in its version.
struct Invocation<'a> {
    hook: &'a Hook,
    matched: Matched,
    object: Option<Document>,
    old: Option<Document>,
}

/// `None` when the webhook is not concerned.
async fn invocation<'a>(
    hook: &'a Hook,
    attributes: &Attributes<'_>,
    object: Option<&Document>,
    old: Option<&Document>,
) -> Result<Option<Invocation<'a>>, Status> {
    let Some(matched) = hook.matcher.matches(attributes, object, old)? else { return Ok(None) };
    let mut shown = [None, None];
    for (shown, document) in shown.iter_mut().zip([object, old]) {
        if let Some(document) = document {
            *shown = Some(in_version(attributes, document, &matched.gvk).await?);
        }
    }
    let [object, old] = shown;
    if !hook.conditions.is_empty() {
        let seen = Seen::new(attributes, &matched, object.as_ref(), old.as_ref(), None);
        match hook.conditions.hold(&seen, None, &Variables::default()) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(why) => return Err(attributes.forbidden(why)),
        }
    }
    Ok(Some(Invocation { hook, matched, object, old }))
}

#[async_trait]
impl Admission for MutatingWebhooks {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Document>,
        old: Option<&Document>,
    ) -> Result<(), Status> {
        let configurations = attributes.lookup.list(&MUTATING, None);
        let configurations = self.parsed.of(&configurations, parse_all);
        if configurations.is_empty() || is_exempt(attributes) {
            return Ok(());
        }
        attributes.reinvocation.enter(Who::Webhooks, object.as_deref());
        let hooks = configurations.iter().flat_map(|configuration| configuration.iter());
        for (index, hook) in hooks.enumerate() {
            let Some(asked) = invocation(hook, attributes, object.as_deref(), old).await? else { continue };
            if attributes.reinvocation.skips(Who::Webhooks, &hook.id) {
                continue;
            }
            let round = u8::from(attributes.reinvocation.is_second());
            let place = format!("round_{round}_index_{index}");
            let answer = call(
                &*self.outbound,
                hook,
                attributes,
                &asked.matched,
                asked.object.as_ref(),
                asked.old.as_ref(),
                true,
            )
            .await;
            let mut changed = false;
            let mut failure = None;
            match answer {
                Ok(None) => {}
                Ok(Some(patch)) => {
                    let Some(object) = object.as_deref_mut() else {
                        return Err(Status::internal(format!(
                            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                            hook.name
                        )));
                    };
                    changed = apply(attributes, &asked, &patch, object).await?;
                    let note = json!({"configuration": hook.configuration, "webhook": hook.name, "patch": patch,
                        "patchType": "JSONPatch"});
                    attributes.annotations.add(format!("{PATCH}{place}"), note.to_string());
                }
                Err(why) => failure = Some(why),
            }
            let note = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": changed});
            attributes.annotations.add(format!("{MUTATION}{place}"), note.to_string());
            if changed {
                attributes.reinvocation.changed(Who::Webhooks);
            }
            if hook.repeats {
                attributes.reinvocation.may_repeat(Who::Webhooks, &hook.id);
            }
            match failure {
                None => {}
                Some(Failure::Calling(why)) if hook.fails_open => {
                    tracing::info!(webhook = %hook.name, why, "a webhook failed and is ignored");
                    attributes.annotations.add(format!("failed-open.{MUTATION}{place}"), hook.name.as_str());
                }
                Some(why) => return Err(why.into_status(&hook.name)),
            }
        }
        attributes.reinvocation.leave(Who::Webhooks, object.as_deref());
        Ok(())
    }
}

/// Patches what the webhook was shown and takes the result over into the version that is worked on. True when
/// that changed anything.
async fn apply(
    attributes: &Attributes<'_>,
    asked: &Invocation<'_>,
    patch: &Value,
    object: &mut Document,
) -> Result<bool, Status> {
    let Some(shown) = &asked.object else { return Ok(false) };
    let before = Value::Object(shown.0.clone());
    let patched =
        api_patch::json_patch(&before, patch).map_err(|cause| Status::internal(cause.to_string()))?;
    let by = format!("admission webhook {:?}", asked.hook.name);
    let mut patched = Document::from_value(patched)
        .ok_or_else(|| Status::internal(format!("{by} made something else of the object than an object")))?;
    if patched == *shown {
        return Ok(false);
    }
    check_identity(&patched, shown, &by)?;
    take_over(attributes, &asked.matched, &mut patched, object).await?;
    Ok(true)
}

/// `patched`, in the version of `matched`, becomes `object`, in the version it has.
pub(crate) async fn take_over(
    attributes: &Attributes<'_>,
    matched: &Matched,
    patched: &mut Document,
    object: &mut Document,
) -> Result<(), Status> {
    // A subresource's body of another kind (a Binding) is checked by the subresource's own code.
    let served = attributes.lookup.equivalents(&matched.gvr);
    if served.iter().any(|(gvr, gvk)| (gvr, gvk) == (&matched.gvr, &matched.gvk)) {
        attributes.lookup.settle(&matched.gvr, patched)?;
    }
    let back = Gvk::parse(object.api_version(), object.kind()).unwrap_or_else(|| matched.gvk.clone());
    *object = in_version(attributes, patched, &back).await?;
    Ok(())
}

#[async_trait]
impl Admission for ValidatingWebhooks {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let configurations = attributes.lookup.list(&VALIDATING, None);
        let configurations = self.parsed.of(&configurations, parse_all);
        if configurations.is_empty() || is_exempt(attributes) {
            return Ok(Vec::new());
        }
        let mut asked = Vec::new();
        for hook in configurations.iter().flat_map(|configuration| configuration.iter()) {
            asked.extend(invocation(hook, attributes, object, old).await?);
        }
        let calls = asked.iter().enumerate().map(|(index, asked)| async move {
            let Invocation { hook, matched, object, old } = asked;
            let answer =
                call(&*self.outbound, hook, attributes, matched, object.as_ref(), old.as_ref(), false).await;
            match answer {
                Ok(_) => None,
                Err(Failure::Calling(why)) if hook.fails_open => {
                    tracing::info!(webhook = %hook.name, why, "a webhook failed and is ignored");
                    let key = format!("{VALIDATION_FAILED_OPEN}round_0_index_{index}");
                    attributes.annotations.add(key, hook.name.as_str());
                    None
                }
                Err(why) => Some(why.into_status(&hook.name)),
            }
        });
        match join_all(calls).await.into_iter().flatten().next() {
            Some(refusal) => Err(refusal),
            None => Ok(Vec::new()),
        }
    }
}
