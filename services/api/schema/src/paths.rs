//! What can be done with resources, as OpenAPI paths.

use api_kinds::{ResourceInfo, Subresource, kinds};
use api_machinery::Gvk;
use serde_json::{Map, Value, json};

use crate::parameters::{self, DELETE, DELETE_COLLECTION, LIST, LOG, PATCH, WRITE};
use crate::schema::Dialect;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// One URL.
pub(crate) struct Path {
    pub url: String,
    parameters: Vec<&'static str>,
    operations: Vec<Operation>,
}

struct Operation {
    method: &'static str,
    /// `x-kubernetes-action`; empty for what is no resource.
    action: &'static str,
    id: String,
    description: String,
    tag: String,
    gvk: Option<Gvk>,
    parameters: &'static [&'static str],
    body: Body,
    answers: &'static [u16],
    answer: Answer,
    /// Whether it can be a watch.
    streams: bool,
    /// Custom resources have no protobuf and no strategic merge patch.
    custom: bool,
}

enum Body {
    None,
    Options,
    Object(String),
    Patch,
}

enum Answer {
    Schema(String),
    /// Text of any type.
    Text,
    /// A log.
    PlainText,
    /// Documents that exist in one media type only; the schema if there is one.
    Only(&'static str, Option<&'static str>),
}

/// Schema names of a kind: `io.k8s.api.apps.v1.Deployment`, for custom ones the group backwards.
pub(crate) fn schema_name(gvk: &Gvk) -> String {
    if let Some(message) = kinds().kind_message(gvk) {
        return message.name.to_owned();
    }
    let mut parts: Vec<&str> = gvk.group.rsplit('.').collect();
    parts.push(&gvk.version);
    parts.push(&gvk.kind);
    parts.join(".")
}

pub(crate) fn list_name(info: &ResourceInfo) -> String {
    let list = Gvk { kind: info.list_kind().into(), ..info.gvk.clone() };
    schema_name(&list)
}

/// `apps/v1` → `AppsV1`, `rbac.authorization.k8s.io/v1` → `RbacAuthorizationV1`.
fn camel(group: &str, version: &str) -> String {
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let group = if group.is_empty() { "core" } else { group };
    group.split('.').chain([version]).map(capital).collect()
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}

/// `apps_v1`, `rbacAuthorization_v1`
pub(crate) fn tag(group: &str, version: &str) -> String {
    let joined = camel(group, "");
    let mut chars = joined.chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase().to_string()).unwrap_or_default();
    let group = first + chars.as_str();
    if version.is_empty() { group } else { format!("{group}_{version}") }
}

struct Maker<'a> {
    info: &'a ResourceInfo,
    group_version: String,
    schema: String,
    list: String,
    custom: bool,
}

