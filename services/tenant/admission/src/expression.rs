//! CEL for admission: what expressions may speak of, and running them over one request.
//!
//! Match conditions and policies see the same request: `object`, `oldObject`, `request`, `namespaceObject`,
//! `params`, `authorizer` and, for policies, `variables`. A [`Scope`] is one request as they see it; it makes
//! what an expression asks for when it asks for it.
//! Facts: upstream's `plugin/cel` (`compile.go`, `activation.go`, `composition.go`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use api_cel::{
    Activation, Authorize, AuthorizerValue, Budget, Decision, Decl, Env, EvalError, Field, ListKind,
    ObjectType, Opaque, Program, Question, ResourceQuestion, Shape, Type, Value, What, compile, render,
};
use api_machinery::{Document, FieldSelector};
use serde_json::{Value as Json, json};
use tenant_client::{Access, SharedAuthorizer, Target, UserInfo};

use crate::attributes::Attributes;
use crate::matching::Matched;
use crate::webhook::user_info;

/// What an expression has to come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Bool,
    Text,
    TextOrNull,
    Anything,
    /// `Object{...}`
    Configuration,
    /// `[JSONPatch{...}]`
    Patch,
}

/// Which of the variables that not every expression has may be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) params: bool,
    pub(crate) authorizer: bool,
    /// `Object`, `JSONPatch` and their functions.
    pub(crate) patches: bool,
}

/// A policy's own variables, in order. Each may name those before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variables(Vec<Variable>);

#[derive(Debug, Clone)]
struct Variable {
    /// `variables.name`
    name: String,
    program: Result<Program, String>,
}

impl Variables {
    /// Compiles and adds one. The error is what is wrong with it; it is there all the same, and so is every
    /// expression that names it.
    pub(crate) fn add(&mut self, name: &str, source: &str, names: Names) -> Result<(), String> {
        let program = self.compile(source, names, Wants::Anything);
        let problem = program.as_ref().err().cloned();
        self.0.push(Variable { name: format!("variables.{name}"), program });
        problem.map_or(Ok(()), Err)
    }

    /// As [`Variables::add`], with types; what is wrong with it shows where it is named.
    pub(crate) fn add_typed(
        &mut self,
        name: &str,
        source: &str,
        names: Names,
        types: Option<(&Arc<Decl>, Option<&Arc<Decl>>)>,
    ) {
        let program = self.compile_with(source, names, Wants::Anything, types);
        self.0.push(Variable { name: format!("variables.{name}"), program });
    }

    /// The error is upstream's detail of what is wrong.
    pub(crate) fn compile(&self, source: &str, names: Names, wants: Wants) -> Result<Program, String> {
        self.compile_with(source, names, wants, None)
    }

