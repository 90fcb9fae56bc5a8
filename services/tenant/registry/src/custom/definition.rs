//! One CustomResourceDefinition, as far as requests need it.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use api_kinds::{ResourceInfo, Subresource, Text, kinds};
use api_machinery::{Document, Gvk, Gvr, Object, Status};
use api_structural::{Dialect, Published};
use serde_json::Value;
use store_mvcc::{Entry, Memo};
use uuid::Uuid;

use super::schema::Schema;
use crate::registry::object;

/// A definition with the custom resources it makes.
pub(crate) struct Definition {
    spec: Arc<Spec>,
    resources: Vec<Arc<CustomResource>>,
}

/// One custom resource in one version, which is served or at least stored.
pub struct CustomResource {
    info: ResourceInfo,
    pub(super) spec: Arc<Spec>,
    /// Which of the versions.
    at: usize,
    terminating: bool,
    memo: Memo,
}

/// What does not change without a new generation of the definition: taken over from one look to the next, and
/// with it the schemas that were compiled.
pub(super) struct Spec {
    uid: Uuid,
    generation: i64,
    /// The definition, for schemas nobody asked for yet.
    source: Arc<Object>,
    pub(super) group: String,
    pub(super) versions: Vec<Version>,
    /// Which of the versions is stored.
    pub(super) storage: usize,
    /// `spec.conversion.webhook`, where the strategy is `Webhook`.
    pub(super) webhook: Option<Value>,
}

pub(super) struct Version {
    pub(super) name: String,
    served: bool,
    deprecation: Option<String>,
    status: bool,
    scale: Option<Scale>,
    columns: Vec<Value>,
    /// Path as selectors name it: `spec.host`.
    selectable: Vec<String>,
    /// Compiled when the first request needs it: an idle cluster with hundreds of definitions has none.
    schema: OnceLock<Option<Schema>>,
}

/// Where the fields of the scale subresource are, as paths without the leading dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub selector: Option<String>,
}

const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// What discovery shows while the definition is being deleted; the verbs work all the same, since whoever holds
/// an object back with a finalizer must be able to let go of it.
const LAST_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

impl Definition {
    /// `before` is the same definition at an earlier look.
    pub(super) fn read(entry: &Entry, before: Option<&Definition>) -> Result<Definition, Status> {
        let source = object(entry)?;
        let document = source.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
        let (uid, generation) = (source.header.uid, source.header.generation);
        let spec = match before {
            Some(before) if before.spec.uid == uid && before.spec.generation == generation => {
                before.spec.clone()
            }
            _ => Arc::new(Spec::read(source, &document)),
        };
        let resources = resources(&spec, &document);
        Ok(Definition { spec, resources })
    }

    /// Its custom resource in every version that is served, and in the one that is stored: somebody must be able
    /// to clean up. Nothing before its names were accepted.
    pub(super) fn resources(&self) -> &[Arc<CustomResource>] {
        &self.resources
    }
}

impl Spec {
    fn read(source: Arc<Object>, document: &Document) -> Spec {
        let group = document.get_str("spec.group").unwrap_or_default().to_owned();
        let kind = document.get_str("spec.names.kind").unwrap_or_default();
        let listed = document.get_array("spec.versions");
        let versions: Vec<Version> = listed.iter().map(|one| Version::read(one, &group, kind)).collect();
        let storage = listed.iter().position(|one| one["storage"] == true).unwrap_or_default();
        let by_webhook = document.get_str("spec.conversion.strategy") == Some("Webhook");
        let webhook = document.get("spec.conversion.webhook").filter(|_| by_webhook).cloned();
        let (uid, generation) = (source.header.uid, source.header.generation);
        Spec { uid, generation, source, group, versions, storage, webhook }
    }

    pub(super) fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|one| one.name == name)
    }

    /// The compiled schema of a version. `None` where there is none, or where it is none of ours any more.
    pub(super) fn schema<'s>(&'s self, version: &'s Version) -> Option<&'s Schema> {
        let compile = || {
            let document = self.source.to_document().ok()?;
            let listed = document.get_array("spec.versions");
            let found = listed.iter().find(|one| one["name"] == *version.name)?;
            let schema = found.pointer("/schema/openAPIV3Schema")?;
            Schema::compile(schema)
                .inspect_err(|why| tracing::error!(definition = %self.source.header.name, why, "a stored schema is not usable"))
                .ok()
        };
        version.schema.get_or_init(compile).as_ref()
    }
}

impl Version {
    fn read(version: &Value, group: &str, kind: &str) -> Version {
        let text = |pointer: &str| version.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let name = text("/name").unwrap_or_default();
        let path = |pointer: &str| text(pointer).map(|path| path.trim_start_matches('.').to_owned());
        let scale = version.pointer("/subresources/scale").map(|_| Scale {
            spec_replicas: path("/subresources/scale/specReplicasPath").unwrap_or_default(),
            status_replicas: path("/subresources/scale/statusReplicasPath").unwrap_or_default(),
            selector: path("/subresources/scale/labelSelectorPath").filter(|path| !path.is_empty()),
        });
        let deprecation = (version["deprecated"] == true).then(|| {
            text("/deprecationWarning").unwrap_or_else(|| format!("{group}/{name} {kind} is deprecated"))
        });
        let list = |name: &str| version[name].as_array().cloned().unwrap_or_default();
        let selectable = list("selectableFields")
            .iter()
            .filter_map(|field| field["jsonPath"].as_str())
            .map(|path| path.trim_start_matches('.').to_owned())
            .collect();
        Version {
            served: version["served"] == true,
            deprecation,
            status: version.pointer("/subresources/status").is_some(),
            scale,
            columns: list("additionalPrinterColumns"),
            selectable,
            schema: OnceLock::new(),
            name,
        }
    }
}