/// All paths of one resource, with the old ones for watching if `watch_paths`.
pub(crate) fn of_resource(info: &ResourceInfo, watch_paths: bool) -> Vec<Path> {
    let root = if info.gvr.group.is_empty() { "/api" } else { "/apis" };
    let base = format!("{root}/{}", info.gvr.api_version());
    let maker = Maker {
        info,
        group_version: camel(&info.gvr.group, &info.gvr.version),
        schema: schema_name(&info.gvk),
        list: list_name(info),
        custom: info.message == kinds().custom(),
    };
    let scoped = if info.namespaced { "Namespaced" } else { "" };
    let collection = match info.namespaced {
        true => format!("{base}/namespaces/{{namespace}}/{}", info.gvr.resource),
        false => format!("{base}/{}", info.gvr.resource),
    };
    let item = format!("{collection}/{{name}}");
    let namespace: &[&'static str] = if info.namespaced { &["namespace"] } else { &[] };
    let named: Vec<&'static str> = [&["name"], namespace].concat();

    let mut paths = vec![
        path(collection.clone(), namespace, maker.collection(scoped)),
        path(item.clone(), &named, maker.item(scoped)),
    ];
    if info.namespaced && info.allows("list") {
        let list =
            maker.list_operation(format!("list{}{}ForAllNamespaces", maker.group_version, info.gvk.kind));
        paths.push(path(format!("{base}/{}", info.gvr.resource), &[], vec![list]));
    }
    for sub in &info.subresources {
        let url = format!("{item}/{}", sub.name);
        paths.push(path(url.clone(), &named, maker.subresource(sub, scoped, "")));
        if sub.name == "proxy" {
            let named = [named.clone(), vec!["path-segment"]].concat();
            paths.push(path(format!("{url}/{{path}}"), &named, maker.subresource(sub, scoped, "WithPath")));
        }
    }
    if watch_paths && info.allows("watch") {
        let watch = |id: &str, action| maker.watch_operation(id, action);
        let kind = &info.gvk.kind;
        let old = |rest: &str| format!("{base}/watch{rest}");
        let rest = collection[base.len()..].to_owned();
        paths.push(path(old(&rest), namespace, vec![watch(&format!("{scoped}{kind}List"), "watchlist")]));
        paths.push(path(
            old(&format!("{rest}/{{name}}")),
            &named,
            vec![watch(&format!("{scoped}{kind}"), "watch")],
        ));
        if info.namespaced {
            let all = watch(&format!("{kind}ListForAllNamespaces"), "watchlist");
            paths.push(path(old(&format!("/{}", info.gvr.resource)), &[], vec![all]));
        }
    }
    paths.retain(|path| !path.operations.is_empty());
    paths
}

fn path(url: String, parameters: &[&'static str], operations: Vec<Operation>) -> Path {
    let mut parameters = parameters.to_vec();
    if !operations.iter().any(|operation| operation.action == "connect") {
        parameters.push("pretty");
    }
    // Upstream lifts what all operations share; only a single operation ever shares more than the names.
    let lifted = operations.len() == 1 || operations.iter().all(|one| one.action == "connect");
    let mut path = Path { url, parameters, operations };
    if lifted && let Some(first) = path.operations.first() {
        path.parameters.extend(first.parameters);
        path.operations.iter_mut().for_each(|operation| operation.parameters = &[]);
    }
    path.parameters.sort_unstable();
    path.parameters.dedup();
    path
}

impl Maker<'_> {
    fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        id: String,
        description: String,
    ) -> Operation {
        Operation {
            method,
            action,
            id,
            description,
            tag: tag(&self.info.gvr.group, &self.info.gvr.version),
            gvk: Some(self.info.gvk.clone()),
            parameters: &[],
            body: Body::None,
            answers: &[200],
            answer: Answer::Schema(self.schema.clone()),
            streams: false,
            custom: self.custom,
        }
    }

    fn list_operation(&self, id: String) -> Operation {
        let description = format!("list or watch objects of kind {}", self.info.gvk.kind);
        Operation {
            parameters: LIST,
            answer: Answer::Schema(self.list.clone()),
            streams: true,
            ..self.operation("get", "list", id, description)
        }
    }

    fn watch_operation(&self, what: &str, action: &'static str) -> Operation {
        let kind = &self.info.gvk.kind;
        let what_for =
            if action == "watch" { format!("an object of kind {kind}") } else { format!("a list of {kind}") };
        let description =
            format!("watch changes to {what_for}; deprecated, use the 'watch' parameter of a list");
        Operation {
            parameters: LIST,
            answer: Answer::Schema(format!("{META}.WatchEvent")),
            streams: true,
            ..self.operation("get", action, format!("watch{}{what}", self.group_version), description)
        }
    }

    fn collection(&self, scoped: &str) -> Vec<Operation> {
        let (info, gv) = (self.info, &self.group_version);
        let kind = &info.gvk.kind;
        let mut operations = Vec::new();
        if info.allows("list") {
            operations.push(self.list_operation(format!("list{gv}{scoped}{kind}")));
        }
        if info.allows("create") {
            let create = self.operation(
                "post",
                "post",
                format!("create{gv}{scoped}{kind}"),
                format!("create a {kind}"),
            );
            operations.push(self.writing(create, &[200, 201, 202]));
        }
        if info.allows("deletecollection") {
            operations.push(Operation {
                parameters: DELETE_COLLECTION,
                body: Body::Options,
                answer: Answer::Schema(format!("{META}.Status")),
                ..self.operation(
                    "delete",
                    "deletecollection",
                    format!("delete{gv}Collection{scoped}{kind}"),
                    format!("delete collection of {kind}"),
                )
            });
        }
        operations
    }

    fn writing(&self, operation: Operation, answers: &'static [u16]) -> Operation {
        Operation { parameters: WRITE, body: Body::Object(self.schema.clone()), answers, ..operation }
    }

    fn item(&self, scoped: &str) -> Vec<Operation> {
        let (info, gv) = (self.info, &self.group_version);
        let kind = &info.gvk.kind;
        let id = |verb: &str| format!("{verb}{gv}{scoped}{kind}");
        let mut operations = Vec::new();
        if info.allows("get") {
            operations.push(self.operation("get", "get", id("read"), format!("read the specified {kind}")));
        }
        if info.allows("update") {
            let replace =
                self.operation("put", "put", id("replace"), format!("replace the specified {kind}"));
            operations.push(self.writing(replace, &[200, 201]));
        }
        if info.allows("patch") {
            let patch = self.operation(
                "patch",
                "patch",
                id("patch"),
                format!("partially update the specified {kind}"),
            );
            operations.push(Operation {
                parameters: PATCH,
                body: Body::Patch,
                answers: &[200, 201],
                ..patch
            });
        }
        if info.allows("delete") {
            let answer = match info.answers_with_deleted() {
                true => self.schema.clone(),
                false => format!("{META}.Status"),
            };
            operations.push(Operation {
                parameters: DELETE,
                body: Body::Options,
                answers: &[200, 202],
                answer: Answer::Schema(answer),
                ..self.operation("delete", "delete", id("delete"), format!("delete a {kind}"))
            });
        }
        operations
    }

    fn subresource(&self, sub: &Subresource, scoped: &str, suffix: &str) -> Vec<Operation> {
        let (info, gv) = (self.info, &self.group_version);
        let (kind, name) = (&info.gvk.kind, &sub.name);
        let id = |verb: &str| format!("{verb}{gv}{scoped}{kind}{}{suffix}", capital(name));
        let own = |operation: Operation| Operation {
            gvk: Some(sub.gvk.clone()),
            answer: Answer::Schema(schema_name(&sub.gvk)),
            ..operation
        };
        if sub.gvk.kind.ends_with("Options") {
            let methods: &[(&str, &str)] = match &**name {
                "proxy" => &[
                    ("delete", "Delete"),
                    ("get", "Get"),
                    ("head", "Head"),
                    ("options", "Options"),
                    ("patch", "Patch"),
                    ("post", "Post"),
                    ("put", "Put"),
                ],
                _ => &[("get", "Get"), ("post", "Post")],
            };
            let connect = methods.iter().map(|(method, word)| {
                let id = format!("connect{gv}{word}{scoped}{kind}{}{suffix}", capital(name));
                let description = format!("connect {} requests to {name} of {kind}", method.to_uppercase());
                Operation {
                    parameters: parameters::connect(name),
                    answer: Answer::Text,
                    ..own(self.operation(method, "connect", id, description))
                }
            });
            return connect.collect();
        }
        let mut operations = Vec::new();
        if sub.allows("get") {
            let read =
                own(self.operation("get", "get", id("read"), format!("read {name} of the specified {kind}")));
            operations.push(match &**name {
                "log" => Operation { parameters: LOG, answer: Answer::PlainText, ..read },
                _ => read,
            });
        }
        let body = || Body::Object(schema_name(&sub.gvk));
        if sub.allows("create") {
            let create = self.operation("post", "post", id("create"), format!("create {name} of a {kind}"));
            operations.push(Operation {
                parameters: WRITE,
                body: body(),
                answers: &[200, 201, 202],
                ..own(create)
            });
        }
        if sub.allows("update") {
            let replace = self.operation(
                "put",
                "put",
                id("replace"),
                format!("replace {name} of the specified {kind}"),
            );
            operations.push(Operation {
                parameters: WRITE,
                body: body(),
                answers: &[200, 201],
                ..own(replace)
            });
        }
        if sub.allows("patch") {
            let patch = self.operation(
                "patch",
                "patch",
                id("patch"),
                format!("partially update {name} of the specified {kind}"),
            );
            operations.push(Operation {
                parameters: PATCH,
                body: Body::Patch,
                answers: &[200, 201],
                ..own(patch)
            });
        }
        operations
    }
}

