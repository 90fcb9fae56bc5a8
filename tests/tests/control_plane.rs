//! One fleet without nodes: what kubectl and the CLI do with control planes alone.
//!
//! One test with sections, since they share the fleet; each section cleans up after itself.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dev_testkit::{ApiClient, Fleet, Kubeconfig, Kubectl, Options};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn control_planes_serve_kubectl_and_the_cli() -> Result<()> {
    let mut fleet = Fleet::start(Options::default())?;
    readiness(&fleet).context("readiness")?;
    objects(&fleet.kubectl()).context("objects")?;
    apply_and_patch(&fleet.kubectl()).context("apply and patch")?;
    discovery(&fleet.kubectl()).context("discovery")?;
    namespaces_empty_themselves(&fleet.kubectl()).context("namespaces")?;
    controllers(&fleet.kubectl()).context("controllers")?;
    access(&fleet).context("access")?;
    bad_input(&fleet).context("bad input")?;
    the_cli(&fleet).context("the CLI")?;
    the_wall(&fleet).context("the wall between clusters")?;
    everything_is_there_after_a_restart(&mut fleet).context("restart")?;
    Ok(())
}

fn readiness(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    ensure!(kubectl.ok("get --raw /livez")? == "ok");
    ensure!(kubectl.ok("get --raw /healthz")? == "ok");
    let verbose = kubectl.ok("get --raw /readyz?verbose")?;
    ensure!(verbose.contains("[+]raft ok") && verbose.contains("readyz check passed"), "{verbose}");
    let version: Value = serde_json::from_str(&kubectl.ok("get --raw /version")?)?;
    ensure!(version["gitVersion"].as_str().is_some_and(|v| v.starts_with("v1.36.")), "{version}");
    ensure!(kubectl.ok("get --raw /metrics")?.contains("apiserver_request_total"));
    Ok(())
}

fn objects(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("create configmap settings --from-literal=colour=blue")?;
    ensure!(kubectl.ok("get configmap settings -o jsonpath={.data.colour}")? == "blue");
    let again = kubectl.run("create configmap settings")?;
    ensure!(again.stderr.contains("configmaps \"settings\" already exists"), "{}", again.stderr);
    kubectl.ok("label configmap settings tier=front")?;
    kubectl.ok("annotate configmap settings note=hello")?;
    ensure!(kubectl.ok("get configmap -l tier=front -o name")?.trim() == "configmap/settings");
    let table = kubectl.ok("get configmap settings")?;
    ensure!(table.starts_with("NAME") && table.contains("DATA"), "{table}");
    kubectl.ok("create secret generic key --from-literal=a=b")?;
    ensure!(kubectl.ok("get secret key -o jsonpath={.data.a}")? == "Yg==");
    kubectl.ok("delete configmap/settings secret/key")?;
    let gone = kubectl.run("get configmap settings")?;
    ensure!(gone.stderr.contains("configmaps \"settings\" not found"), "{}", gone.stderr);
    Ok(())
}

