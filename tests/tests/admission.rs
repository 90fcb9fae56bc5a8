//! Webhooks and policies against the real binary: by URL, through a node, and in CEL.
//!
//! Needs root for the part that goes through a node (`cargo xtask packages`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use dev_testkit::{Fleet, Kubectl, Options, WebhookServer, free_port, is_root};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn what_a_clusters_owner_configured_decides() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces: run it as root");
    let port = free_port()?.port();
    let listen = format!("0.0.0.0:{port}").parse()?;
    let names = ["127.0.0.1", "hook.default.svc"];
    let server = WebhookServer::start(listen, &names, answer)?;
    let allowed = format!("127.0.0.1:{port}");
    let env = vec![("ROADSTEAD_EGRESS_ALLOW", allowed.clone())];
    let fleet = Fleet::start(Options { nodes: 1, env, ..Options::default() })?;
    let kubectl = fleet.kubectl();
    fleet.explain(session(&kubectl, &server, &allowed))
}

fn session(kubectl: &Kubectl, server: &WebhookServer, url: &str) -> Result<()> {
    by_url(kubectl, server, url).context("webhooks by URL")?;
    nowhere(kubectl).context("addresses that are not allowed")?;
    policies(kubectl).context("policies")?;
    through_a_node(kubectl, server).context("webhook behind a Service")?;
    Ok(())
}