    /// With `object` and `oldObject`, and `params`, of known types, to find mistakes in advance.
    pub(crate) fn compile_with(
        &self,
        source: &str,
        names: Names,
        wants: Wants,
        types: Option<(&Arc<Decl>, Option<&Arc<Decl>>)>,
    ) -> Result<Program, String> {
        let mut env = Env::kubernetes()
            .declared("request", REQUEST.clone())
            .declared("namespaceObject", NAMESPACE.clone());
        match types {
            Some((object, _)) => {
                env = env.declared("object", object.clone()).declared("oldObject", object.clone());
            }
            None => env = env.variable("object", Type::Dyn).variable("oldObject", Type::Dyn),
        }
        if names.params {
            env = match types.and_then(|(_, params)| params) {
                Some(params) => env.declared("params", params.clone()),
                None => env.variable("params", Type::Dyn),
            };
        }
        if names.authorizer {
            env = env.variable("authorizer", Type::Opaque("kubernetes.authorization.Authorizer")).variable(
                "authorizer.requestResource",
                Type::Opaque("kubernetes.authorization.ResourceCheck"),
            );
        }
        if names.patches {
            env = env.mutation();
        }
        if !self.0.is_empty() {
            let nothing =
                ObjectType { name: "kubernetes.variables".to_owned(), fields: BTreeMap::new(), open: false };
            env = env.variable("variables", Type::Object(Arc::new(nothing)));
            for variable in &self.0 {
                let ty = variable.program.as_ref().map_or(Type::Dyn, |program| program.output().clone());
                env = env.variable(&variable.name, ty);
            }
        }
        let program =
            compile(&env, source).map_err(|issues| format!("compilation failed: {}", render(&issues)))?;
        let output = program.output();
        let fits = match (wants, output) {
            (Wants::Anything, _)
            | (Wants::Bool, Type::Bool)
            | (Wants::Text | Wants::TextOrNull, Type::String)
            | (Wants::TextOrNull, Type::Null) => true,
            (Wants::Configuration, Type::Object(object)) => object.name == "Object",
            (Wants::Patch, Type::List(item)) => {
                matches!(&**item, Type::Object(object) if object.name == "JSONPatch")
            }
            _ => false,
        };
        if fits {
            return Ok(program);
        }
        let must = match wants {
            Wants::Bool => "must evaluate to bool",
            Wants::Text => "must evaluate to string",
            Wants::TextOrNull => "must evaluate to one of [string null]",
            Wants::Configuration => "must evaluate to Object",
            Wants::Patch => "must evaluate to list(JSONPatch)",
            Wants::Anything => "must evaluate to any",
        };
        Err(format!("{must} but got {output}"))
    }
}

fn fields(all: impl IntoIterator<Item = (&'static str, Arc<Decl>, bool)>) -> Vec<(String, Field)> {
    all.into_iter().map(|(name, decl, required)| (name.to_owned(), Field { decl, required })).collect()
}

/// `kubernetes.AdmissionRequest`
static REQUEST: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let text = Arc::new(Decl::string(None));
    let texts = |names: &[&'static str]| {
        let all: Vec<_> = names.iter().map(|&name| (name, text.clone(), true)).collect();
        fields(all)
    };
    let list = Arc::new(Decl::list(Decl::string(None), ListKind::Atomic, None));
    let kind = Arc::new(Decl::object("kubernetes.GroupVersionKind", texts(&["group", "version", "kind"]), 2));
    let resource = Arc::new(Decl::object(
        "kubernetes.GroupVersionResource",
        texts(&["group", "version", "resource"]),
        2,
    ));
    let extra = Arc::new(Decl::map(Decl::list(Decl::string(None), ListKind::Atomic, None), None));
    let user = fields([
        ("username", text.clone(), false),
        ("uid", text.clone(), false),
        ("groups", list, false),
        ("extra", extra, false),
    ]);
    let user = Arc::new(Decl::object("kubernetes.UserInfo", user, 2));
    let all = fields([
        ("kind", kind.clone(), true),
        ("resource", resource.clone(), true),
        ("subResource", text.clone(), false),
        ("requestKind", kind, true),
        ("requestResource", resource, true),
        ("requestSubResource", text.clone(), false),
        ("name", text.clone(), true),
        ("namespace", text.clone(), false),
        ("operation", text, true),
        ("userInfo", user, true),
        ("dryRun", Arc::new(Decl::boolean()), false),
        ("options", Arc::new(Decl::dynamic()), false),
    ]);
    Arc::new(Decl::object("kubernetes.AdmissionRequest", all, 2))
});

