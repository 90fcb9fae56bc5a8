//! The life of clusters over REST: the live stream, the proxy, keyed requests, and sudden deaths.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base_ids::Slug;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dev_testkit::{ApiClient, Fleet, Kubeconfig, Options, is_root};
use fleet_client::{Client, ClientError};
use fleet_model::{
    Cluster, ClusterState, CreateCluster, CreateJoinToken, CreateNodePool, CreateToken, Event, NodePoolState,
    OperationState, Role, UpdateNodePool,
};
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn slug(text: &str) -> Slug {
    text.parse().unwrap()
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

#[test]
fn pages_stay_live_and_reach_into_clusters() -> Result<()> {
    let fleet = Fleet::start(Options::default())?;
    let outcome = runtime()?.block_on(async {
        the_stream_tells_everything(&fleet).await?;
        the_proxy_speaks_for_people(&fleet).await?;
        a_key_makes_one_of_everything(&fleet).await
    });
    fleet.explain(outcome)
}

async fn the_stream_tells_everything(fleet: &Fleet) -> Result<()> {
    let (client, demo) = (fleet.client()?, slug("demo"));
    let mut events = Box::pin(client.events(&demo).await?);
    let mut before = Vec::new();
    loop {
        match next(&mut events).await? {
            Event::Synced => break,
            event => before.push(event),
        }
    }
    let demo_is_there =
        |event: &Event| matches!(event, Event::Cluster(cluster) if cluster.name.as_str() == "demo");
    ensure!(before.iter().any(demo_is_there), "{before:?}");

    // A stream shows what is, not every moment in between: each step is waited for before the next.
    let made = client.create_cluster(&demo, &CreateCluster::named(slug("live"))).await?;
    seen(&mut events, "ready", |event| {
        matches!(event, Event::Cluster(cluster) if cluster.id == made.id && cluster.state == ClusterState::Ready)
    })
    .await?;
    let operation = client.delete_cluster(&demo, made.id).await?;
    let (mut finished, mut gone) = (false, false);
    seen(&mut events, "deleted", |event| {
        match event {
            Event::Operation(seen) if seen.id == operation.id => {
                finished |= seen.state == OperationState::Succeeded;
            }
            Event::Deleted(what) => gone |= what.kind == "cluster" && what.id == made.id.to_string(),
            _ => {}
        }
        finished && gone
    })
    .await?;
    let nobody = Client::new(client.server(), &ca(fleet)?, "rs_0_0")?;
    ensure!(nobody.events(&demo).await.err().and_then(|error| error.status()) == Some(401));
    ensure!(client.events(&slug("nosuch")).await.err().and_then(|error| error.status()) == Some(404));
    Ok(())
}

/// Reads on until `is_it` holds for an event.
async fn seen(
    events: &mut (impl futures::Stream<Item = Result<Event, fleet_client::events::EventsError>> + Unpin),
    what: &str,
    mut is_it: impl FnMut(&Event) -> bool,
) -> Result<()> {
    let mut heard = Vec::new();
    loop {
        let event = next(events).await.with_context(|| format!("{what} was not told; heard: {heard:?}"))?;
        if is_it(&event) {
            return Ok(());
        }
        heard.push(event);
    }
}

async fn next(
    events: &mut (impl futures::Stream<Item = Result<Event, fleet_client::events::EventsError>> + Unpin),
) -> Result<Event> {
    let event = tokio::time::timeout(PATIENCE, events.next()).await.context("the stream is silent")?;
    Ok(event.context("the stream ended")??)
}

fn ca(fleet: &Fleet) -> Result<String> {
    Ok(std::fs::read_to_string(fleet.data().join("fleet-ca.pem"))?)
}

/// Plain requests to the manager.
struct Plain {
    http: reqwest::Client,
    base: String,
}

impl Plain {
    fn new(fleet: &Fleet) -> Result<Plain> {
        let http = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(ca(fleet)?.as_bytes())?])
            .build()?;
        Ok(Plain { http, base: format!("https://{}/api/v1/organizations/demo", fleet.manager) })
    }
    fn request(&self, method: Method, path: &str, token: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(token.trim())
    }
}

