//! Whole documents, and keeping them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use api_kinds::{ResourceInfo, discovery, kinds};
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::Digest;

use crate::descriptions::{self, Descriptions};
use crate::gnostic;
use crate::paths::{self, Path};
use crate::schema::{Dialect, is_shown, schema, special};

/// Raised when documents made from the same table come out differently, since clients keep what they read
/// under its hash.
const EDITION: u32 = 1;

/// One document as it is kept.
#[derive(Debug, Clone)]
pub struct Document {
    /// For URLs (`?hash=`) and entity tags: differs when the document does.
    pub hash: Arc<str>,
    gzip: Bytes,
    len: usize,
}

/// A custom resource to show beside what is built in.
#[derive(Debug, Clone)]
pub struct Custom<'a> {
    pub info: &'a ResourceInfo,
    /// Schema of one object, as this dialect shows it: `apiVersion`, `kind` and `metadata` included.
    pub schema: &'a Value,
}

impl Document {
    fn new(hash: Arc<str>, json: &[u8]) -> Document {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        // A Vec takes every byte; what cannot fail is not worth an error type.
        let written = encoder.write_all(json).and_then(|()| encoder.finish());
        let gzip = written.map(Bytes::from).unwrap_or_default();
        Document { hash, gzip, len: json.len() }
    }
    /// Named by what it says, for documents with parts that are not built in.
    fn by_content(json: &[u8]) -> Document {
        Document::new(digest(&[json]), json)
    }
    /// `Content-Encoding: gzip`
    pub fn gzip(&self) -> &Bytes {
        &self.gzip
    }
    /// The document itself, for the rare client that does not take gzip.
    pub fn json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        let read = flate2::read::GzDecoder::new(&self.gzip[..]).read_to_end(&mut out);
        // Packed by `new` and never changed since.
        read.map(|_| out).unwrap_or_default()
    }
    /// Length of [`Document::json`].
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn digest(parts: &[&[u8]]) -> Arc<str> {
    let mut hasher = sha2::Sha512::new();
    parts.iter().for_each(|part| hasher.update(part));
    hex::encode_upper(hasher.finalize()).into()
}

/// The hash of a built-in document without making it: everything it is made from, and its name.
fn built_in_hash(path: &str) -> Arc<str> {
    static SOURCES: OnceLock<Arc<str>> = OnceLock::new();
    let sources = SOURCES.get_or_init(|| {
        let (resources, messages) = kinds().sources();
        digest(&[resources.as_bytes(), messages.as_bytes(), descriptions::packed(), &EDITION.to_be_bytes()])
    });
    digest(&[sources.as_bytes(), path.as_bytes()])
}

/// Documents made so far. A handful in practice: clients read those of the kinds they use.
static MADE: Mutex<BTreeMap<String, Document>> = Mutex::new(BTreeMap::new());

fn made(path: &str, make: impl FnOnce() -> Vec<u8>) -> Document {
    let lock = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(document) = lock().get(path) {
        return document.clone();
    }
    // Made outside the lock: two who ask at once both make it, and the same one.
    let document = Document::new(built_in_hash(path), &make());
    lock().entry(path.to_owned()).or_insert(document).clone()
}

/// What the server says about itself.
const SERVER: [&str; 3] = ["version", ".well-known/openid-configuration", "openid/v1/jwks"];

/// The paths of `/openapi/v3` that need no custom resource: `api/v1`, `apis/apps`, `apis/apps/v1`, `version`.
fn v3_paths() -> Vec<String> {
    let mut all: Vec<String> = ["api", "apis"].into_iter().chain(SERVER).map(str::to_owned).collect();
    for (group, versions) in kinds().groups() {
        match group {
            "" => all.extend(versions.iter().map(|version| format!("api/{version}"))),
            group => {
                all.push(format!("apis/{group}"));
                all.extend(versions.iter().map(|version| format!("apis/{group}/{version}")));
            }
        }
    }
    all
}