/// `kubernetes.Namespace`: without what namespaces keep for machinery.
static NAMESPACE: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let text = Arc::new(Decl::string(None));
    let time = Arc::new(Decl {
        ty: Type::Timestamp,
        shape: Shape::DateTime,
        max_elements: 20,
        min_size: 20,
        nullable: false,
    });
    let (number, texts) = (Arc::new(Decl::integer()), Decl::list(Decl::string(None), ListKind::Atomic, None));
    let (texts, map) = (Arc::new(texts), Arc::new(Decl::map(Decl::string(None), None)));
    let metadata = fields([
        ("name", text.clone(), true),
        ("generateName", text.clone(), true),
        ("namespace", text.clone(), true),
        ("labels", map.clone(), true),
        ("annotations", map, true),
        ("UID", text.clone(), true),
        ("creationTimestamp", time.clone(), true),
        ("deletionGracePeriodSeconds", number.clone(), true),
        ("deletionTimestamp", time.clone(), true),
        ("generation", number, true),
        ("resourceVersion", text.clone(), true),
        ("finalizers", texts.clone(), true),
    ]);
    let condition = fields([
        ("status", text.clone(), true),
        ("type", text.clone(), true),
        ("lastTransitionTime", time, true),
        ("message", text.clone(), true),
        ("reason", text.clone(), true),
    ]);
    let conditions =
        Decl::list(Decl::object("kubernetes.NamespaceCondition", condition, 2), ListKind::Atomic, None);
    let status = fields([("conditions", Arc::new(conditions), true), ("phase", text, true)]);
    let all = fields([
        ("metadata", Arc::new(Decl::object("kubernetes.NamespaceMetadata", metadata, 2)), true),
        (
            "spec",
            Arc::new(Decl::object("kubernetes.NamespaceSpec", fields([("finalizers", texts, true)]), 2)),
            true,
        ),
        ("status", Arc::new(Decl::object("kubernetes.NamespaceStatus", status, 2)), true),
    ]);
    Arc::new(Decl::object("kubernetes.Namespace", all, 2))
});

/// One request as expressions see it. Made once for all that look at the same version of the object.
pub(crate) struct Seen {
    object: Json,
    old: Json,
    request: Json,
    namespace: Json,
    authorizer: Arc<Asking>,
    resource: ResourceQuestion,
}

impl Seen {
    /// `object` and `old` in the version of `matched`; the request's namespace as it is stored.
    pub(crate) fn new(
        attributes: &Attributes<'_>,
        matched: &Matched,
        object: Option<&Document>,
        old: Option<&Document>,
        namespace: Option<&Document>,
    ) -> Seen {
        let whole =
            |document: Option<&Document>| document.map_or(Json::Null, |one| Json::Object(one.0.clone()));
        Seen {
            object: whole(object),
            old: whole(old),
            request: request(attributes, matched),
            namespace: namespace.map_or(Json::Null, namespace_object),
            authorizer: Arc::new(Asking {
                authorizer: attributes.lookup.authorizer_handle(),
                user: attributes.user.clone(),
            }),
            resource: ResourceQuestion {
                group: attributes.gvr.group.to_string(),
                resource: attributes.gvr.resource.to_string(),
                subresource: attributes.subresource.to_owned(),
                namespace: attributes.effective_namespace().to_owned(),
                name: attributes.name.to_owned(),
                ..ResourceQuestion::default()
            },
        }
    }

    pub(crate) fn set_object(&mut self, object: &Document) {
        self.object = Json::Object(object.0.clone());
    }
}

/// The request without its object, as upstream shows it.
fn request(attributes: &Attributes<'_>, matched: &Matched) -> Json {
    let kind =
        |gvk: &api_machinery::Gvk| json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
    let resource = |gvr: &api_machinery::Gvr| json!({"group": gvr.group, "version": gvr.version, "resource": gvr.resource});
    let mut request = json!({
        "uid": "",
        "kind": kind(&matched.gvk),
        "resource": resource(&matched.gvr),
        "requestKind": kind(attributes.gvk),
        "requestResource": resource(attributes.gvr),
        "operation": attributes.operation.as_str(),
        "userInfo": user_info(attributes),
        "dryRun": attributes.dry_run,
        "options": attributes.options.to_json(attributes.operation, attributes.dry_run),
    });
    for (name, text) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.name),
        ("namespace", attributes.effective_namespace()),
    ] {
        if !text.is_empty() {
            request[name] = text.into();
        }
    }
    request
}

fn namespace_object(namespace: &Document) -> Json {
    let mut shown = namespace.clone();
    for hidden in ["managedFields", "ownerReferences"] {
        shown.metadata_mut().remove(hidden);
    }
    shown.into_value()
}

