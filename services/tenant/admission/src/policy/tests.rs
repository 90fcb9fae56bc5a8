//! Policies over a request, as tables.

use api_machinery::Document;
use serde_json::{Value, json};

use super::{MutatingPolicies, ValidatingPolicies};
use crate::attributes::Operation;
use crate::chain::{Admission, Chain};
use crate::testing::{Cluster, request};

const GROUP: &str = "admissionregistration.k8s.io/v1";

fn rules(resource: &str) -> Value {
    json!([{"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource]}])
}

fn with(mut base: Value, more: &Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

/// A cluster with a namespace, parameters, one validating policy and its binding.
fn validating(spec: &Value, binding: &Value) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.put("v1/namespaces", json!({"metadata": {"name": "ns", "labels": {"env": "prod"}}}));
    for (name, max) in [("small", 2), ("large", 20)] {
        let labels = json!({"size": name, "all": "yes"});
        cluster.put("v1/configmaps", json!({"metadata": {"name": name, "namespace": "ns", "labels": labels}, "data": {"max": max.to_string()}}));
    }
    let spec = with(
        json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules("deployments")}}),
        spec,
    );
    cluster.put(
        &format!("{GROUP}/validatingadmissionpolicies"),
        json!({"metadata": {"name": "p"}, "spec": spec}),
    );
    let binding = with(json!({"policyName": "p", "validationActions": ["Deny"]}), binding);
    cluster.put(
        &format!("{GROUP}/validatingadmissionpolicybindings"),
        json!({"metadata": {"name": "b"}, "spec": binding}),
    );
    cluster
}

fn deployment(replicas: i64) -> Document {
    Document::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
    }))
    .unwrap()
}

#[tokio::test]
async fn validations_decide_and_say_why() {
    let small = json!({"expression": "object.spec.replicas <= 5"});
    let denied = |why: &str| {
        format!(
            "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {why}"
        )
    };
    let kind = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let by_params = json!({"paramKind": kind, "validations": [{"expression": "object.spec.replicas <= int(params.data.max)", "messageExpression": "'at most ' + params.data.max"}]});
    let param = |reference: Value| json!({"paramRef": reference});
    for (spec, binding, replicas, code, wanted) in [
        (json!({"validations": [small]}), json!({}), 5, 0, String::new()),
        (
            json!({"validations": [small]}),
            json!({}),
            6,
            422,
            denied("failed expression: object.spec.replicas <= 5"),
        ),
        (
            json!({"validations": [with(small.clone(), &json!({"message": "too many"}))]}),
            json!({}),
            6,
            422,
            denied("too many"),
        ),
        (
            json!({"validations": [with(small.clone(), &json!({"reason": "Forbidden", "message": "too many"}))]}),
            json!({}),
            6,
            403,
            denied("too many"),
        ),
        (
            json!({"validations": [with(small.clone(), &json!({"messageExpression": "'got ' + string(object.spec.replicas)", "message": "too many"}))]}),
            json!({}),
            6,
            422,
            denied("got 6"),
        ),
        // A message that is no message is replaced.
        (
            json!({"validations": [with(small.clone(), &json!({"messageExpression": "' '", "message": "too many"}))]}),
            json!({}),
            6,
            422,
            denied("too many"),
        ),
        (
            json!({"validations": [with(small.clone(), &json!({"messageExpression": "'a\\nb'"}))]}),
            json!({}),
            6,
            422,
            denied("failed expression: object.spec.replicas <= 5"),
        ),
        (
            json!({"validations": [with(small.clone(), &json!({"messageExpression": "object.nothing", "message": "too many"}))]}),
            json!({}),
            6,
            422,
            denied("too many"),
        ),
        // What fails is judged by the failure policy.
        (
            json!({"validations": [{"expression": "object.nothing == 1"}]}),
            json!({}),
            1,
            422,
            denied("expression 'object.nothing == 1' resulted in error: no such key: nothing"),
        ),
        (
            json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.nothing == 1"}]}),
            json!({}),
            1,
            0,
            String::new(),
        ),
        // Conditions come before.
        (
            json!({"matchConditions": [{"name": "big", "expression": "object.spec.replicas > 10"}], "validations": [small]}),
            json!({}),
            6,
            0,
            String::new(),
        ),
        (
            json!({"matchConditions": [{"name": "big", "expression": "object.spec.replicas > 10"}], "validations": [small]}),
            json!({}),
            11,
            422,
            denied("failed expression: object.spec.replicas <= 5"),
        ),
        // Variables and the namespace.
        (
            json!({"variables": [{"name": "prod", "expression": "namespaceObject.metadata.labels['env'] == 'prod'"}], "validations": [{"expression": "!variables.prod || object.spec.replicas > 1"}]}),
            json!({}),
            1,
            422,
            denied("failed expression: !variables.prod || object.spec.replicas > 1"),
        ),
        // Bindings narrow.
        (
            json!({"validations": [small]}),
            json!({"matchResources": {"namespaceSelector": {"matchLabels": {"env": "test"}}}}),
            6,
            0,
            String::new(),
        ),
        (
            json!({"validations": [small]}),
            json!({"matchResources": {"namespaceSelector": {"matchLabels": {"env": "prod"}}}}),
            6,
            422,
            denied("failed expression: object.spec.replicas <= 5"),
        ),
        (
            json!({"validations": [small]}),
            json!({"matchResources": {"excludeResourceRules": rules("deployments")}}),
            6,
            0,
            String::new(),
        ),
        (json!({"validations": [small]}), json!({"policyName": "other"}), 6, 0, String::new()),
        // Parameters.
        (
            by_params.clone(),
            param(json!({"name": "small", "parameterNotFoundAction": "Deny"})),
            6,
            422,
            denied("at most 2"),
        ),
        (
            by_params.clone(),
            param(json!({"name": "large", "parameterNotFoundAction": "Deny"})),
            6,
            0,
            String::new(),
        ),
        (
            by_params.clone(),
            param(json!({"name": "gone", "parameterNotFoundAction": "Allow"})),
            6,
            0,
            String::new(),
        ),
        (
            by_params.clone(),
            param(json!({"name": "gone", "parameterNotFoundAction": "Deny"})),
            6,
            422,
            denied(
                "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction",
            ),
        ),
        (
            by_params.clone(),
            param(json!({"selector": {"matchLabels": {"all": "yes"}}, "parameterNotFoundAction": "Deny"})),
            6,
            422,
            denied("at most 2"),
        ),
        (
            by_params.clone(),
            param(json!({"selector": {"matchLabels": {"size": "large"}}, "parameterNotFoundAction": "Deny"})),
            6,
            0,
            String::new(),
        ),
        (
            with(by_params, &json!({"paramKind": {"apiVersion": "no/v1", "kind": "Such"}})),
            param(json!({"name": "x"})),
            6,
            422,
            denied(
                "failed to configure binding: paramKind kind `&ParamKind{APIVersion:no/v1,Kind:Such,}` not known",
            ),
        ),
        // The budget is for all of a policy's expressions together.
        (
            json!({"validations": [{"expression": "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a + b + c + d + e + f > 0))))))"}]}),
            json!({}),
            1,
            422,
            denied(
                "expression '[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a + b + c + d + e + f > 0))))))' resulted in error: operation cancelled: actual cost limit exceeded",
            ),
        ),
    ] {
        let cluster = validating(&spec, &binding);
        let request = request(&cluster, Operation::Create, "apps/v1/deployments", "", "ns", "web");
        let plugin = ValidatingPolicies::default();
        let got = plugin.validate(&request.attributes(), Some(&deployment(replicas)), None).await;
        let got = got.map_or_else(|status| (status.code, status.message), |_| (0, String::new()));
        assert_eq!(got, (code, wanted), "{spec} {binding}");
    }
}