async fn the_proxy_speaks_for_people(fleet: &Fleet) -> Result<()> {
    let (client, plain) = (fleet.client()?, Plain::new(fleet)?);
    let admin = std::fs::read_to_string(fleet.data().join("admin.token"))?;
    let request = |role| CreateToken {
        description: "proxy".to_owned(),
        role,
        organization: Some(slug("demo")),
        cluster: None,
        expires_in_seconds: None,
    };
    let viewer = client.create_token(&request(Role::Viewer)).await?.secret;
    let maps = "/clusters/demo/proxy/api/v1/namespaces/default/configmaps";

    // Who they are in the cluster, and that nothing by which they were let in goes on.
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/clusters/demo/proxy/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = plain
        .request(Method::POST, path, &admin)
        .header("impersonate-user", "system:admin")
        .header("x-remote-user", "system:admin")
        .header("cookie", "a=b")
        .json(&review)
        .send()
        .await?;
    ensure!(answer.status() == StatusCode::CREATED, "{}", answer.text().await?);
    let me: Value = answer.json().await?;
    let name = me["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned();
    ensure!(name.starts_with("token:"), "{me}");
    ensure!(me["status"]["userInfo"]["groups"].to_string().contains("system:masters"), "{me}");

    // A watch comes as it happens.
    let list: Value = plain.request(Method::GET, maps, &admin).send().await?.json().await?;
    let revision = list["metadata"]["resourceVersion"].as_str().context("no revision")?.to_owned();
    let mut watch = plain
        .request(Method::GET, &format!("{maps}?watch=true&resourceVersion={revision}"), &viewer)
        .send()
        .await?;
    ensure!(watch.status() == StatusCode::OK);
    for (header, wanted) in [("content-security-policy", "sandbox"), ("x-content-type-options", "nosniff")] {
        let value = watch.headers().get(header).and_then(|value| value.to_str().ok()).unwrap_or_default();
        ensure!(value.contains(wanted), "{header}: {value:?}");
    }
    for number in 0..3 {
        let map = json!({"metadata": {"name": format!("watched-{number}")}});
        let made = plain.request(Method::POST, maps, &admin).json(&map).send().await?;
        ensure!(made.status() == StatusCode::CREATED, "{}", made.text().await?);
        let chunk = tokio::time::timeout(PATIENCE, watch.chunk()).await.context("the watch is silent")??;
        let text = String::from_utf8(chunk.context("the watch ended")?.to_vec())?;
        ensure!(text.contains(&format!("watched-{number}")), "{text}");
    }
    drop(watch);

    // A viewer reads, and hears Kubernetes' own refusal.
    let map = json!({"metadata": {"name": "not-by-a-viewer"}});
    let refused = plain.request(Method::POST, maps, &viewer).json(&map).send().await?;
    ensure!(refused.status() == StatusCode::FORBIDDEN);
    let status: Value = refused.json().await?;
    ensure!(status["kind"] == "Status" && status["reason"] == "Forbidden", "{status}");
    let secrets = "/clusters/demo/proxy/api/v1/namespaces/kube-system/secrets";
    ensure!(plain.request(Method::GET, secrets, &viewer).send().await?.status() == StatusCode::FORBIDDEN);

    // More than a request body of the manager's own may have, there and back.
    let big = json!({"metadata": {"name": "big"}, "data": {"text": "x".repeat(300_000)}});
    let made = plain.request(Method::POST, maps, &admin).json(&big).send().await?;
    ensure!(made.status() == StatusCode::CREATED, "{}", made.status());
    let back = plain.request(Method::GET, &format!("{maps}/big"), &admin).send().await?.text().await?;
    ensure!(back.len() > 300_000);

    for (path, token, wanted) in [
        ("/clusters/nosuch/proxy/api", admin.as_str(), 404),
        ("/clusters/demo/proxy/api", "rs_0_0", 401),
        ("/clusters/demo/proxy/nosuch", &admin, 404),
    ] {
        let code = plain.request(Method::GET, path, token).send().await?.status().as_u16();
        ensure!(code == wanted, "{path}: {code}");
    }
    Ok(())
}

async fn a_key_makes_one_of_everything(fleet: &Fleet) -> Result<()> {
    let (client, demo) = (fleet.client()?, slug("demo"));
    let request = CreateCluster::named(slug("keyed"));
    let keyed = client.with_key("the-one-key")?;
    let (first, second) =
        tokio::join!(keyed.create_cluster(&demo, &request), keyed.create_cluster(&demo, &request));
    let first = first?;
    // The second may have been told to ask again while the first one ran.
    let second = match second {
        Err(ClientError::Problem(problem)) if problem.status == 409 => {
            keyed.create_cluster(&demo, &request).await?
        }
        other => other?,
    };
    ensure!(first.id == second.id, "{first:?} {second:?}");
    let other = keyed.create_cluster(&demo, &CreateCluster::named(slug("other"))).await;
    ensure!(other.as_ref().err().and_then(ClientError::status) == Some(422), "{other:?}");
    let without = client.create_cluster(&demo, &request).await;
    ensure!(without.as_ref().err().and_then(ClientError::status) == Some(409), "{without:?}");
    let operation = client.delete_cluster(&demo, first.id).await?;
    client.finished(&demo, operation.id, PATIENCE, |_| {}).await?;
    Ok(())
}

/// Machines for real: a pool, a pod on it, its log followed through the proxy, and a receipt that names it all.
#[test]
fn a_pool_s_machines_come_and_go() -> Result<()> {
    if !is_root() {
        println!("machines are made of namespaces, which takes root");
        return Ok(());
    }
    let fleet = Fleet::start(Options::default())?;
    let outcome = runtime()?.block_on(async {
        let (client, demo, plain) = (fleet.client()?, slug("demo"), Plain::new(&fleet)?);
        let admin = std::fs::read_to_string(fleet.data().join("admin.token"))?;
        let begun = Instant::now();
        let request: CreateNodePool =
            serde_json::from_value(json!({"name": "workers", "size": 1, "labels": {"tier": "w"}}))?;
        let pool = client.create_node_pool(&demo, &demo, &request).await?;
        finish(&client, pool.operation).await?;
        let pool = client.node_pool(&demo, &demo, pool.id).await?;
        println!("pool machine to Ready: {} ms", begun.elapsed().as_millis());
        ensure!(pool.state == NodePoolState::Ready && pool.ready == 1, "{pool:?}");
        let machine = pool.machines.first().context("no machine")?;
        let node: Value = plain
            .request(Method::GET, &format!("/clusters/demo/proxy/api/v1/nodes/{}", machine.name), &admin)
            .send()
            .await?
            .json()
            .await?;
        ensure!(node["metadata"]["labels"]["tier"] == "w", "{node}");
        // Nothing is started on a disk that is almost full, and waiting does not help.
        let taints = node["spec"]["taints"].to_string();
        ensure!(
            !taints.contains("disk-pressure"),
            "this machine's disk is almost full; make room and try again"
        );

        follow_a_log(&plain, &admin).await.context("log")?;

        let change = UpdateNodePool { size: Some(0), ..UpdateNodePool::default() };
        let pool = client.update_node_pool(&demo, &demo, pool.id, &change).await?;
        finish(&client, pool.operation).await?;
        ensure!(client.node_pool(&demo, &demo, pool.id).await?.machines.is_empty());

        // Another one, so that the cluster's end has something to drain.
        let change = UpdateNodePool { size: Some(1), ..UpdateNodePool::default() };
        let pool = client.update_node_pool(&demo, &demo, pool.id, &change).await?;
        finish(&client, pool.operation).await?;
        let cluster = client.cluster(&demo, &demo).await?;
        let operation = client.delete_cluster(&demo, cluster.id).await?;
        finish(&client, Some(operation.id)).await?;
        let receipt = client.receipt(&demo, cluster.id).await?;
        let machines = receipt.resources.iter().filter(|one| one.kind == "machine").count();
        ensure!(machines == 2, "{receipt:?}");
        ensure!(receipt.resources.iter().all(|one| one.created_at <= one.deleted_at), "{receipt:?}");
        anyhow::Ok(())
    });
    fleet.explain(outcome)
}

async fn finish(client: &Client, operation: Option<base_ids::OperationId>) -> Result<()> {
    // One that has ended by the time it is looked at is none that runs.
    if let Some(id) = operation {
        client.finished(&slug("demo"), id, 3 * PATIENCE, |_| {}).await?;
    }
    Ok(())
}

async fn follow_a_log(plain: &Plain, admin: &str) -> Result<()> {
    let pods = "/clusters/demo/proxy/api/v1/namespaces/default/pods";
    let pod = json!({
        "metadata": {"name": "ticking"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "roadstead.local/demo:1",
            "command": ["sh", "-c", "n=0; while true; do n=$((n+1)); echo tick-$n; sleep 1; done"],
        }]},
    });
    let made = plain.request(Method::POST, pods, admin).json(&pod).send().await?;
    ensure!(made.status() == StatusCode::CREATED, "{}", made.text().await?);
    until(|| async {
        let found = plain.request(Method::GET, &format!("{pods}/ticking"), admin).send().await?;
        let found: Value = found.json().await?;
        Ok(found["status"]["phase"] == "Running")
    })
    .await
    .context("the pod does not run")?;
    let mut log =
        plain.request(Method::GET, &format!("{pods}/ticking/log?follow=true"), admin).send().await?;
    ensure!(log.status() == StatusCode::OK, "{}", log.status());
    let mut text = String::new();
    while !text.contains("tick-4") {
        let chunk = tokio::time::timeout(PATIENCE, log.chunk()).await.context("the log is silent")??;
        text += std::str::from_utf8(&chunk.context("the log ended")?)?;
    }
    drop(log);
    plain.request(Method::DELETE, &format!("{pods}/ticking"), admin).send().await?;
    Ok(())
}