fn own(url: &str, id: &str, description: &str, tag: String, answer: Answer) -> Path {
    let operation = Operation {
        method: "get",
        action: "",
        id: id.to_owned(),
        description: description.to_owned(),
        tag,
        gvk: None,
        parameters: &[],
        body: Body::None,
        answers: &[200],
        answer,
        streams: false,
        custom: false,
    };
    Path { url: url.to_owned(), parameters: Vec::new(), operations: vec![operation] }
}

/// Documents of the server itself, by their path in the index of OpenAPI 3.
pub(crate) fn of_server(path: &str) -> Option<Path> {
    const INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
    let (id, description, tag, media_type, schema) = match path {
        "version" => {
            let description = "get the version information for this server";
            ("getCodeVersion", description, "version", "application/json", Some(INFO))
        }
        ".well-known/openid-configuration" => (
            "getServiceAccountIssuerOpenIDConfiguration",
            "get how tokens of service accounts can be checked",
            "WellKnown",
            "application/json",
            None,
        ),
        "openid/v1/jwks" => (
            "getServiceAccountIssuerOpenIDKeyset",
            "get the public keys that tokens of service accounts are checked with",
            "openid",
            "application/jwk-set+json",
            None,
        ),
        _ => return None,
    };
    Some(own(&format!("/{path}/"), id, description, tag.to_owned(), Answer::Only(media_type, schema)))
}

