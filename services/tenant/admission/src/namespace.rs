//! NamespaceLifecycle: nothing is created where there is no namespace, or in one that is being emptied; the
//! system's own namespaces are for good.

use api_machinery::{Cause, Document, Gvr, Status};
use async_trait::async_trait;

use crate::attributes::{Attributes, Operation};
use crate::chain::Admission;

pub(crate) struct NamespaceLifecycle;

const NAMESPACES: Gvr = Gvr::core("namespaces");
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

#[async_trait]
impl Admission for NamespaceLifecycle {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let is_namespace = attributes.is_under("", "namespaces");
        if attributes.operation == Operation::Delete {
            if is_namespace && IMMORTAL.contains(&attributes.name) {
                return Err(attributes.forbidden("this namespace may not be deleted"));
            }
            return Ok(());
        }
        let namespace = attributes.namespace;
        if is_namespace || namespace.is_empty() || attributes.operation == Operation::Connect {
            return Ok(());
        }
        // Saying whether a namespace exists would tell more than a review may.
        if &*attributes.gvr.resource == "localsubjectaccessreviews" {
            return Ok(());
        }
        let Some(found) = attributes.lookup.get(&NAMESPACES, None, namespace) else {
            return Err(Status::not_found(&NAMESPACES, namespace));
        };
        let ending = found.header.deleting_since.is_some();
        if attributes.operation == Operation::Create && ending {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            return Err(attributes.forbidden(why).with_cause(Cause {
                reason: "NamespaceTerminating".to_owned(),
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            }));
        }
        Ok(())
    }
}
