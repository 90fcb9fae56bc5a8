//! The part of `metadata` that is the server's: who an object is, since when, in which generation.

use api_kinds::ResourceInfo;
use api_machinery::{Document, Gvk, Status};
use base_clock::rfc3339;
use jiff::Timestamp;
use rand::Rng;
use uuid::Uuid;

use crate::context::Context;
use crate::strategy::Generation;

/// Names made from `generateName` end in this many random characters.
const SUFFIX: usize = 5;
/// What goes before the suffix is cut so that the name stays a label.
const MAX_GENERATED: usize = 63;
/// No vowels and nothing easily confused, so that no words appear.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `apiVersion` and `kind` must be the request's or absent.
pub(crate) fn check_type(gvk: &Gvk, document: &mut Document) -> Result<(), Status> {
    let (version, kind) = (gvk.api_version(), &*gvk.kind);
    let given = document.api_version();
    if !given.is_empty() && given != version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({given}) does not match the expected API version ({version})"
        )));
    }
    let given = document.kind();
    if !given.is_empty() && given != kind {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): the kind in the data ({given}) does not match the expected kind ({kind})"
        )));
    }
    document.set("apiVersion", version);
    document.set("kind", kind);
    if document.metadata().is_none() {
        document.metadata_mut();
    }
    Ok(())
}

/// Brings the body's namespace in line with the URL's.
pub(crate) fn check_namespace(
    resource: &ResourceInfo,
    namespace: Option<&str>,
    document: &mut Document,
) -> Result<String, Status> {
    if !resource.namespaced {
        document.metadata_mut().remove("namespace");
        return Ok(String::new());
    }
    let wanted = namespace.unwrap_or_default();
    if wanted.is_empty() {
        return Err(Status::bad_request("namespace is required to create or update a namespaced object"));
    }
    match document.namespace() {
        "" => document.set("metadata.namespace", wanted),
        given if given != wanted => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        _ => {}
    }
    Ok(wanted.to_owned())
}

/// Brings the body's name in line with the URL's.
pub(crate) fn check_name(name: &str, document: &mut Document) -> Result<(), Status> {
    match document.name() {
        "" => document.set("metadata.name", name),
        given if given != name => {
            return Err(Status::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn generate_name(prefix: &str) -> String {
    let mut rng = rand::rng();
    let mut cut = prefix.len().min(MAX_GENERATED - SUFFIX);
    while !prefix.is_char_boundary(cut) {
        cut -= 1;
    }
    let suffix = (0..SUFFIX).map(|_| ALPHABET[rng.random_range(0..ALPHABET.len())] as char);
    prefix[..cut].chars().chain(suffix).collect()
}

/// For a new object: what the client said about it does not count.
pub(crate) fn stamp_new(document: &mut Document, now: Timestamp, generation: Generation) {
    let metadata = document.metadata_mut();
    for name in
        ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"]
    {
        metadata.remove(name);
    }
    metadata.insert("uid".to_owned(), Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".to_owned(), rfc3339(now).into());
    if generation != Generation::Never {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// For an update: the server's fields stay as they are, whatever the client sent.
pub(crate) fn carry(new: &mut Document, old: &Document) {
    let before = old.metadata().cloned().unwrap_or_default();
    let metadata = new.metadata_mut();
    for name in [
        "name",
        "namespace",
        "generateName",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
        "generation",
    ] {
        match before.get(name) {
            Some(value) => {
                // Clients may drop generateName; setting or changing it is no use but no error either.
                if name != "generateName" || metadata.contains_key(name) {
                    metadata.insert(name.to_owned(), value.clone());
                }
            }
            None => {
                metadata.remove(name);
            }
        }
    }
    metadata.remove("selfLink");
}

/// Whether the change counts as a new generation.
pub(crate) fn next_generation(rule: Generation, new: &mut Document, old: &Document) {
    let changed = match rule {
        Generation::Never => return,
        Generation::OnSpec => new.spec() != old.spec(),
        Generation::OnContent => content(new, &["metadata", "status", "apiVersion", "kind"])
            .ne(content(old, &["metadata", "status", "apiVersion", "kind"])),
        Generation::OnEverything => content(new, &["metadata", "apiVersion", "kind"])
            .ne(content(old, &["metadata", "apiVersion", "kind"])),
    };
    new.set_generation(old.generation() + i64::from(changed));
}

/// All members but `skipped`.
fn content<'a>(
    document: &'a Document,
    skipped: &'a [&'a str],
) -> impl Iterator<Item = (&'a String, &'a serde_json::Value)> {
    document.0.iter().filter(|(name, _)| !skipped.contains(&name.as_str()))
}

/// Marks for deletion; the first mark is a new generation of kinds that have one.
pub(crate) fn mark_deleting(document: &mut Document, at: Timestamp, grace_seconds: i64) {
    if !document.is_deleting() && document.generation() > 0 {
        document.set_generation(document.generation() + 1);
    }
    document.set("metadata.deletionTimestamp", rfc3339(at));
    document.set("metadata.deletionGracePeriodSeconds", grace_seconds);
}

/// The time a deleting object's grace ends.
pub(crate) fn deletion_time(document: &Document) -> Option<Timestamp> {
    document.get_str("metadata.deletionTimestamp")?.parse().ok()
}

/// 409 where the body names another incarnation of the object.
pub(crate) fn check_uid(
    resource: &ResourceInfo,
    given: &str,
    old: &Document,
    key: &str,
) -> Result<(), Status> {
    if given.is_empty() || given == old.uid() {
        return Ok(());
    }
    Err(Status::conflict(
        &resource.gvr,
        old.name(),
        &format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {}",
            old.uid()
        ),
    ))
}

/// Everything but what changes by itself: whether a write would change anything worth a revision.
pub(crate) fn same_content(new: &Document, old: &Document) -> bool {
    let skip = |name: &str| name == "managedFields";
    let (Some(new_meta), Some(old_meta)) = (new.metadata(), old.metadata()) else { return false };
    let body = |document: &Document| document.0.iter().filter(|(name, _)| *name != "metadata").count();
    body(new) == body(old)
        && new
            .0
            .iter()
            .filter(|(name, _)| *name != "metadata")
            .all(|(name, value)| old.0.get(name) == Some(value))
        && new_meta.iter().filter(|(name, _)| !skip(name)).eq(old_meta.iter().filter(|(name, _)| !skip(name)))
}

/// The manager a request's fields are recorded under.
pub(crate) fn manager(ctx: &Context) -> &str {
    if ctx.field_manager.is_empty() { "unknown" } else { &ctx.field_manager }
}