/// The cluster's authorizer, asked on behalf of the request's user.
struct Asking {
    authorizer: SharedAuthorizer,
    user: UserInfo,
}

impl Authorize for Asking {
    fn check(&self, question: &Question) -> Decision {
        let service_account;
        let user = match &question.service_account {
            Some((namespace, name)) => {
                service_account = UserInfo::service_account(namespace, name);
                &service_account
            }
            None => &self.user,
        };
        let mut access = Access { verb: question.verb.clone(), ..Access::default() };
        match &question.what {
            What::Path(path) => access.target = Target::Path(path.clone()),
            What::Resource(asked) => {
                access.fields = FieldSelector::parse(&asked.field_selector).unwrap_or_default();
                access.target = Target::Resource {
                    group: asked.group.clone(),
                    version: "*".to_owned(),
                    resource: asked.resource.clone(),
                    subresource: asked.subresource.clone(),
                    namespace: asked.namespace.clone(),
                    name: asked.name.clone(),
                };
            }
        }
        let decision = self.authorizer.decide(user, &access);
        let allowed = decision.is_allowed();
        let (tenant_client::Decision::Allow { reason }
        | tenant_client::Decision::NoOpinion { reason }
        | tenant_client::Decision::Deny { reason }) = decision;
        Decision { allowed, reason, error: None }
    }
}

/// Where one policy's expressions run: a request, its parameters, its variables.
pub(crate) struct Scope<'a> {
    seen: &'a Seen,
    params: Option<&'a Json>,
    variables: &'a [Variable],
    /// By position in `variables`; each is evaluated once, and only if somebody names it.
    known: RefCell<BTreeMap<usize, Option<Value<'a>>>>,
    /// What variables have cost that no budget has paid for yet.
    unpaid: Cell<u64>,
    /// Why a variable that was named has no value.
    failed: RefCell<Option<String>>,
}

/// Why an expression came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// This one did.
    Expression(String),
    /// There is no budget left, so nothing further is evaluated.
    Budget,
}

pub(crate) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Failed::Expression(why) => why,
            Failed::Budget => OUT_OF_BUDGET,
        })
    }
}

impl<'a> Scope<'a> {
    pub(crate) fn new(seen: &'a Seen, params: Option<&'a Json>, variables: &'a Variables) -> Scope<'a> {
        Scope {
            seen,
            params,
            variables: &variables.0,
            known: RefCell::default(),
            unpaid: Cell::new(0),
            failed: RefCell::default(),
        }
    }

    /// Runs one compiled expression; `source` is for the message.
    pub(crate) fn eval(
        &self,
        source: &str,
        program: &'a Result<Program, String>,
        budget: &mut Budget,
    ) -> Result<Value<'a>, Failed> {
        let program =
            program.as_ref().map_err(|why| Failed::Expression(format!("compilation error: {why}")))?;
        let outcome = program.eval(self, budget);
        let unpaid = self.unpaid.take();
        if unpaid > budget.left || matches!(outcome, Err(EvalError::Budget)) {
            budget.left = 0;
            return Err(Failed::Budget);
        }
        budget.left -= unpaid;
        let why_not = self.failed.borrow_mut().take();
        outcome.map_err(|cause| {
            let cause = why_not.unwrap_or_else(|| cause.to_string());
            Failed::Expression(format!("expression '{source}' resulted in error: {cause}"))
        })
    }