fn apply_and_patch(kubectl: &Kubectl) -> Result<()> {
    let manifest = |colour: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: applied\ndata:\n  colour: {colour}\n  kept: yes-it-is\n"
        )
    };
    ensure!(kubectl.ok_with(&["apply", "-f", "-"], &manifest("red"))?.contains("created"));
    ensure!(kubectl.ok_with(&["apply", "-f", "-"], &manifest("red"))?.contains("unchanged"));
    let diff = kubectl.run_with(&["diff", "-f", "-"], &manifest("green"))?;
    ensure!(diff.stdout.contains("-  colour: red") && diff.stdout.contains("+  colour: green"), "{diff:?}");
    ensure!(kubectl.ok_with(&["apply", "-f", "-"], &manifest("green"))?.contains("configured"));
    for (kind, patch, wanted) in [
        ("merge", r#"{"data":{"colour":"one"}}"#, "one"),
        ("json", r#"[{"op":"replace","path":"/data/colour","value":"two"}]"#, "two"),
        ("strategic", r#"{"data":{"colour":"three"}}"#, "three"),
    ] {
        kubectl.ok_with(&["patch", "configmap", "applied", "--type", kind, "-p", patch], "")?;
        let got = kubectl.ok("get configmap applied -o jsonpath={.data.colour}")?;
        ensure!(got == wanted, "{kind}: {got}");
    }
    ensure!(kubectl.ok("get configmap applied -o jsonpath={.data.kept}")? == "yes-it-is");
    let unknown = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: applied\nspecc: {}\n";
    let refused = kubectl.run_with(&["apply", "-f", "-"], unknown)?;
    ensure!(refused.stderr.contains("unknown field \"specc\""), "{}", refused.stderr);
    kubectl.ok("delete configmap applied")?;
    Ok(())
}

fn discovery(kubectl: &Kubectl) -> Result<()> {
    let resources = kubectl.ok("api-resources")?;
    for wanted in [
        "deployments                         deploy",
        "pods                                po",
        "leases",
        "validatingadmissionpolicies",
        "resourceclaims",
        "customresourcedefinitions           crd,crds",
    ] {
        ensure!(resources.contains(wanted), "{wanted:?} is missing from:\n{resources}");
    }
    let explained = kubectl.ok("explain pod.spec.containers.image")?;
    ensure!(explained.contains("FIELD: image <string>"), "{explained}");
    ensure!(explained.contains("Container image name"), "{explained}");
    ensure!(kubectl.ok("explain deployment.spec.strategy")?.contains("rollingUpdate"));
    Ok(())
}

fn namespaces_empty_themselves(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("create namespace short-lived")?;
    kubectl.until("-n short-lived get serviceaccount", "default", SOON)?;
    kubectl.until("-n short-lived get configmap", "kube-root-ca.crt", SOON)?;
    kubectl.ok("-n short-lived create configmap inside")?;
    kubectl.ok("delete namespace short-lived --timeout=60s")?;
    ensure!(!kubectl.run("get namespace short-lived")?.success);
    Ok(())
}

/// No node, so pods stay Pending; everything above them works.
fn controllers(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("create deployment web --image=roadstead.local/demo:1 --replicas=3")?;
    kubectl.until("get replicaset -l app=web -o jsonpath={.items[*].status.replicas}", "3", SOON)?;
    kubectl.until("get pods -l app=web", "Pending", SOON)?;
    let described = kubectl.until("describe pods -l app=web", "FailedScheduling", SOON)?;
    ensure!(described.contains("no nodes available to schedule pods"), "{described}");
    kubectl.ok("scale deployment web --replicas=1")?;
    kubectl.until("get deployment web -o jsonpath={.status.replicas}", "1", SOON)?;
    kubectl.ok("set image deployment/web demo=roadstead.local/demo:2")?;
    kubectl.until("rollout history deployment/web", "2", SOON)?;
    kubectl.ok("rollout undo deployment/web")?;
    kubectl.until(
        "get deployment web -o jsonpath={.spec.template.spec.containers[0].image}",
        "demo:1",
        SOON,
    )?;
    kubectl.ok("expose deployment web --port=80 --target-port=8080")?;
    ensure!(kubectl.ok("get service web -o jsonpath={.spec.clusterIP}")?.starts_with("10.96."));
    kubectl.until("get endpointslices -l kubernetes.io/service-name=web", "web-", SOON)?;
    kubectl.ok("delete service/web deployment/web")?;
    kubectl.until("get pods -l app=web --no-headers --ignore-not-found -o name", "", SOON)?;
    let deadline = std::time::Instant::now() + SOON;
    while !kubectl.ok("get replicasets,pods -l app=web -o name")?.trim().is_empty() {
        ensure!(std::time::Instant::now() < deadline, "the garbage collector left something");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn access(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    ensure!(kubectl.ok("auth can-i delete nodes")?.trim() == "yes");
    kubectl.ok("create serviceaccount robot")?;
    let token = kubectl.ok("create token robot")?.trim().to_owned();
    // Not through kubectl: the kubeconfig's client certificate would win over the token.
    let config = fleet.kubeconfig()?;
    let api = ApiClient::anonymous(&config)?;
    let runtime = runtime()?;
    let list = |path: &str| {
        let request = api.request(reqwest::Method::GET, path).bearer_auth(&token);
        runtime.block_on(async { Ok::<_, anyhow::Error>(request.send().await?.json::<Value>().await?) })
    };
    let denied = list("/api/v1/namespaces/default/pods")?;
    ensure!(
        denied["message"]
            == "pods is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"",
        "{denied}"
    );
    kubectl.ok("create role reader --verb=get,list --resource=pods")?;
    kubectl.ok("create rolebinding reads --role=reader --serviceaccount=default:robot")?;
    ensure!(list("/api/v1/namespaces/default/pods")?["kind"] == "PodList");
    ensure!(list("/api/v1/namespaces/kube-system/pods")?["code"] == 403);
    kubectl.ok("delete rolebinding/reads role/reader serviceaccount/robot")?;
    ensure!(list("/api/v1/namespaces/default/pods")?["code"] == 401, "its ServiceAccount is gone");
    Ok(())
}

/// Rows: what is sent, and the code, reason and message of the Status that comes back.
fn bad_input(fleet: &Fleet) -> Result<()> {
    let config = fleet.kubeconfig()?;
    let api = ApiClient::new(&config)?;
    let runtime = runtime()?;
    let maps = "/api/v1/namespaces/default/configmaps";
    let json = "application/json";
    let oversized = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"big"}},"data":{{"x":"{}"}}}}"#,
        "x".repeat(4 << 20)
    );
    let rows: [(&str, &str, &str, &str, u64, &str, &str); 9] = [
        ("POST", maps, json, "{", 400, "BadRequest", ""),
        ("POST", maps, json, &oversized, 413, "RequestEntityTooLarge", ""),
        (
            "POST",
            maps,
            "text/csv",
            "a,b",
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/gadgets",
            json,
            "",
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps/none",
            json,
            "",
            404,
            "NotFound",
            "configmaps \"none\" not found",
        ),
        (
            "POST",
            maps,
            json,
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}"#,
            400,
            "BadRequest",
            "",
        ),
        (
            "POST",
            maps,
            json,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"No Such Name"}}"#,
            422,
            "Invalid",
            "ConfigMap \"No Such Name\" is invalid: metadata.name: Invalid value",
        ),
        (
            "PUT",
            "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
            json,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kube-root-ca.crt","resourceVersion":"1"}}"#,
            409,
            "Conflict",
            "Operation cannot be fulfilled on configmaps \"kube-root-ca.crt\": the object has been modified",
        ),
        ("DELETE", "/api/v1/nodes/none", json, "", 404, "NotFound", "nodes \"none\" not found"),
    ];
    for (method, path, content_type, body, code, reason, message) in rows {
        let shown = format!("{method} {path} {:.60}", body);
        let request =
            api.request(method.parse()?, path).header("content-type", content_type).body(body.to_owned());
        let status: Value =
            runtime.block_on(async { request.send().await?.json().await }).with_context(|| shown.clone())?;
        ensure!(
            status["kind"] == "Status" && status["code"] == code && status["reason"] == reason,
            "{shown}: {status}"
        );
        ensure!(
            status["message"].as_str().is_some_and(|text| text.starts_with(message)),
            "{shown}: {status}"
        );
    }
    let stranger = ApiClient::anonymous(&config)?;
    let (code, status) = runtime.block_on(stranger.call(reqwest::Method::GET, maps, None))?;
    ensure!(code == 403, "{status}");
    ensure!(status["message"].as_str().is_some_and(|text| text.contains("system:anonymous")), "{status}");
    let request = stranger.request(reqwest::Method::GET, maps).bearer_auth("nonsense");
    let code = runtime.block_on(async { request.send().await })?.status();
    ensure!(code == 401, "{code}");
    Ok(())
}