/// The resources of a definition whose names were accepted.
fn resources(spec: &Arc<Spec>, document: &Document) -> Vec<Arc<CustomResource>> {
    let holds = |kind: &str| {
        let conditions = document.get_array("status.conditions");
        conditions.iter().any(|one| one["type"] == kind && one["status"] == "True")
    };
    let name = |field: &str| {
        document.get_str(&format!("status.acceptedNames.{field}")).unwrap_or_default().to_owned()
    };
    let (plural, kind) = (name("plural"), name("kind"));
    let accepted = holds("NamesAccepted") || holds("Established");
    if !accepted || plural.is_empty() || kind.is_empty() || spec.versions.is_empty() {
        return Vec::new();
    }
    let texts = |field: &str| -> Vec<Text> {
        let listed = document.get_array(&format!("status.acceptedNames.{field}")).iter();
        listed.filter_map(Value::as_str).map(|one| Cow::Owned(one.to_owned())).collect()
    };
    let group = &spec.group;
    let gvr = |version: &str| Gvr {
        group: group.clone().into(),
        version: version.to_owned().into(),
        resource: plural.clone().into(),
    };
    let gvk = |version: &str| Gvk {
        group: group.clone().into(),
        version: version.to_owned().into(),
        kind: kind.clone().into(),
    };
    let storage = &spec.versions[spec.storage].name;
    let terminating = holds("Terminating");
    let made = spec.versions.iter().enumerate();
    made.filter(|(at, version)| version.served || *at == spec.storage)
        .map(|(at, version)| {
            let verbs = || SUBRESOURCE_VERBS.map(Cow::Borrowed).to_vec();
            let mut subresources = Vec::new();
            if version.status {
                subresources.push(Subresource {
                    name: "status".into(),
                    gvk: gvk(&version.name),
                    verbs: verbs(),
                });
            }
            if version.scale.is_some() {
                let gvk = Gvk::new("autoscaling", "v1", "Scale");
                subresources.push(Subresource { name: "scale".into(), gvk, verbs: verbs() });
            }
            let info = ResourceInfo {
                gvr: gvr(&version.name),
                gvk: gvk(&version.name),
                list_kind: name("listKind").into(),
                singular: name("singular").into(),
                short_names: texts("shortNames"),
                categories: texts("categories"),
                namespaced: document.get_str("spec.scope") == Some("Namespaced"),
                verbs: VERBS.map(Cow::Borrowed).to_vec(),
                subresources,
                collection: format!("{group}/{plural}").into(),
                storage: gvr(storage),
                hashed: Some(gvk(storage)),
                message: kinds().custom(),
            };
            let memo = Memo::default();
            Arc::new(CustomResource { info, spec: spec.clone(), at, terminating, memo })
        })
        .collect()
}

impl CustomResource {
    pub fn info(&self) -> &ResourceInfo {
        &self.info
    }
    /// The same with the verbs that discovery is to show.
    pub fn shown(&self) -> ResourceInfo {
        let mut info = self.info.clone();
        if self.terminating {
            info.verbs = LAST_VERBS.map(Cow::Borrowed).to_vec();
        }
        info
    }
    /// Its definition is being deleted: nothing new comes into it.
    pub fn is_terminating(&self) -> bool {
        self.terminating
    }
    /// Clients may ask for it.
    pub fn is_served(&self) -> bool {
        self.version().served
    }
    /// What every request for this version is told.
    pub fn deprecation(&self) -> Option<&str> {
        self.version().deprecation.as_deref()
    }
    /// `additionalPrinterColumns`
    pub fn printer_columns(&self) -> &[Value] {
        &self.version().columns
    }
    pub fn scale(&self) -> Option<&Scale> {
        self.version().scale.as_ref()
    }
    /// For what the API server derives from this version.
    pub fn memo(&self) -> &Memo {
        &self.memo
    }
    /// The schema that this version's objects have.
    pub fn schema(&self) -> Option<&Schema> {
        self.spec.schema(self.version())
    }
    /// One object, as OpenAPI shows it.
    pub fn published(&self, dialect: Dialect) -> Value {
        let fields: Vec<&str> = self.selectable().iter().map(String::as_str).collect();
        let what = Published {
            group: &self.info.gvk.group,
            version: &self.info.gvk.version,
            kind: &self.info.gvk.kind,
            selectable_fields: &fields,
            keep_unknown: false,
        };
        api_structural::publish(self.schema().map(Schema::shape), dialect, what)
    }
    /// Differs when anything about this resource does.
    pub fn edition(&self) -> (Uuid, i64) {
        (self.spec.uid, self.spec.generation)
    }
    pub(super) fn version(&self) -> &Version {
        &self.spec.versions[self.at]
    }
    pub(super) fn has_status(&self) -> bool {
        self.version().status
    }
    pub(super) fn selectable(&self) -> &[String] {
        &self.version().selectable
    }
}