    fn variable(&self, name: &str) -> Option<Value<'a>> {
        let wanted = self.variables.iter().position(|variable| variable.name == name)?;
        // What it needs comes first, so that no chain of variables can nest evaluations.
        let mut needed = vec![false; wanted + 1];
        needed[wanted] = true;
        for at in (0..=wanted).rev() {
            if !needed[at] || self.known.borrow().contains_key(&at) {
                continue;
            }
            if let Ok(program) = &self.variables[at].program {
                for (earlier, variable) in self.variables[..at].iter().enumerate() {
                    needed[earlier] |= program.references(&variable.name);
                }
            }
        }
        for at in (0..=wanted).filter(|at| needed[*at]) {
            if !self.known.borrow().contains_key(&at) {
                let value = self.evaluate(&self.variables[at]);
                self.known.borrow_mut().insert(at, value);
            }
        }
        self.known.borrow().get(&wanted).cloned().flatten()
    }

    fn evaluate(&self, variable: &'a Variable) -> Option<Value<'a>> {
        let name = variable.name.trim_start_matches("variables.");
        let note = |why: String| {
            self.failed.borrow_mut().get_or_insert(why);
            None
        };
        let program = match &variable.program {
            Ok(program) => program,
            Err(why) => return note(format!("composited variable {name:?} fails to compile: {why}")),
        };
        let (outcome, cost) = program.eval_counted(self, &mut Budget::new(api_cel::limits::PER_CALL_LIMIT));
        self.unpaid.set(self.unpaid.get().saturating_add(cost));
        match outcome {
            Ok(value) => Some(value),
            Err(cause) => note(format!("composited variable {name:?} fails to evaluate: {cause}")),
        }
    }
}