fn the_cli(fleet: &Fleet) -> Result<()> {
    let made = fleet.roadstead(&["cluster", "create", "acme", "--org", "demo"])?;
    ensure!(made.contains("acme") && made.contains("ready"), "{made}");
    let kubeconfig = fleet.roadstead(&["cluster", "kubeconfig", "acme"])?;
    let path = fleet.data().join("acme.kubeconfig");
    std::fs::write(&path, kubeconfig)?;
    let kubectl = Kubectl::new(&path);
    kubectl.ok("create configmap first")?;
    let listed = fleet.roadstead(&["cluster", "list"])?;
    ensure!(listed.contains("acme") && listed.contains("demo"), "{listed}");
    let json: Value = serde_json::from_str(&fleet.roadstead(&["cluster", "list", "-o", "json"])?)?;
    ensure!(json["items"].as_array().is_some_and(|items| items.len() == 2), "{json}");
    for (words, wanted) in [
        (vec!["cluster", "create", "acme"], "has a cluster named acme"),
        (vec!["cluster", "get", "none"], "there is no such cluster"),
        (vec!["cluster", "list", "--org", "strangers"], "there is no such organization"),
        (vec!["org", "delete", "demo"], "still has clusters"),
    ] {
        let error = fleet.roadstead(&words).unwrap_err().to_string();
        ensure!(error.contains(wanted), "{words:?}: {error}");
    }
    fleet.roadstead(&["cluster", "delete", "acme"])?;
    ensure!(!kubectl.run("get configmap first")?.success, "a deleted cluster answers");
    ensure!(!fleet.roadstead(&["cluster", "list"])?.contains("acme"));
    Ok(())
}