/// Denies ConfigMaps with `data.bad`, and adds `data.added` where it may.
fn answer(path: &str, review: &Value) -> Value {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    match path {
        "/validate" if request.pointer("/object/data/bad").is_some() => {
            response["allowed"] = false.into();
            response["status"] = json!({"message": "no bad data here", "code": 403, "reason": "Forbidden"});
        }
        "/validate" => response["warnings"] = json!(["looked at"]),
        "/delete" => {
            response["allowed"] = false.into();
            response["status"] =
                json!({"message": format!("{} stays", request["name"].as_str().unwrap_or_default())});
        }
        "/connect" => {
            response["allowed"] = false.into();
            let command = request.pointer("/object/command").cloned().unwrap_or_default();
            response["status"] = json!({"message": format!("not {command}")});
        }
        // There is nothing to patch when something is deleted.
        "/mutate" if request["operation"] != "DELETE" => {
            let patch = json!([{"op": "add", "path": "/data/added", "value": request["operation"]}]);
            let encoded = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
            response["patch"] = encoded.into();
            response["patchType"] = "JSONPatch".into();
        }
        _ => {}
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
}

fn apply(kubectl: &Kubectl, object: &Value) -> Result<String> {
    kubectl.ok_with(&["apply", "-f", "-"], &object.to_string())
}

fn configuration(
    kind: &str,
    name: &str,
    client: Value,
    operation: &str,
    resource: &str,
    more: Value,
) -> Value {
    let mut webhook = json!({
        "name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": client, "timeoutSeconds": 5,
        "rules": [{"operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
    });
    if let (Some(webhook), Some(more)) = (webhook.as_object_mut(), more.as_object()) {
        webhook.extend(more.clone());
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": [webhook]})
}

fn refused(kubectl: &Kubectl, words: &str, wanted: &str) -> Result<()> {
    let ran = kubectl.run(words)?;
    ensure!(!ran.success && ran.stderr.contains(wanted), "`{words}` should say {wanted:?}: {ran:?}");
    Ok(())
}

fn by_url(kubectl: &Kubectl, server: &WebhookServer, url: &str) -> Result<()> {
    let client = |path: &str| json!({"url": format!("https://{url}{path}"), "caBundle": server.ca_base64});
    let (validating, mutating) = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration");
    apply(
        kubectl,
        &configuration(validating, "check", client("/validate"), "CREATE", "configmaps", json!({})),
    )?;
    apply(kubectl, &configuration(mutating, "change", client("/mutate"), "*", "configmaps", json!({})))?;
    refused(
        kubectl,
        "create configmap bad --from-literal=bad=1",
        "admission webhook \"check.example.com\" denied the request: no bad data here",
    )?;
    let made = kubectl.run("create configmap good --from-literal=a=1")?;
    ensure!(made.success && made.stderr.contains("Warning: looked at"), "{made:?}");
    ensure!(kubectl.ok("get configmap good -o jsonpath={.data.added}")? == "CREATE");
    kubectl.ok("label configmap good x=y")?;
    ensure!(kubectl.ok("get configmap good -o jsonpath={.data.added}")? == "UPDATE");
    let asked = server.asked();
    let update =
        asked.iter().find(|(_, review)| review.pointer("/request/operation") == Some(&json!("UPDATE")));
    let (_, review) = update.context("no update was asked about")?;
    for (pointer, wanted) in [
        ("/request/kind/kind", json!("ConfigMap")),
        ("/request/namespace", json!("default")),
        ("/request/name", json!("good")),
        ("/request/dryRun", json!(false)),
        ("/request/oldObject/data/added", json!("CREATE")),
        ("/request/object/metadata/labels/x", json!("y")),
    ] {
        ensure!(review.pointer(pointer) == Some(&wanted), "{pointer}: {review}");
    }
    let groups = review.pointer("/request/userInfo/groups").and_then(Value::as_array).context("no groups")?;
    ensure!(groups.contains(&json!("system:authenticated")), "{review}");

    // Match conditions leave requests out, and a mistake in one is told at once.
    let conditions =
        json!({"matchConditions": [{"name": "not-mine", "expression": "object.metadata.name != 'mine'"}]});
    apply(
        kubectl,
        &configuration(validating, "check", client("/validate"), "CREATE", "configmaps", conditions),
    )?;
    kubectl.ok("create configmap mine --from-literal=bad=1")?;
    let mistake = json!({"matchConditions": [{"name": "x", "expression": "... []bad"}]});
    let wrong = configuration(validating, "wrong", client("/validate"), "CREATE", "configmaps", mistake);
    let ran = kubectl.run_with(&["apply", "-f", "-"], &wrong.to_string())?;
    ensure!(!ran.success && ran.stderr.contains("compilation failed"), "{ran:?}");

    apply(kubectl, &configuration(validating, "keep", client("/delete"), "DELETE", "configmaps", json!({})))?;
    refused(
        kubectl,
        "delete configmap good",
        "admission webhook \"keep.example.com\" denied the request: good stays",
    )?;
    kubectl.ok("delete validatingwebhookconfiguration keep check")?;
    kubectl.ok("delete mutatingwebhookconfiguration change")?;
    kubectl.ok("delete configmap good mine")?;
    Ok(())
}

fn nowhere(kubectl: &Kubectl) -> Result<()> {
    for (url, wanted) in [
        ("https://127.0.0.1:1/x", "dial tcp 127.0.0.1:1: address not allowed"),
        ("https://169.254.169.254/latest", "dial tcp 169.254.169.254:443: address not allowed"),
        ("https://[::ffff:127.0.0.1]/x", "dial tcp 127.0.0.1:443: address not allowed"),
        ("https://10.96.0.1/x", "dial tcp 10.96.0.1:443: address not allowed"),
    ] {
        let hook = configuration(
            "ValidatingWebhookConfiguration",
            "dead",
            json!({"url": url}),
            "CREATE",
            "secrets",
            json!({}),
        );
        apply(kubectl, &hook)?;
        refused(
            kubectl,
            "create secret generic s --from-literal=a=b",
            "failed calling webhook \"dead.example.com\"",
        )?;
        refused(kubectl, "create secret generic s --from-literal=a=b", wanted)?;
        // Nothing that is broken keeps itself from being removed.
        kubectl.ok("delete validatingwebhookconfiguration dead")?;
    }
    kubectl.ok("create secret generic s --from-literal=a=b")?;
    Ok(())
}

fn policies(kubectl: &Kubectl) -> Result<()> {
    let group = "admissionregistration.k8s.io/v1";
    let rules = json!([{"operations": ["CREATE", "UPDATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}]);
    let policy = |kind: &str, name: &str, more: Value| {
        let mut spec = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec})
    };
    let few = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "most", "expression": "int(params.data.most)"}],
        "validations": [{"expression": "object.spec.replicas <= variables.most",
            "messageExpression": "'at most ' + string(variables.most) + ' replicas'"}],
    });
    apply(kubectl, &policy("ValidatingAdmissionPolicy", "few", few))?;
    kubectl.ok("create configmap limits --from-literal=most=2")?;
    let params = json!({"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"});
    let bound = json!({"policyName": "few", "validationActions": ["Deny"], "paramRef": params});
    apply(
        kubectl,
        &json!({"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "few"}, "spec": bound}),
    )?;
    refused(
        kubectl,
        "create deployment many --image=i --replicas=3",
        "ValidatingAdmissionPolicy 'few' with binding 'few' denied request: at most 2 replicas",
    )?;
    kubectl.ok("create deployment some --image=i --replicas=1")?;
    refused(kubectl, "patch deployment some -p {\"spec\":{\"replicas\":5}}", "at most 2 replicas")?;
    // What is wrong with an expression is told to whoever writes it.
    let wrong =
        policy("ValidatingAdmissionPolicy", "wrong", json!({"validations": [{"expression": "object.x =="}]}));
    let ran = kubectl.run_with(&["apply", "-f", "-"], &wrong.to_string())?;
    ensure!(!ran.success && ran.stderr.contains("spec.validations[0].expression"), "{ran:?}");

    let side = "Object{metadata: Object.metadata{labels: {'team': 'blue'}}, spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{labels: {'team': 'blue'}}}}}";
    let change = json!({
        "reinvocationPolicy": "Never",
        "matchConditions": [{"name": "not-ours", "expression": "!has(object.metadata.labels.team)"}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": side}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': 'policy'}}]"}}],
    });
    apply(kubectl, &policy("MutatingAdmissionPolicy", "team", change))?;
    apply(
        kubectl,
        &json!({"apiVersion": group, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "team"}, "spec": {"policyName": "team"}}),
    )?;
    kubectl.ok("create deployment ours --image=i --replicas=1")?;
    let path = "jsonpath={.metadata.labels.team}{.spec.template.metadata.labels.team}{.metadata.annotations.by}{.spec.template.metadata.labels.app}";
    let seen = kubectl.ok(&format!("get deployment ours -o {path}"))?;
    ensure!(seen == "bluebluepolicyours", "{seen}");
    kubectl.ok("delete validatingadmissionpolicy few")?;
    kubectl.ok("delete mutatingadmissionpolicy team")?;
    kubectl.ok("delete deployment some ours")?;
    Ok(())
}

/// A pod that passes bytes on to the server on this machine: the API server reaches it through its node's tunnel,
/// which leads to pods and nowhere else.
fn through_a_node(kubectl: &Kubectl, server: &WebhookServer) -> Result<()> {
    kubectl.until("get nodes", " Ready ", SOON)?;
    let node = kubectl
        .ok("get nodes -o jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}")?;
    let (net, _) = node.rsplit_once('.').context("the node has no IPv4 address")?;
    let relay = format!("while true; do nc -l -p 8443 -e nc {net}.1 {}; done", server.address.port());
    apply(
        kubectl,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "relay", "labels": {"app": "relay"}},
        "spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "roadstead.local/demo:1", "command": ["sh", "-c", relay]}]}}),
    )?;
    apply(
        kubectl,
        &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"selector": {"app": "relay"}, "ports": [{"port": 443, "targetPort": 8443}]}}),
    )?;
    kubectl.until("get endpointslices -l kubernetes.io/service-name=hook", "10.244.", SOON)?;
    let client = |path: &str| json!({"service": {"namespace": "default", "name": "hook", "path": path}, "caBundle": server.ca_base64});
    let kind = "ValidatingWebhookConfiguration";
    apply(kubectl, &configuration(kind, "inside", client("/validate"), "CREATE", "configmaps", json!({})))?;
    refused(
        kubectl,
        "create configmap bad --from-literal=bad=1",
        "admission webhook \"inside.example.com\" denied the request: no bad data here",
    )?;

    // Exec is asked about before a kubelet is.
    apply(kubectl, &configuration(kind, "shell", client("/connect"), "CONNECT", "pods/exec", json!({})))?;
    kubectl.ok("run sleeper --image=roadstead.local/demo:1 --restart=Never -- sleep 600")?;
    kubectl.until("get pod sleeper", "Running", SOON)?;
    refused(
        kubectl,
        "exec sleeper -- ls",
        "admission webhook \"shell.example.com\" denied the request: not [\"ls\"]",
    )?;
    kubectl.ok("delete validatingwebhookconfiguration shell")?;
    kubectl.ok("exec sleeper -- ls")?;
    kubectl.ok("delete pod sleeper --now --wait=false")?;

    // What somebody wrote into an endpoint does not lead back to where the provider is.
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
        "ports": [{"name": "", "port": 8443, "protocol": "TCP"}], "endpoints": [{"addresses": ["127.0.0.1"]}]});
    let ran = kubectl.run_with(&["apply", "-f", "-"], &slice.to_string())?;
    ensure!(!ran.success, "an endpoint on loopback was stored: {ran:?}");
    kubectl.ok("delete pod relay --now")?;
    kubectl.until(
        "get endpointslices -l kubernetes.io/service-name=hook -o jsonpath=[{.items[*].endpoints}]",
        "[]",
        SOON,
    )?;
    refused(kubectl, "create configmap c --from-literal=a=b", "no endpoints available for service \"hook\"")?;
    kubectl.ok("delete validatingwebhookconfiguration inside")?;
    kubectl.ok("create configmap c --from-literal=a=b")?;
    Ok(())
}
