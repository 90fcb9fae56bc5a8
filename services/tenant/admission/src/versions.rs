//! The object of a request in the versions that webhooks and policies ask for.

use api_machinery::{Document, Gvk, Status};

use crate::attributes::Attributes;

/// `document` as `gvk` shows it; the same where it is of that version already, or of another kind that has no
/// versions of its own here.
pub(crate) async fn in_version(
    attributes: &Attributes<'_>,
    document: &Document,
    gvk: &Gvk,
) -> Result<Document, Status> {
    if document.api_version() == gvk.api_version() {
        return Ok(document.clone());
    }
    if !document.kind().is_empty() && document.kind() != gvk.kind {
        return Ok(document.clone());
    }
    attributes.lookup.to_version(document.clone(), gvk).await
}

/// Nobody outside may turn an object into another one: what it is called is where it will be stored.
pub(crate) fn check_identity(new: &Document, old: &Document, by: &str) -> Result<(), Status> {
    for path in ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid"] {
        let text = |document: &Document| document.get_str(path).unwrap_or_default().to_owned();
        let (is, was) = (text(new), text(old));
        if is != was {
            return Err(Status::internal(format!(
                "{by} changed {path} from {was:?} to {is:?}, which is not allowed"
            )));
        }
    }
    if new.metadata().is_none() && old.metadata().is_some() {
        return Err(Status::internal(format!("{by} removed metadata, which is not allowed")));
    }
    Ok(())
}
