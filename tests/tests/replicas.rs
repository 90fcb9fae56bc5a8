//! Clusters of three replicas on real processes: a cell dies by kill -9, the cluster goes on; it comes back and
//! catches up. Nothing that was acknowledged is lost, and a watch goes on elsewhere where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use dev_testkit::{ApiClient, Fleet, Kubeconfig, Kubectl, Options, is_root};
use fleet_client::Client;
use fleet_model::{Cluster, CreateCluster};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;

const CELLS: u8 = 3;
const WRITERS: usize = 6;
/// Each cell twice.
const ROUNDS: usize = 6;
/// A leader's cell is missed for 0.6 s before others stand for election; a busy machine gets some more.
const USABLE_AGAIN: Duration = Duration::from_secs(4);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn a_cluster_of_three_outlives_any_of_its_cells() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fleet = Fleet::start(Options { cells: CELLS, demo: false, ..Options::default() })?;
    runtime.block_on(async {
        let (client, cluster) = create(&fleet, 3).await?;
        let distinct: BTreeSet<_> = cluster.cells.iter().collect();
        ensure!(cluster.replicas == 3 && distinct.len() == 3, "{cluster:?}");
        let kubeconfig = kubeconfig(&client, &cluster).await?;
        let api = ApiClient::new(&kubeconfig)?;

        let work = Arc::new(Work::default());
        let first = api.get(CONFIG_MAPS).await?;
        let from = first["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?.to_owned();
        let watcher = tokio::spawn(watch(ApiClient::new(&kubeconfig)?, from, work.clone()));
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            writers.push(tokio::spawn(write(ApiClient::new(&kubeconfig)?, writer, work.clone())));
        }
        let mut pauses = Vec::new();
        for round in 0..ROUNDS {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let cell = 1 + (round % usize::from(CELLS)) as u8;
            pauses.push(kill_and_come_back(&fleet, cell, &kubeconfig, &work).await.context(format!("cell {cell}"))?);
        }
        work.stop.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await??;
        }
        let acknowledged = work.acknowledged.lock().await.clone();
        ensure!(acknowledged.len() > 100, "only {} writes went through", acknowledged.len());

        // Every replica has everything, asked directly.
        for cell in 1..=CELLS {
            let found = names(&directly(&fleet, cell, &kubeconfig)?).await.context(format!("cell {cell}"))?;
            let lost: Vec<_> = acknowledged.keys().filter(|name| !found.contains(*name)).collect();
            ensure!(lost.is_empty(), "cell {cell}: acknowledged and lost: {lost:?}");
        }
        // The watcher saw all of it, each once and in order, over all its reconnections.
        api.create(CONFIG_MAPS, &config_map("the-last-one")).await?;
        let seen = tokio::time::timeout(Duration::from_secs(20), watcher).await???;
        let versions: Vec<u64> = seen.iter().map(|(_, version)| *version).collect();
        ensure!(versions.is_sorted_by(|a, b| a < b), "events out of order or twice");
        let seen: BTreeSet<&String> = seen.iter().map(|(name, _)| name).collect();
        let missed: Vec<_> = acknowledged.keys().filter(|name| !seen.contains(name)).collect();
        ensure!(missed.is_empty(), "the watch never saw {missed:?}");
        let slowest = pauses.iter().max().copied().unwrap_or_default();
        println!(
            "{ROUNDS} cells killed, {} writes acknowledged, none lost; usable again after {pauses:?}; the watch resumed {} times",
            acknowledged.len(),
            work.resumed.load(Ordering::SeqCst)
        );
        ensure!(slowest < USABLE_AGAIN, "a write took {slowest:?} after a cell was killed");
        ensure!(work.resumed.load(Ordering::SeqCst) > 0, "no watch was ever cut; was the right cell killed?");
        Ok(())
    })
}

#[test]
fn three_replicas_need_three_cells() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fleet = Fleet::start(Options { cells: 2, demo: false, ..Options::default() })?;
    runtime.block_on(async {
        let failed = create(&fleet, 3).await.err().context("it was made")?;
        let said = format!("{failed:#}");
        ensure!(said.contains("3 replicas need 3 cells, and the fleet has 2"), "{said}");
        let failed = create(&fleet, 2).await.err().context("it was made")?;
        ensure!(format!("{failed:#}").contains("1 or 3"), "{failed:#}");
        // A cluster of one is as before.
        let (client, cluster) = create(&fleet, 1).await?;
        let api = ApiClient::new(&kubeconfig(&client, &cluster).await?)?;
        api.create(CONFIG_MAPS, &config_map("one")).await?;
        Ok(())
    })
}

