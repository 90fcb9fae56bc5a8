//! OwnerReferencesPermissionEnforcement: whoever lets an object block its owner's deletion must be allowed to
//! put finalizers on that owner.

use api_machinery::{Document, Gvk, Status};
use async_trait::async_trait;
use tenant_client::{Access, Target};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

pub(crate) struct OwnerReferences;

#[async_trait]
impl Admission for OwnerReferences {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
        let Some(new) = object.filter(|_| writes && attributes.subresource.is_empty()) else {
            return Ok(Vec::new());
        };
        let before = old.map(Document::owners).unwrap_or_default();
        for owner in new.owners() {
            if owner.block_owner_deletion != Some(true) {
                continue;
            }
            let known =
                before.iter().any(|one| one.uid == owner.uid && one.block_owner_deletion == Some(true));
            if known {
                continue;
            }
            let Some(gvk) = Gvk::parse(&owner.api_version, &owner.kind) else { continue };
            // Of a kind this server doesn't serve nothing can be said, and nothing is blocked.
            let Some((gvr, namespaced)) = attributes.lookup.resource_of(&gvk) else { continue };
            let target = Target::Resource {
                group: gvr.group.to_string(),
                version: gvr.version.to_string(),
                resource: gvr.resource.to_string(),
                subresource: "finalizers".to_owned(),
                namespace: if namespaced { attributes.namespace.to_owned() } else { String::new() },
                name: owner.name.clone(),
            };
            let access = Access { verb: "update".to_owned(), target, ..Access::default() };
            if !attributes.lookup.authorizer().decide(attributes.user, &access).is_allowed() {
                return Err(attributes.forbidden("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"));
            }
        }
        Ok(Vec::new())
    }
}