/// Whatever is killed and whenever, what was accepted comes to be, once, and what was deleted goes entirely.
#[test]
fn nothing_half_made_survives_a_sudden_death() -> Result<()> {
    let mut fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    let runtime = runtime()?;
    let acme = slug("acme");
    runtime.block_on(async { fleet.client()?.create_organization(&acme).await.context("acme") })?;
    for (round, delay_ms) in [3, 12, 40, 120].into_iter().enumerate() {
        let outcome = one_death(&mut fleet, &runtime, &acme, round, Duration::from_millis(delay_ms));
        fleet.explain(outcome)?;
    }
    Ok(())
}

fn one_death(
    fleet: &mut Fleet,
    runtime: &tokio::runtime::Runtime,
    acme: &Slug,
    round: usize,
    delay: Duration,
) -> Result<()> {
    let name = slug(&format!("round-{round}"));
    let client = fleet.client()?.with_key(&format!("create {name}"))?;
    let create = {
        let (client, acme, name) = (client.clone(), acme.clone(), name.clone());
        runtime.spawn(async move { client.create_cluster(&acme, &CreateCluster::named(name)).await })
    };
    std::thread::sleep(delay);
    fleet.kill()?;
    let _ = runtime.block_on(create)?;
    fleet.start_again()?;

    // The program that lost its answer asks again with the same key, and there is one.
    let cluster = runtime.block_on(async {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match client.create_cluster(acme, &CreateCluster::named(name.clone())).await {
                Ok(cluster) => return anyhow::Ok(cluster),
                Err(error) if Instant::now() < deadline => {
                    let passing = matches!(error.status(), Some(409 | 503) | None);
                    ensure!(passing, "round {round}: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => bail!("round {round}: {error}"),
            }
        }
    })?;
    runtime.block_on(async {
        until(|| async {
            let clusters = client.clusters(acme).await?;
            Ok(clusters.len() == 1
                && clusters[0].id == cluster.id
                && clusters[0].state == ClusterState::Ready
                && clusters[0].operation.is_none())
        })
        .await
        .with_context(|| format!("round {round}: created"))
    })?;

    a_join_token_is_one(fleet, runtime, acme, &cluster, delay)
        .with_context(|| format!("round {round}: join token"))?;

    // And the same for its end.
    let delete = {
        let (client, acme) = (fleet.client()?, acme.clone());
        runtime.spawn(async move { client.delete_cluster(&acme, cluster.id).await })
    };
    std::thread::sleep(delay);
    fleet.kill()?;
    let accepted = runtime.block_on(delete)?;
    fleet.start_again()?;
    runtime.block_on(async {
        let client = fleet.client()?;
        if accepted.is_err() {
            match client.delete_cluster(acme, cluster.id).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => bail!("round {round}: {error}"),
            }
        }
        until(|| async { Ok(client.clusters(acme).await?.is_empty()) })
            .await
            .with_context(|| format!("round {round}: deleted"))?;
        let receipt = client.receipt(acme, cluster.id).await?;
        ensure!(receipt.name == name, "{receipt:?}");
        ensure!(client.operations(acme, Some(OperationState::Running)).await?.is_empty());
        until(|| async { Ok(client.cells().await?.iter().all(|cell| cell.clusters == 0)) }).await?;
        anyhow::Ok(())
    })?;
    // The cell has nothing of it either.
    let assignments = fleet.data().join("cells/cell-1/assignments");
    let left: Vec<_> = std::fs::read_dir(&assignments)?.filter_map(Result::ok).collect();
    ensure!(left.is_empty(), "round {round}: {left:?}");
    Ok(())
}