/// Also where the machine has little disk left, which a node says of itself: that is not what is tried here.
const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
    "tolerations": [{"operator": "Exists"}],
    "containers": [{"name": "web", "image": "roadstead.local/demo:1"}]}}"#;

/// A node has one tunnel, to one cell. It stays Ready and reachable through every replica, whichever cell dies.
#[test]
fn a_node_stays_ready_when_a_cell_dies() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces and starts containers: run it as root");
    let fleet = Fleet::start(Options { cells: CELLS, nodes: 1, ..Options::default() })?;
    let kubectl = fleet.kubectl();
    fleet.explain(node_session(&fleet, &kubectl))
}

fn node_session(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.until("get nodes", " Ready ", Duration::from_secs(60))?;
    kubectl.ok_with(&["create", "-f", "-"], POD)?;
    kubectl.until("get pod web", "Running", Duration::from_secs(60))?;
    for cell in 1..=CELLS {
        reaches_the_node(fleet, cell).context(format!("through cell {cell}"))?;
    }
    for cell in 1..=CELLS {
        kill(pid_of(fleet, cell)?, Signal::SIGKILL)?;
        // The first time longer than a node may be silent: it must never have been.
        let seconds = if cell == 1 { 45 } else { 10 };
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            if let Ok(nodes) = kubectl.ok("get nodes") {
                ensure!(nodes.contains(" Ready "), "cell {cell} died and the node with it: {nodes}");
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        pid_of(fleet, cell).context("it did not come back")?;
        for through in 1..=CELLS {
            reaches_the_node(fleet, through).context(format!("through cell {through}, after {cell}"))?;
        }
    }
    Ok(())
}

/// `exec` through one cell's replica, wherever the node's tunnel ends.
fn reaches_the_node(fleet: &Fleet, cell: u8) -> Result<()> {
    let text = std::fs::read_to_string(fleet.demo_kubeconfig())?;
    let server = text.lines().find(|line| line.trim_start().starts_with("server:")).context("no server")?;
    let path = fleet.data().join(format!("through-cell-{cell}.kubeconfig"));
    let there = text.replace(server.trim(), &format!("server: https://{}", api_address(fleet, cell)?));
    std::fs::write(&path, there)?;
    let kubectl = Kubectl::new(&path);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let ran = kubectl.run("exec web -- echo through")?;
        if ran.success && ran.stdout.contains("through") {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{}{}", ran.stdout, ran.stderr);
        std::thread::sleep(Duration::from_millis(300));
    }
}

// ---- what the load does ----

#[derive(Default)]
struct Work {
    stop: AtomicBool,
    /// Name and resource version of what was answered with 201.
    acknowledged: Mutex<BTreeMap<String, u64>>,
    resumed: AtomicU64,
}

/// Creates one object after the other; what is not answered is another one's name next time.
async fn write(api: ApiClient, writer: usize, work: Arc<Work>) -> Result<()> {
    for number in 0.. {
        if work.stop.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("w{writer}-{number}");
        let request = api.request(Method::POST, CONFIG_MAPS).json(&config_map(&name));
        let answer = match request.timeout(Duration::from_secs(6)).send().await {
            Ok(answer) => answer,
            Err(_) => continue,
        };
        match answer.status().as_u16() {
            201 => {
                let body: Value = answer.json().await?;
                let version = body["metadata"]["resourceVersion"].as_str().context("no version")?.parse()?;
                work.acknowledged.lock().await.insert(name, version);
            }
            // What a cluster may say while it has no leader (DESIGN §5).
            503 | 504 => {
                ensure!(answer.headers().contains_key("retry-after"), "no Retry-After: {answer:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => return Err(anyhow!("{name}: {other} {}", answer.text().await.unwrap_or_default())),
        }
    }
    Ok(())
}

/// Follows the ConfigMaps until `the-last-one`; reconnects with the last resource version it has seen.
async fn watch(api: ApiClient, from: String, work: Arc<Work>) -> Result<Vec<(String, u64)>> {
    let mut version = from;
    let mut seen = Vec::new();
    let mut connected = 0;
    loop {
        let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}");
        let mut answer = match api.request(Method::GET, &path).timeout(Duration::from_secs(120)).send().await
        {
            Ok(answer) if answer.status() == 200 => answer,
            Ok(answer) => {
                ensure!(answer.status() != 410, "the watch cannot resume at {version}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        connected += 1;
        if connected > 1 {
            work.resumed.fetch_add(1, Ordering::SeqCst);
        }
        let mut buffer = Vec::new();
        while let Ok(Some(chunk)) = answer.chunk().await {
            buffer.extend_from_slice(&chunk);
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let event: Value = serde_json::from_slice(&buffer[..end])?;
                buffer.drain(..=end);
                let object = &event["object"];
                ensure!(event["type"] != "ERROR", "the watch failed at {version}: {object}");
                version = object["metadata"]["resourceVersion"].as_str().context("no version")?.to_owned();
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                if event["type"] != "ADDED" {
                    continue;
                }
                let last = name == "the-last-one";
                seen.push((name, version.parse()?));
                if last {
                    return Ok(seen);
                }
            }
        }
    }
}

/// Kills a cell, and waits until it is back with all of the cluster. How long writes did not go through.
async fn kill_and_come_back(
    fleet: &Fleet,
    cell: u8,
    kubeconfig: &Kubeconfig,
    work: &Work,
) -> Result<Duration> {
    let before = pid_of(fleet, cell)?;
    kill(before, Signal::SIGKILL)?;
    let killed = Instant::now();
    // Through a fresh connection, as somebody would who comes now.
    let api = ApiClient::new(kubeconfig)?;
    let name = format!("probe-{cell}-{}", killed.elapsed().as_nanos());
    let pause = loop {
        ensure!(killed.elapsed() < Duration::from_secs(30), "not usable any more");
        let request = api.request(Method::POST, CONFIG_MAPS).json(&config_map(&name));
        match request.timeout(Duration::from_secs(5)).send().await {
            Ok(answer) if matches!(answer.status().as_u16(), 201 | 409) => break killed.elapsed(),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let wanted = work.acknowledged.lock().await.len();
    loop {
        ensure!(killed.elapsed() < Duration::from_secs(60), "it did not come back");
        tokio::time::sleep(Duration::from_millis(100)).await;
        if pid_of(fleet, cell).map_or(true, |pid| pid == before) {
            continue;
        }
        let api = directly(fleet, cell, kubeconfig)?;
        if names(&api).await.is_ok_and(|found| found.len() >= wanted) {
            return Ok(pause);
        }
    }
}

// ---- the fleet ----

async fn create(fleet: &Fleet, replicas: u8) -> Result<(Client, Cluster)> {
    let client = fleet.client()?;
    let org = "acme".parse()?;
    if client.organization(&org).await.is_err() {
        client.create_organization(&org).await?;
    }
    let request = CreateCluster { replicas: Some(replicas), ..CreateCluster::named("blue".parse()?) };
    let made = client.create_cluster(&org, &request).await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let cluster = client.cluster(&org, &made.name).await?;
        if cluster.state == fleet_model::ClusterState::Ready {
            return Ok((client, cluster));
        }
        ensure!(Instant::now() < deadline, "still {}", cluster.state.as_str());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn kubeconfig(client: &Client, cluster: &Cluster) -> Result<Kubeconfig> {
    Kubeconfig::parse(&client.kubeconfig(&cluster.organization, &cluster.name).await?.kubeconfig)
}

fn config_path(fleet: &Fleet, cell: u8) -> String {
    fleet.data().join(format!("cells/cell-{cell}/config.json")).display().to_string()
}

fn pid_of(fleet: &Fleet, cell: u8) -> Result<Pid> {
    let pids = fleet.children(&config_path(fleet, cell))?;
    Ok(Pid::from_raw(*pids.first().context("the cell does not run")?))
}

fn api_address(fleet: &Fleet, cell: u8) -> Result<SocketAddr> {
    let config: Value = serde_json::from_str(&std::fs::read_to_string(config_path(fleet, cell))?)?;
    Ok(config["api_listen"].as_str().context("no api_listen")?.parse()?)
}

/// The cluster as one cell serves it, without the gateway.
fn directly(fleet: &Fleet, cell: u8, kubeconfig: &Kubeconfig) -> Result<ApiClient> {
    ApiClient::new(&Kubeconfig { address: api_address(fleet, cell)?, ..kubeconfig.clone() })
}

async fn names(api: &ApiClient) -> Result<BTreeSet<String>> {
    let list = api.get(CONFIG_MAPS).await?;
    let items = list["items"].as_array().context("no items")?;
    Ok(items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": name}})
}