#[tokio::test]
async fn bindings_may_warn_and_note_instead() {
    let spec = json!({"validations": [{"expression": "false", "message": "never"}],
        "auditAnnotations": [{"key": "count", "valueExpression": "string(object.spec.replicas)"}, {"key": "none", "valueExpression": "object.spec.replicas > 1 ? '' : 'one'"}]});
    let cluster = validating(&spec, &json!({"validationActions": ["Warn", "Audit"]}));
    let request = request(&cluster, Operation::Create, "apps/v1/deployments", "", "ns", "web");
    let plugin = ValidatingPolicies::default();
    plugin.validate(&request.attributes(), Some(&deployment(3)), None).await.unwrap();
    assert_eq!(
        request.warnings.take(),
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': never"]
    );
    let notes = request.annotations.take();
    assert_eq!(notes.get("p/count").map(String::as_str), Some("3"));
    assert!(!notes.contains_key("p/none"));
    let failure: Value =
        serde_json::from_str(&notes["validation.policy.admission.k8s.io/validation_failure"]).unwrap();
    let wanted = json!([{"message": "never", "policy": "p", "binding": "b", "expressionIndex": 0, "validationActions": ["Warn", "Audit"]}]);
    assert_eq!(failure, wanted);
}

/// A cluster with policies `(name, mutations and more)`, each bound.
fn mutating(policies: &[(&str, Value)]) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.put("v1/namespaces", json!({"metadata": {"name": "ns"}}));
    for (name, spec) in policies {
        let spec = with(
            json!({"failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": {"resourceRules": rules("deployments")}}),
            spec,
        );
        cluster.put(
            &format!("{GROUP}/mutatingadmissionpolicies"),
            json!({"metadata": {"name": name}, "spec": spec}),
        );
        cluster.put(
            &format!("{GROUP}/mutatingadmissionpolicybindings"),
            json!({"metadata": {"name": name}, "spec": {"policyName": name}}),
        );
    }
    cluster
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}
fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