impl<'a> Activation<'a> for Scope<'a> {
    fn get(&self, name: &str) -> Option<Value<'a>> {
        let seen = self.seen;
        let asking = || seen.authorizer.clone() as Arc<dyn Authorize>;
        let opaque = |value: AuthorizerValue| Value::Opaque(Arc::new(Opaque::Authorizer(value)));
        match name {
            "object" => Some(Value::from_json(&seen.object)),
            "oldObject" => Some(Value::from_json(&seen.old)),
            "request" => Value::typed(&seen.request, &REQUEST).ok(),
            "namespaceObject" if seen.namespace.is_null() => Some(Value::Null),
            "namespaceObject" => Value::typed(&seen.namespace, &NAMESPACE).ok(),
            "params" => Some(self.params.map_or(Value::Null, Value::from_json)),
            "authorizer" => Some(opaque(AuthorizerValue::new(asking()))),
            "authorizer.requestResource" => {
                Some(opaque(AuthorizerValue::of_resource(asking(), seen.resource.clone())))
            }
            _ => self.variable(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Operation;
    use crate::testing::{Cluster, request as asked};

    const ALL: Names = Names { params: true, authorizer: true, patches: false };

    #[test]
    fn expressions_see_the_request() {
        let cluster = Cluster::default();
        let mut request = asked(&cluster, Operation::Update, "apps/v1/deployments", "", "ns", "web");
        request.user.extra.insert("scopes".to_owned(), vec!["a".to_owned()]);
        let matched = Matched { gvr: request.gvr.clone(), gvk: request.gvk.clone() };
        let document = |replicas: i64| {
            Document::from_value(
                json!({"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": replicas}}),
            )
        };
        let namespace = Document::from_value(json!({"metadata": {"name": "ns", "labels": {"team": "blue"},
            "creationTimestamp": "2026-11-30T21:00:00Z", "managedFields": []}, "status": {"phase": "Active"}}));
        let attributes = request.attributes();
        let seen =
            Seen::new(&attributes, &matched, document(3).as_ref(), document(2).as_ref(), namespace.as_ref());
        let mut variables = Variables::default();
        for (name, source) in [
            ("replicas", "object.spec.replicas"),
            ("doubled", "variables.replicas * 2"),
            ("broken", "object.spec.nothing"),
            ("unused", "1 / 0"),
        ] {
            variables.add(name, source, ALL).unwrap();
        }
        let params = json!({"max": 5});
        for (source, wanted) in [
            ("object.spec.replicas > oldObject.spec.replicas", "true"),
            ("request.operation == 'UPDATE' && request.name == 'web' && request.namespace == 'ns'", "true"),
            ("request.resource.resource == 'deployments' && request.kind.kind == 'Deployment'", "true"),
            ("request.userInfo.username == 'ann' && 'dev' in request.userInfo.groups", "true"),
            ("request.userInfo.extra['scopes'] == ['a']", "true"),
            ("has(request.subResource)", "false"),
            ("request.dryRun", "false"),
            ("request.options.kind == 'UpdateOptions'", "true"),
            ("namespaceObject.metadata.labels['team'] == 'blue'", "true"),
            ("namespaceObject.metadata.creationTimestamp < timestamp('2027-01-01T00:00:00Z')", "true"),
            ("params.max > object.spec.replicas", "true"),
            ("variables.doubled == 6", "true"),
            ("variables.doubled == 6 || variables.broken == 1", "true"),
            (
                "variables.broken == 1",
                "expression 'variables.broken == 1' resulted in error: composited variable \"broken\" fails to evaluate: no such key: nothing",
            ),
            ("authorizer.group('').resource('pods').check('create').allowed()", "true"),
            ("authorizer.requestResource.check('delete').reason() == 'she may'", "true"),
            ("authorizer.serviceAccount('ns', 'robot').path('/healthz').check('get').allowed()", "false"),
            (
                "object.spec.missing == 1",
                "expression 'object.spec.missing == 1' resulted in error: no such key: missing",
            ),
        ] {
            let program = variables.compile(source, ALL, Wants::Bool);
            let scope = Scope::new(&seen, Some(&params), &variables);
            let got = match scope.eval(source, &program, &mut Budget::new(10_000_000)) {
                Ok(value) => value.as_bool().unwrap().to_string(),
                Err(why) => why.to_string(),
            };
            assert_eq!(got, wanted, "{source}");
        }
    }

    #[test]
    fn mistakes_are_told_in_upstreams_words() {
        let no_names = Names { params: false, authorizer: false, patches: false };
        let mut variables = Variables::default();
        variables.add("known", "1", ALL).unwrap();
        for (source, names, wants, wanted) in [
            ("object.x == 1", ALL, Wants::Bool, ""),
            ("'a'", ALL, Wants::Bool, "must evaluate to bool but got string"),
            ("object.x", ALL, Wants::Bool, "must evaluate to bool but got dyn"),
            ("1", ALL, Wants::TextOrNull, "must evaluate to one of [string null] but got int"),
            ("null", ALL, Wants::TextOrNull, ""),
            (
                "params.x == 1",
                no_names,
                Wants::Bool,
                "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^",
            ),
            ("variables.known == 1", ALL, Wants::Bool, ""),
            (
                "variables.unknown == 1",
                ALL,
                Wants::Bool,
                "compilation failed: ERROR: <input>:1:10: undefined field 'unknown'\n | variables.unknown == 1\n | .........^",
            ),
        ] {
            let got = variables.compile(source, names, wants).err().unwrap_or_default();
            assert_eq!(got, wanted, "{source}");
        }
    }

    #[test]
    fn a_long_chain_of_variables_is_no_deep_one() {
        let mut variables = Variables::default();
        variables.add("v0", "1", ALL).unwrap();
        for at in 1..400 {
            variables.add(&format!("v{at}"), &format!("variables.v{} + 1", at - 1), ALL).unwrap();
        }
        let cluster = Cluster::default();
        let request = asked(&cluster, Operation::Create, "v1/pods", "", "ns", "x");
        let matched = Matched { gvr: request.gvr.clone(), gvk: request.gvk.clone() };
        let seen = Seen::new(&request.attributes(), &matched, None, None, None);
        let scope = Scope::new(&seen, None, &variables);
        let program = variables.compile("variables.v399 == 400", ALL, Wants::Bool);
        let got = scope.eval("", &program, &mut Budget::new(10_000_000)).unwrap();
        assert_eq!(got.as_bool(), Some(true));
        let mut little = Budget::new(100);
        let again = Scope::new(&seen, None, &variables);
        assert_eq!(
            again.eval("", &program, &mut little).unwrap_err(),
            Failed::Budget,
            "variables are paid for"
        );
    }
}
