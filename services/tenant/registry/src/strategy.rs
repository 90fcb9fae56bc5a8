//! How a kind differs from the generic path.

use api_kinds::ResourceInfo;
use api_machinery::{Document, FieldError, Gvr, Object, Status};
use jiff::Timestamp;
use store_mvcc::{Op, Space};
use tenant_admission::Lookup;
use tenant_client::UserInfo;

/// The circumstances of a write.
pub struct Moment<'a> {
    pub now: Timestamp,
    pub user: &'a UserInfo,
    /// As the request named it; the document is in the storage version.
    pub requested: &'a Gvr,
    pub resource: &'a ResourceInfo,
    pub lookup: &'a dyn Lookup,
    /// For what is kept under internal collections: node ports in use.
    pub space: &'a Space,
}

/// What `metadata.name` may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// `a.b-c`, at most 253 bytes.
    DnsSubdomain,
    /// `a-b`, at most 63 bytes.
    DnsLabel,
    /// Anything that is one segment of a path: RBAC.
    PathSegment,
    /// An address, written the one canonical way: an IPAddress names what it holds.
    IpAddress,
}

/// Whether dependents follow their owner into deletion unless the client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GarbagePolicy {
    Background,
    Orphan,
    /// Has no dependents and takes no such finalizers: Events.
    Unsupported,
}

/// When `metadata.generation` counts up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    Never,
    OnSpec,
    /// On anything but metadata and status: kinds without a spec.
    OnContent,
    /// On anything but metadata: custom resources without a status of their own.
    OnEverything,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    Object,
    Status,
}

/// How one kind differs. Documents are in the storage version; `old` is what is stored.
///
/// The generic path has done metadata, `resourceVersion` and the like before it asks here.
pub trait Strategy: Send + Sync {
    fn names(&self) -> NameRule {
        NameRule::DnsSubdomain
    }
    fn generation(&self) -> Generation {
        Generation::Never
    }
    /// Upstream's `SetDefaults_*` for the kind, where the field table cannot say it. Applied before and
    /// after admission, so it must be idempotent.
    fn defaults(&self, _new: &mut Document) {}
    fn prepare_for_create(&self, _moment: &Moment<'_>, _new: &mut Document) {}
    fn prepare_for_update(&self, _moment: &Moment<'_>, _new: &mut Document, _old: &Document) {}
    /// `new` has the client's status on everything else of `old`.
    fn prepare_for_status_update(&self, _moment: &Moment<'_>, _new: &mut Document, _old: &Document) {}
    fn validate(&self, _new: &Document) -> Vec<FieldError> {
        Vec::new()
    }
    /// Called instead of [`Strategy::validate`], which it may use.
    fn validate_update(&self, new: &Document, _old: &Document) -> Vec<FieldError> {
        self.validate(new)
    }
    fn validate_status_update(&self, _new: &Document, _old: &Document) -> Vec<FieldError> {
        Vec::new()
    }
    fn warnings(&self, _new: &Document, _old: Option<&Document>) -> Vec<String> {
        Vec::new()
    }
    /// All of the validation that `write` asks for; whoever finds warnings on the way leaves them in `warnings`.
    fn judge(
        &self,
        new: &Document,
        old: Option<&Document>,
        write: Write,
        _warnings: &mut Vec<String>,
    ) -> Vec<FieldError> {
        match (write, old) {
            (Write::Status, Some(old)) => self.validate_status_update(new, old),
            (Write::Object, Some(old)) => self.validate_update(new, old),
            (_, None) => self.validate(new),
        }
    }
    /// For a deletion that leaves it to the server what becomes of the dependents.
    fn warning_on_default_deletion(&self) -> Option<&'static str> {
        None
    }
    /// Takes what this object needs exclusively (addresses, ports), before validation: fills it into `new`
    /// and returns the ops that hold it, to be committed in the same command. `new` is `None` on delete.
    fn allocate(
        &self,
        _moment: &Moment<'_>,
        _new: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<Vec<Op>, Status> {
        Ok(Vec::new())
    }
    /// Paths that field selectors may name, beside `metadata.name` and `metadata.namespace`.
    fn selectable(&self) -> &'static [&'static str] {
        &[]
    }
    /// [`Strategy::selectable`], asked for one path.
    fn selects(&self, path: &str) -> bool {
        self.selectable().contains(&path)
    }
    /// The text of a selectable field.
    fn select(&self, object: &Object, path: &str) -> String {
        field_text(object, path)
    }
    /// PUT on a name that does not exist creates it.
    fn creates_on_update(&self) -> bool {
        false
    }
    /// PUT without a resourceVersion overwrites whatever is there.
    fn updates_unconditionally(&self) -> bool {
        true
    }
    fn garbage_policy(&self) -> GarbagePolicy {
        GarbagePolicy::Background
    }
    /// Seconds of grace a deletion has; `None` for kinds that know no grace.
    fn grace_seconds(&self, _object: &Document, _asked: Option<i64>) -> Option<i64> {
        None
    }
    /// May an object that is marked as deleted, without finalizers and grace, be removed?
    fn may_vanish(&self, _object: &Document) -> bool {
        true
    }
    /// What a kind adds when an object is marked as deleted: a phase.
    fn mark(&self, _object: &mut Document, _now: Timestamp) {}
    /// DELETE answers with the object itself.
    fn returns_deleted(&self) -> bool {
        false
    }
    /// Milliseconds that the object lives after its last write.
    fn lives_ms(&self) -> Option<i64> {
        None
    }
    /// Has a status that only the status subresource may change.
    fn separates_status(&self) -> bool {
        true
    }
    /// A new object has a status, if an empty one: upstream's is a struct and so is always there.
    fn has_empty_status(&self) -> bool {
        true
    }
    /// Finalizers need no domain in their name: kinds that upstream checks less strictly.
    fn takes_any_finalizer(&self) -> bool {
        false
    }
    /// Why no object may be created at the moment.
    fn refuses_new(&self) -> Option<&'static str> {
        None
    }
    /// A finalizer that is put on what is deleted, so that something is done first.
    fn last_finalizer(&self) -> Option<&'static str> {
        None
    }
}

/// The strategy of kinds that have nothing to say.
pub(crate) struct Generic(pub Generation);

impl Strategy for Generic {
    fn generation(&self) -> Generation {
        self.0
    }
}

/// A scalar of the object as selectors compare it: absent is empty.
pub(crate) fn field_text(object: &Object, path: &str) -> String {
    match object.field(path) {
        None | Some(serde_json::Value::Null) => String::new(),
        Some(serde_json::Value::String(text)) => text,
        Some(other) => other.to_string(),
    }
}
