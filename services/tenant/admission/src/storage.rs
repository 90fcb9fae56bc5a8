//! Volumes and claims: kept while in use, given the default class, resized only where the class allows.

use api_machinery::{Document, Gvr, Quantity, Status};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

const CLASSES: Gvr = Gvr::new("storage.k8s.io", "v1", "storageclasses");

/// Puts the finalizers that the protection controllers lift once nobody uses the object.
pub(crate) struct InUseProtection;

#[async_trait]
impl Admission for InUseProtection {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        if attributes.operation != Operation::Create {
            return Ok(());
        }
        let finalizer = if attributes.is("", "persistentvolumeclaims") {
            "kubernetes.io/pvc-protection"
        } else if attributes.is("", "persistentvolumes") {
            "kubernetes.io/pv-protection"
        } else if attributes.is("storage.k8s.io", "volumeattributesclasses") {
            "kubernetes.io/vac-protection"
        } else {
            return Ok(());
        };
        let Some(object) = object else { return Ok(()) };
        let finalizers = object.metadata_mut().entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(finalizers) = finalizers
            && !finalizers.iter().any(|one| one == finalizer)
        {
            finalizers.push(finalizer.into());
        }
        Ok(())
    }
}

/// A claim that names no class gets the default one; the newest, if several claim to be it.
pub(crate) struct DefaultStorageClass;

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
const IS_DEFAULT_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";

#[async_trait]
impl Admission for DefaultStorageClass {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let fits = attributes.is("", "persistentvolumeclaims") && attributes.operation == Operation::Create;
        let Some(claim) = object.filter(|_| fits) else { return Ok(()) };
        // An empty class is a choice: no dynamic provisioning.
        let chosen = claim.get("spec.storageClassName").is_some()
            || claim.annotation("volume.beta.kubernetes.io/storage-class").is_some();
        if chosen {
            return Ok(());
        }
        let classes = attributes.lookup.list(&CLASSES, None);
        let defaults = classes.iter().filter(|class| {
            let annotations = class.field("metadata.annotations").unwrap_or_default();
            [IS_DEFAULT, IS_DEFAULT_BETA].iter().any(|key| annotations[key] == "true")
        });
        let newest = defaults.max_by(|a, b| {
            a.header.created.cmp(&b.header.created).then_with(|| b.header.name.cmp(&a.header.name))
        });
        if let Some(class) = newest {
            claim.set("spec.storageClassName", class.header.name.to_string());
        }
        Ok(())
    }
}

/// Only claims of a class that says so can grow.
pub(crate) struct VolumeResize;

#[async_trait]
impl Admission for VolumeResize {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let fits = attributes.is("", "persistentvolumeclaims") && attributes.operation == Operation::Update;
        let (Some(new), Some(old)) = (object.filter(|_| fits), old) else { return Ok(Vec::new()) };
        let size = |claim: &Document| {
            claim.get("spec.resources.requests.storage").and_then(|size| Quantity::from_json(size).ok())
        };
        let (Some(wanted), Some(before)) = (size(new), size(old)) else { return Ok(Vec::new()) };
        if wanted <= before {
            return Ok(Vec::new());
        }
        if old.get_str("status.phase") != Some("Bound") {
            return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = class_of(new);
        let same = !class.is_empty() && class == class_of(old);
        let class = same.then(|| attributes.lookup.get(&CLASSES, None, class)).flatten();
        if class.and_then(|class| class.field("allowVolumeExpansion")) != Some(Value::Bool(true)) {
            return Err(attributes.forbidden(
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
            ));
        }
        Ok(Vec::new())
    }
}

/// The class a claim names, in the annotation of old or in its field.
fn class_of(claim: &Document) -> &str {
    let annotation = claim.annotation("volume.beta.kubernetes.io/storage-class");
    annotation.or_else(|| claim.get_str("spec.storageClassName")).unwrap_or_default()
}