/// `/api/`, `/apis/`, `/apis/GROUP/` or `/apis/GROUP/VERSION/`: what can be discovered there.
pub(crate) fn discovery(group: Option<&str>, version: &str) -> Path {
    let (url, kind, what) = match (group, version) {
        (None, _) => ("/apis/".to_owned(), "APIGroupList", "available API versions"),
        (Some(""), "") => ("/api/".to_owned(), "APIVersions", "available API versions"),
        (Some(""), version) => (format!("/api/{version}/"), "APIResourceList", "available resources"),
        (Some(group), "") => (format!("/apis/{group}/"), "APIGroup", "information of a group"),
        (Some(group), version) => {
            (format!("/apis/{group}/{version}/"), "APIResourceList", "available resources")
        }
    };
    let (id, tag) = match (group, version) {
        (None, _) => ("getAPIVersions".to_owned(), "apis".to_owned()),
        (Some(group), "") => {
            let what = if group.is_empty() { "APIVersions" } else { "APIGroup" };
            (format!("get{}{what}", camel(group, "")), tag(group, ""))
        }
        (Some(group), version) => (format!("get{}APIResources", camel(group, version)), tag(group, version)),
    };
    own(&url, &id, &format!("get {what}"), tag, Answer::Schema(format!("{META}.{kind}")))
}

impl Path {
    /// Schemas the operations name.
    pub fn schemas(&self) -> Vec<String> {
        let mut names = Vec::new();
        for operation in &self.operations {
            match &operation.body {
                Body::None => {}
                Body::Options => names.push(format!("{META}.DeleteOptions")),
                Body::Patch => names.push(format!("{META}.Patch")),
                Body::Object(name) => names.push(name.clone()),
            }
            match &operation.answer {
                Answer::Schema(name) => names.push(name.clone()),
                Answer::Only(_, Some(name)) => names.push((*name).to_owned()),
                Answer::Only(_, None) | Answer::Text | Answer::PlainText => {}
            }
        }
        names
    }

    pub fn render(&self, dialect: Dialect) -> Value {
        let mut out = Map::new();
        if !self.parameters.is_empty() {
            let parameters: Vec<Value> =
                self.parameters.iter().map(|name| parameter(name, dialect)).collect();
            out.insert("parameters".to_owned(), parameters.into());
        }
        for operation in &self.operations {
            let rendered = match dialect {
                Dialect::V2 => operation.render_v2(),
                Dialect::V3 => operation.render_v3(),
            };
            out.insert(operation.method.to_owned(), rendered);
        }
        Value::Object(out)
    }
}