/// Credentials of one cluster are worth nothing at another, whoever signed them.
fn the_wall(fleet: &Fleet) -> Result<()> {
    fleet.roadstead(&["org", "create", "red"])?;
    fleet.roadstead(&["cluster", "create", "red", "--org", "red"])?;
    let red = Kubeconfig::parse(&fleet.roadstead(&["cluster", "kubeconfig", "red", "--org", "red"])?)?;
    let blue = fleet.kubeconfig()?;
    let runtime = runtime()?;

    // Red's certificate at blue's door: TLS itself refuses it.
    let mixed = Kubeconfig { cert_pem: red.cert_pem.clone(), key_pem: red.key_pem.clone(), ..blue.clone() };
    let answer =
        runtime.block_on(ApiClient::new(&mixed)?.call(reqwest::Method::GET, "/api/v1/namespaces", None));
    ensure!(answer.is_err(), "blue took red's certificate: {answer:?}");

    // A token of red's ServiceAccount at blue's door.
    let path = fleet.data().join("red.kubeconfig");
    std::fs::write(&path, fleet.roadstead(&["cluster", "kubeconfig", "red", "--org", "red"])?)?;
    let token = Kubectl::new(&path).ok("-n kube-system create token default")?;
    let request = ApiClient::anonymous(&blue)?
        .request(reqwest::Method::GET, "/api/v1/namespaces")
        .bearer_auth(token.trim());
    let code = runtime.block_on(async { request.send().await })?.status();
    ensure!(code == 401, "blue took red's token: {code}");

    // An organisation's token sees that organisation and nothing else.
    let secret = fleet.roadstead(&["token", "create", "test", "--role", "admin", "--org", "red"])?;
    let file = fleet.data().join("red.token");
    std::fs::write(&file, secret)?;
    let as_red = |words: &[&str]| {
        let file = file.display().to_string();
        fleet.roadstead(&[words, &["--token-file", &file]].concat())
    };
    ensure!(as_red(&["cluster", "list", "--org", "red"])?.contains("red"));
    ensure!(!as_red(&["org", "list"])?.contains("demo"));
    for words in [
        vec!["cluster", "list", "--org", "demo"],
        vec!["cluster", "kubeconfig", "demo", "--org", "demo"],
        vec!["cluster", "delete", "demo", "--org", "demo"],
        vec!["org", "create", "mine"],
    ] {
        let error = as_red(&words).unwrap_err().to_string();
        ensure!(error.contains("Not found"), "{words:?}: {error}");
    }
    fleet.roadstead(&["cluster", "delete", "red", "--org", "red"])?;
    fleet.roadstead(&["org", "delete", "red"])?;
    Ok(())
}

fn everything_is_there_after_a_restart(fleet: &mut Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    kubectl.ok("create configmap survivor --from-literal=a=b")?;
    let before: Value = serde_json::from_str(&kubectl.ok("get configmap survivor -o json")?)?;
    fleet.stop()?;
    fleet.start_again()?;
    let after: Value = serde_json::from_str(&kubectl.ok("get configmap survivor -o json")?)?;
    ensure!(before == after, "{before} became {after}");
    fleet.kill()?;
    fleet.start_again()?;
    let after: Value = serde_json::from_str(&kubectl.ok("get configmap survivor -o json")?)?;
    ensure!(before == after, "{before} became {after} after kill -9");
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

#[test]
fn a_busy_port_and_a_busy_folder_are_named() -> Result<()> {
    let fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    let same_folder = fleet.command("up").args(["--nodes", "0"]).output()?;
    let error = String::from_utf8_lossy(&same_folder.stderr).into_owned();
    ensure!(error.contains("is in use by process"), "{error}");
    ensure!(error.trim().lines().count() == 1, "more than one line: {error}");

    let other = fleet.data().join("other");
    let same_port = fleet
        .bare_command("up")
        .args(["--nodes", "0", "--manager", &fleet.manager.to_string(), "--data"])
        .arg(&other)
        .output()?;
    let error = String::from_utf8_lossy(&same_port.stderr).into_owned();
    ensure!(error.contains("cannot listen on") && error.contains("is another manager running?"), "{error}");
    ensure!(error.trim().lines().count() == 1, "more than one line: {error}");
    Ok(())
}