/// `/openapi/v3`: where each document is. `more` are paths and hashes of documents with custom resources;
/// they take the place of built-in ones of the same path.
pub fn v3_index(more: &[(String, Arc<str>)]) -> Vec<u8> {
    let mut hashes: BTreeMap<String, Arc<str>> =
        v3_paths().into_iter().map(|path| (path.clone(), built_in_hash(&path))).collect();
    hashes.extend(more.iter().cloned());
    let paths: serde_json::Map<String, Value> = hashes
        .into_iter()
        .map(|(path, hash)| {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": paths}).to_string().into_bytes()
}

/// One built-in document, by the path behind `/openapi/v3/`; `None` for one nobody has.
pub fn v3(path: &str) -> Option<Document> {
    if !v3_paths().iter().any(|known| known == path) {
        return None;
    }
    Some(made(path, || v3_json(path, &[])))
}

/// The document of a group and version with custom resources, made anew: whoever has them keeps it.
/// `path` is as for [`v3`], and of the form `apis/GROUP/VERSION`; `hash` names what it is made from, so that an
/// index can show it before the document is made (see [`hash_of`]).
pub fn v3_with(path: &str, custom: &[Custom<'_>], hash: Arc<str>) -> Document {
    Document::new(hash, &v3_json(path, custom))
}

/// The hash of a document with custom resources, from whatever text tells their states apart.
pub fn hash_of(custom: &[u8]) -> Arc<str> {
    let built_in = built_in_hash("custom");
    digest(&[built_in.as_bytes(), custom])
}

fn v3_json(path: &str, custom: &[Custom<'_>]) -> Vec<u8> {
    let parts: Vec<&str> = path.split('/').collect();
    let (group, version) = match parts[..] {
        ["api", version] => ("", version),
        ["apis", group, version] => (group, version),
        _ => ("", ""),
    };
    let all: Vec<&ResourceInfo> =
        kinds().resources().iter().chain(custom.iter().map(|one| one.info)).collect();
    let mut paths: Vec<Path> = match parts[..] {
        _ if SERVER.contains(&path) => paths::of_server(path).into_iter().collect(),
        ["api"] => vec![paths::discovery(Some(""), "")],
        ["apis"] => vec![paths::discovery(None, "")],
        ["apis", group] => vec![paths::discovery(Some(group), "")],
        _ => vec![paths::discovery(Some(group), version)],
    };
    if !version.is_empty() {
        let here = all.iter().filter(|info| info.gvr.group == group && info.gvr.version == version);
        paths.extend(here.flat_map(|info| paths::of_resource(info, true)));
    }
    paths.sort_by(|a, b| a.url.cmp(&b.url));

    let mut out = Writer::new();
    out.open(
        "{\"openapi\":\"3.0.0\",\"info\":{\"title\":\"Kubernetes\",\"version\":\"v1.36.0\"},\"paths\":{",
    );
    for path in &paths {
        out.member(&path.url, &path.render(Dialect::V3));
    }
    out.open("},\"components\":{\"securitySchemes\":{\"BearerToken\":");
    out.value(&bearer());
    out.open("},\"schemas\":{");
    let wanted = paths.iter().flat_map(Path::schemas).collect();
    let group_version = format!("{group}/{version}");
    each_schema(Dialect::V3, wanted, custom, Some(&group_version), |name, schema| out.member(name, schema));
    out.open("}}}");
    out.bytes
}

/// `/openapi/v2`, built-in kinds only.
pub fn v2() -> Document {
    made("v2", || v2_json(&[]))
}

/// [`v2`] as `application/com.github.proto-openapi.spec.v2.v1.0+protobuf`; [`Document::json`] gives those
/// bytes then.
pub fn v2_protobuf() -> Document {
    made("v2.pb", || v2_protobuf_bytes(&[]))
}

/// `/openapi/v2` with custom resources, made anew: whoever has them keeps it.
pub fn v2_with(custom: &[Custom<'_>]) -> Document {
    Document::by_content(&v2_json(custom))
}

/// [`v2_with`] as protobuf.
pub fn v2_protobuf_with(custom: &[Custom<'_>]) -> Document {
    Document::by_content(&v2_protobuf_bytes(custom))
}

/// Where a piece of a version 2 document goes. They come in this order.
pub(crate) enum Part<'a> {
    /// Everything that is neither of the others.
    Head,
    Path(&'a str),
    Definition(&'a str),
    Parameter(&'a str),
}

fn v2_protobuf_bytes(custom: &[Custom<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 << 16);
    v2_parts(custom, |part, value| gnostic::append(&mut out, &part, value));
    out
}

fn v2_json(custom: &[Custom<'_>]) -> Vec<u8> {
    let mut out = Writer::new();
    out.open("{");
    let mut section = "";
    v2_parts(custom, |part, value| {
        let (wanted, key) = match part {
            Part::Head => {
                value.as_object().into_iter().flatten().for_each(|(key, value)| out.member(key, value));
                return;
            }
            Part::Path(url) => ("paths", url),
            Part::Definition(name) => ("definitions", name),
            Part::Parameter(name) => ("parameters", name),
        };
        if section != wanted {
            out.open(if section.is_empty() { ",\"" } else { "},\"" });
            out.open(wanted);
            out.open("\":{");
            section = wanted;
        }
        out.member(key, value);
    });
    out.open("}}");
    out.bytes
}

/// One piece at a time: all of them at once would be tens of megabytes.
fn v2_parts(custom: &[Custom<'_>], mut put: impl FnMut(Part<'_>, &Value)) {
    let head = json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "security": [{"BearerToken": []}],
        "securityDefinitions": {"BearerToken": bearer()},
    });
    put(Part::Head, &head);
    let all: Vec<&ResourceInfo> =
        kinds().resources().iter().chain(custom.iter().map(|one| one.info)).collect();
    let mut own_paths: Vec<Path> = SERVER.into_iter().filter_map(paths::of_server).collect();
    own_paths.extend([paths::discovery(Some(""), ""), paths::discovery(None, "")]);
    for (group, versions) in discovery::groups(&all) {
        if !group.is_empty() {
            own_paths.push(paths::discovery(Some(group), ""));
        }
        own_paths.extend(versions.iter().map(|version| paths::discovery(Some(group), version)));
    }
    for path in &own_paths {
        put(Part::Path(&path.url), &path.render(Dialect::V2));
    }
    for info in &all {
        for path in paths::of_resource(info, false) {
            put(Part::Path(&path.url), &path.render(Dialect::V2));
        }
    }
    let mut wanted: BTreeSet<String> = kinds()
        .messages()
        .iter()
        .filter(|message| is_shown(message))
        .map(|one| one.name.to_owned())
        .collect();
    let fields = kinds().messages().iter().flat_map(|message| &message.fields);
    wanted.extend(fields.filter_map(|field| special(field.kind)));
    wanted.extend(own_paths.iter().flat_map(Path::schemas));
    wanted.insert(format!("{META}.Patch"));
    each_schema(Dialect::V2, wanted, custom, None, |name, schema| put(Part::Definition(name), schema));
    let shared: BTreeSet<&str> = [
        crate::parameters::LIST,
        crate::parameters::DELETE_COLLECTION,
        crate::parameters::PATCH,
        crate::parameters::LOG,
    ]
    .concat()
    .into_iter()
    .collect();
    for name in shared {
        put(Part::Parameter(name), &paths::parameter(name, Dialect::V2));
    }
}

fn bearer() -> Value {
    json!({
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    })
}

/// The wanted schemas and all they refer to.
fn each_schema(
    dialect: Dialect,
    wanted: BTreeSet<String>,
    custom: &[Custom<'_>],
    group: Option<&str>,
    mut put: impl FnMut(&str, &Value),
) {
    let descriptions = Descriptions::load();
    let mut own: HashMap<String, Value> = HashMap::new();
    for one in custom {
        let name = paths::schema_name(&one.info.gvk);
        own.insert(paths::list_name(one.info), list_schema(one.info, &name, dialect));
        own.insert(name, one.schema.clone());
    }
    // Writing in the order they are found keeps one schema in memory, not all.
    let mut done: BTreeSet<String> = BTreeSet::new();
    let mut left: Vec<String> = wanted.into_iter().collect();
    left.extend(own.keys().cloned());
    while let Some(name) = left.pop() {
        if !done.insert(name.clone()) {
            continue;
        }
        if let Some(schema) = own.get(&name) {
            let refers = [format!("{META}.ObjectMeta"), format!("{META}.ListMeta")];
            left.extend(refers.into_iter().filter(|name| !done.contains(name)));
            put(&name, schema);
            continue;
        }
        let (schema, needed) = schema(&name, dialect, &descriptions, group);
        left.extend(needed.into_iter().filter(|name| !done.contains(name)));
        put(&name, &schema);
    }
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

fn list_schema(info: &ResourceInfo, item: &str, dialect: Dialect) -> Value {
    json!({
        "description": format!("{} is a list of {}", info.list_kind(), info.gvk.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": dialect.reference(&format!("{META}.ListMeta")),
            "items": {"type": "array", "items": dialect.reference(item)},
        },
        "x-kubernetes-group-version-kind":
            [{"group": info.gvk.group, "version": info.gvk.version, "kind": info.list_kind()}],
    })
}

/// JSON written piece by piece.
struct Writer {
    bytes: Vec<u8>,
    /// Whether the object being written has no member yet.
    fresh: bool,
}

impl Writer {
    fn new() -> Writer {
        Writer { bytes: Vec::with_capacity(1 << 16), fresh: true }
    }
    /// Literal JSON, the last of it the beginning of an object.
    fn open(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.fresh = true;
    }
    fn value(&mut self, value: &Value) {
        // Values have string keys and a Vec takes every byte.
        serde_json::to_writer(&mut self.bytes, value).expect("a value is JSON");
    }
    fn member(&mut self, key: &str, value: &Value) {
        if !std::mem::replace(&mut self.fresh, false) {
            self.bytes.push(b',');
        }
        self.value(&key.into());
        self.bytes.push(b':');
        self.value(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_machinery::{Gvk, Gvr};

    fn parsed(document: &Document) -> Value {
        let json = document.json();
        assert_eq!(json.len(), document.len());
        serde_json::from_slice(&json).expect("JSON")
    }

    /// Every `$ref` leads somewhere.
    fn check_references(value: &Value, root: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let pointer = reference.trim_start_matches('#');
                    assert!(root.pointer(pointer).is_some(), "nothing at {reference}");
                }
                map.values().for_each(|value| check_references(value, root));
            }
            Value::Array(items) => items.iter().for_each(|value| check_references(value, root)),
            _ => {}
        }
    }

    #[test]
    fn kubectl_finds_what_it_looks_for() {
        let apps = parsed(&v3("apis/apps/v1").expect("apps"));
        check_references(&apps, &apps);
        let deployment = "/components/schemas/io.k8s.api.apps.v1.Deployment";
        let template = "/components/schemas/io.k8s.api.core.v1.PodSpec/properties/containers";
        let item = "/paths/~1apis~1apps~1v1~1namespaces~1{namespace}~1deployments~1{name}";
        for (pointer, wanted) in [
            (
                format!("{deployment}/x-kubernetes-group-version-kind"),
                json!([{"group": "apps", "version": "v1", "kind": "Deployment"}]),
            ),
            (
                format!("{deployment}/properties/spec/allOf/0/$ref"),
                json!("#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"),
            ),
            (format!("{template}/x-kubernetes-patch-merge-key"), json!("name")),
            (format!("{template}/x-kubernetes-list-map-keys"), json!(["name"])),
            (format!("{item}/patch/parameters/2/name"), json!("fieldValidation")),
            (
                format!("{item}/patch/requestBody/content/application~1apply-patch+yaml/schema/$ref"),
                json!("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Patch"),
            ),
            (format!("{item}/put/operationId"), json!("replaceAppsV1NamespacedDeployment")),
        ] {
            assert_eq!(apps.pointer(&pointer), Some(&wanted), "{pointer}");
        }
    }

    #[test]
    fn every_document_is_whole() {
        let index: Value = serde_json::from_slice(&v3_index(&[])).expect("JSON");
        let paths = index["paths"].as_object().expect("paths");
        assert!(paths.len() > 50, "{}", paths.len());
        for (path, place) in paths {
            let document = v3(path).expect("what the index names");
            let url = place["serverRelativeURL"].as_str().expect("a URL");
            assert_eq!(url, format!("/openapi/v3/{path}?hash={}", document.hash));
            let parsed = parsed(&document);
            check_references(&parsed, &parsed);
        }
        assert!(v3("apis/nobody/v1").is_none());
    }

    #[test]
    fn version_two_is_whole_too() {
        let document = parsed(&v2());
        check_references(&document, &document);
        let parts = v2_protobuf();
        assert!(parts.len() > 500_000 && parts.json().starts_with(b"\x0a\x032.0"), "{}", parts.len());
        let secret = &document["definitions"]["io.k8s.api.core.v1.Secret"]["properties"]["data"];
        assert_eq!(secret["additionalProperties"], json!({"type": "string", "format": "byte"}));
    }

    #[test]
    fn custom_resources_join_in() {
        let info = ResourceInfo {
            gvr: Gvr::new("example.com", "v1", "widgets"),
            gvk: Gvk::new("example.com", "v1", "Widget"),
            list_kind: "".into(),
            singular: "widget".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: ["get", "list", "create"].map(Into::into).to_vec(),
            subresources: Vec::new(),
            collection: "example.com/widgets".into(),
            storage: Gvr::new("example.com", "v1", "widgets"),
            hashed: None,
            message: kinds().custom(),
        };
        let schema = json!({"type": "object", "properties": {"metadata":
            {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}}});
        let custom = [Custom { info: &info, schema: &schema }];
        let document = v3_with("apis/example.com/v1", &custom, hash_of(b"one"));
        let parsed = parsed(&document);
        check_references(&parsed, &parsed);
        assert_eq!(parsed["components"]["schemas"]["com.example.v1.Widget"], schema);
        assert!(parsed["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets"]["post"].is_object());
        let index = v3_index(&[("apis/example.com/v1".to_owned(), document.hash.clone())]);
        assert!(String::from_utf8_lossy(&index).contains(&*document.hash));
        let old = schema.to_string().replace("#/components/schemas", "#/definitions");
        let old: Value = serde_json::from_str(&old).expect("JSON");
        let both = v2_with(&[Custom { info: &info, schema: &old }]).json();
        let both: Value = serde_json::from_slice(&both).expect("JSON");
        check_references(&both, &both);
        assert!(both["definitions"]["com.example.v1.WidgetList"].is_object());
    }
}