/// One parameter in full.
pub(crate) fn parameter(name: &str, dialect: Dialect) -> Value {
    let Some((typ, place, description)) = parameters::describe(name) else { return Value::Null };
    // The path of a proxied request is told from its query parameter of the same name.
    let shown = if name == "path-segment" { "path" } else { name };
    let mut out = json!({"name": shown, "in": place, "description": description});
    if place == "path" {
        out["required"] = true.into();
    }
    match dialect {
        Dialect::V3 => out["schema"] = json!({"type": typ, "uniqueItems": true}),
        Dialect::V2 => {
            out["type"] = typ.into();
            out["uniqueItems"] = true.into();
        }
    }
    out
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

impl Operation {
    fn media_types(&self) -> Vec<String> {
        match self.answer {
            Answer::Text => return vec!["*/*".to_owned()],
            Answer::Only(media_type, _) => return vec![media_type.to_owned()],
            Answer::Schema(_) | Answer::PlainText => {}
        }
        let mut types = vec!["application/json".to_owned(), "application/yaml".to_owned()];
        if matches!(self.answer, Answer::PlainText) {
            types.push("text/plain".to_owned());
        }
        if !self.custom {
            types.push(PROTOBUF.to_owned());
        }
        if self.streams {
            types.push("application/json;stream=watch".to_owned());
            if !self.custom {
                types.push(format!("{PROTOBUF};stream=watch"));
            }
        }
        types
    }

    fn patch_types(&self) -> Vec<&'static str> {
        let mut types = vec![
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json",
        ];
        if !self.custom {
            types.push("application/strategic-merge-patch+json");
        }
        types
    }

    fn body_schema(&self, dialect: Dialect) -> Option<Value> {
        match &self.body {
            Body::None => None,
            Body::Options => Some(dialect.reference(&format!("{META}.DeleteOptions"))),
            Body::Patch => Some(dialect.reference(&format!("{META}.Patch"))),
            Body::Object(name) => Some(dialect.reference(name)),
        }
    }

    fn answer_schema(&self, dialect: Dialect) -> Value {
        match &self.answer {
            Answer::Schema(name) => dialect.reference(name),
            Answer::Only(_, Some(name)) => dialect.reference(name),
            Answer::Text | Answer::PlainText | Answer::Only(_, None) => json!({"type": "string"}),
        }
    }

    fn common(&self) -> Value {
        let mut out = json!({"description": self.description, "operationId": self.id, "tags": [self.tag]});
        if !self.action.is_empty() {
            out["x-kubernetes-action"] = self.action.into();
        }
        if let Some(gvk) = &self.gvk {
            out["x-kubernetes-group-version-kind"] =
                json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
        }
        out
    }

    fn words(code: u16) -> &'static str {
        match code {
            201 => "Created",
            202 => "Accepted",
            _ => "OK",
        }
    }

    fn render_v3(&self) -> Value {
        let mut out = self.common();
        if !self.parameters.is_empty() {
            out["parameters"] = self.parameters.iter().map(|name| parameter(name, Dialect::V3)).collect();
        }
        let content = |types: &[String], schema: &Value| -> Value {
            types.iter().map(|typ| (typ.clone(), json!({"schema": schema}))).collect::<Map<_, _>>().into()
        };
        if let Some(schema) = self.body_schema(Dialect::V3) {
            let types: Vec<String> = match self.body {
                Body::Patch => self.patch_types().iter().map(|typ| (*typ).to_owned()).collect(),
                _ => vec!["*/*".to_owned()],
            };
            out["requestBody"] = json!({"content": content(&types, &schema)});
            if !matches!(self.body, Body::Options) {
                out["requestBody"]["required"] = true.into();
            }
        }
        let types = self.media_types();
        let schema = self.answer_schema(Dialect::V3);
        for &code in self.answers {
            out["responses"][code.to_string()] =
                json!({"description": Operation::words(code), "content": content(&types, &schema)});
        }
        out["responses"]["401"] = json!({"description": "Unauthorized"});
        out
    }

    fn render_v2(&self) -> Value {
        let mut out = self.common();
        // Written out once, at the end of the document; but those that upstream writes out each time, as kubectl
        // before 1.27 looks for `dryRun` in a patch's own parameters and follows no reference.
        let shared = |name: &&str| match *name {
            "dryRun" | "fieldValidation" => parameter(name, Dialect::V2),
            name => json!({"$ref": format!("#/parameters/{name}")}),
        };
        let mut all: Vec<Value> = Vec::new();
        if let Some(schema) = self.body_schema(Dialect::V2) {
            let mut body = json!({"in": "body", "name": "body", "schema": schema});
            if !matches!(self.body, Body::Options) {
                body["required"] = true.into();
            }
            all.push(body);
        }
        all.extend(self.parameters.iter().map(shared));
        if !all.is_empty() {
            out["parameters"] = all.into();
        }
        out["consumes"] = match (&self.body, &self.answer) {
            (Body::Patch, _) => json!(self.patch_types()),
            // Discovery says here what it produces, as it always has.
            (Body::None, Answer::Schema(_)) if self.action.is_empty() => json!(self.media_types()),
            _ => json!(["*/*"]),
        };
        out["produces"] = json!(self.media_types());
        out["schemes"] = json!(["https"]);
        let schema = self.answer_schema(Dialect::V2);
        for &code in self.answers {
            out["responses"][code.to_string()] =
                json!({"description": Operation::words(code), "schema": schema});
        }
        out["responses"]["401"] = json!({"description": "Unauthorized"});
        out
    }
}