/// A join token whose answer the manager's death swallowed: asked for again with its key there is one, and the
/// secret that is told in the end is the one that lets a machine in.
fn a_join_token_is_one(
    fleet: &mut Fleet,
    runtime: &tokio::runtime::Runtime,
    acme: &Slug,
    cluster: &Cluster,
    delay: Duration,
) -> Result<()> {
    let client = fleet.client()?.with_key(&format!("join {}", cluster.name))?;
    let (id, request) = (cluster.id, CreateJoinToken::default());
    let create = {
        let (client, acme, request) = (client.clone(), acme.clone(), request.clone());
        runtime.spawn(async move { client.create_join_token(&acme, id, &request).await })
    };
    std::thread::sleep(delay);
    fleet.kill()?;
    let _ = runtime.block_on(create)?;
    fleet.start_again()?;
    runtime.block_on(async {
        let deadline = Instant::now() + PATIENCE;
        let told = loop {
            match client.create_join_token(acme, id, &request).await {
                Ok(told) => break told,
                Err(error) if Instant::now() < deadline => {
                    let passing = matches!(error.status(), Some(409 | 503) | None);
                    ensure!(passing, "{error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => bail!("{error}"),
            }
        };
        // The key was for that one request.
        let client = fleet.client()?;
        let listed = client.join_tokens(acme, id).await?;
        ensure!(listed.len() == 1 && listed[0].id == told.id, "{listed:?}, told {}", told.id);
        let api = ApiClient::new(&Kubeconfig::parse(&client.kubeconfig(acme, id).await?.kubeconfig)?)?;
        let secret = format!("/api/v1/namespaces/kube-system/secrets/bootstrap-token-{}", told.id);
        let kept = api.get(&secret).await?;
        let kept = STANDARD.decode(kept["data"]["token-secret"].as_str().unwrap_or_default())?;
        ensure!(told.token == format!("{}.{}", told.id, String::from_utf8(kept)?), "another secret was told");
        anyhow::Ok(())
    })
}

async fn until<F>(mut holds: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = holds().await;
        if matches!(outcome, Ok(true)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return outcome.and_then(|_| bail!("it did not come to be within {PATIENCE:?}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