#[tokio::test]
async fn mutations_change_what_they_say() {
    let one = |mutation: Value| vec![("p", json!({"mutations": [mutation]}))];
    let denied = |why: &str| format!("policy 'p' with binding 'p' denied request: {why}");
    for (policies, pointer, wanted) in [
        (
            one(apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}")),
            "/spec/replicas",
            Ok(json!(4)),
        ),
        (
            one(apply("Object{metadata: Object.metadata{labels: {'team': 'blue'}}}")),
            "/metadata/labels",
            Ok(json!({"app": "web", "team": "blue"})),
        ),
        // A list by its keys: another container comes to those that are there.
        (
            one(apply(
                "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'side', image: 's'}]}}}}",
            )),
            "/spec/template/spec/containers/1/name",
            Ok(json!("side")),
        ),
        // An atomic one would lose what is not repeated.
        (
            one(apply(
                "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'c', args: ['a']}]}}}}",
            )),
            "",
            Err(denied(
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].args",
            )),
        ),
        (
            one(apply("Object{spec: Object.wrong{replicas: 1}}")),
            "",
            Err(denied(
                "type mismatch: unexpected type name \"Object.wrong\", expected \"Object.spec\", which matches field name path from root Object type",
            )),
        ),
        (
            one(patch("[JSONPatch{op: 'replace', path: '/spec/replicas', value: 7}]")),
            "/spec/replicas",
            Ok(json!(7)),
        ),
        (
            one(patch(
                "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'c'}]",
            )),
            "/metadata/labels/a~1b",
            Ok(json!("c")),
        ),
        (
            one(patch(
                "[JSONPatch{op: 'add', path: '/spec/strategy', value: Object.spec.strategy{type: 'Recreate'}}]",
            )),
            "/spec/strategy/type",
            Ok(json!("Recreate")),
        ),
        // A test that fails changes nothing, and is no failure.
        (
            one(patch(
                "[JSONPatch{op: 'test', path: '/spec/replicas', value: 9}, JSONPatch{op: 'replace', path: '/spec/replicas', value: 7}]",
            )),
            "/spec/replicas",
            Ok(json!(3)),
        ),
        (
            one(patch("[JSONPatch{op: 'remove', path: '/nothing'}]")),
            "",
            Err(denied(
                "JSON Patch: remove operation does not apply: doc is missing path: \"/nothing\": missing value",
            )),
        ),
        (
            one(patch("[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.nothing}]")),
            "",
            Err(denied(
                "expression '[JSONPatch{op: 'replace', path: '/spec/replicas', value: object.nothing}]' resulted in error: no such key: nothing",
            )),
        ),
        (
            vec![(
                "p",
                json!({"failurePolicy": "Ignore", "mutations": [patch("[JSONPatch{op: 'remove', path: '/nothing'}]")]}),
            )],
            "/spec/replicas",
            Ok(json!(3)),
        ),
        // Several mutations, several policies: each sees what was made before it, in the order of names.
        (
            vec![(
                "p",
                json!({"mutations": [apply("Object{spec: Object.spec{replicas: object.spec.replicas * 2}}"), apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}")]}),
            )],
            "/spec/replicas",
            Ok(json!(7)),
        ),
        (
            vec![
                (
                    "b",
                    json!({"mutations": [apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}")]}),
                ),
                (
                    "a",
                    json!({"mutations": [apply("Object{spec: Object.spec{replicas: object.spec.replicas * 2}}")]}),
                ),
            ],
            "/spec/replicas",
            Ok(json!(7)),
        ),
        (
            vec![(
                "p",
                json!({"variables": [{"name": "more", "expression": "object.spec.replicas + 5"}], "matchConditions": [{"name": "few", "expression": "object.spec.replicas < 10"}],
                "mutations": [apply("Object{spec: Object.spec{replicas: variables.more}}")]}),
            )],
            "/spec/replicas",
            Ok(json!(8)),
        ),
        // One that asks to be repeated sees what a later one made.
        (
            vec![
                (
                    "a",
                    json!({"reinvocationPolicy": "IfNeeded", "mutations": [apply("has(object.metadata.labels.late) ? Object{metadata: Object.metadata{labels: {'seen': 'yes'}}} : Object{}")]}),
                ),
                (
                    "b",
                    json!({"mutations": [apply("Object{metadata: Object.metadata{labels: {'late': 'yes'}}}")]}),
                ),
            ],
            "/metadata/labels",
            Ok(json!({"app": "web", "late": "yes", "seen": "yes"})),
        ),
    ] {
        let cluster = mutating(&policies);
        let request = request(&cluster, Operation::Create, "apps/v1/deployments", "", "ns", "web");
        let chain = Chain::new(vec![std::sync::Arc::new(MutatingPolicies::default())]);
        let mut object = deployment(3);
        let got = chain.admit(&request.attributes(), Some(&mut object), None).await;
        let got = got
            .map(|()| object.pointer(pointer).cloned().unwrap_or_default())
            .map_err(|status| status.message);
        assert_eq!(got, wanted, "{policies:?}");
    }
}
