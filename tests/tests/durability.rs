//! Nothing acknowledged is ever lost: kill -9 in the middle of writes, look after each restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dev_testkit::{ApiClient, Fleet, Options};
use futures::stream::{self, StreamExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};

const ROUNDS: usize = 20;
/// Creates in flight at once, so that the kill always finds some in every stage of a write.
const CONCURRENT: usize = 1000;

#[test]
fn acknowledged_objects_survive_kill_9() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fleet = Fleet::start(Options::default())?;
    runtime.block_on(async {
        let api = ApiClient::new(&fleet.kubeconfig()?)?;
        let mut acknowledged = BTreeSet::new();
        for round in 0..ROUNDS {
            acknowledged.append(&mut round_of_creates(&fleet, &api, round).await?);
            serving_again(&api).await?;
            let found = names(&api).await?;
            let lost: Vec<_> = acknowledged.difference(&found).collect();
            ensure!(lost.is_empty(), "round {round}: {} acknowledged objects are lost: {lost:?}", lost.len());
        }
        ensure!(!acknowledged.is_empty(), "nothing was ever acknowledged");
        println!("{ROUNDS} rounds, {} objects acknowledged, none lost", acknowledged.len());
        Ok(())
    })
}

/// Starts the creates, kills the cell while they run, and says which were acknowledged.
async fn round_of_creates(fleet: &Fleet, api: &ApiClient, round: usize) -> Result<BTreeSet<String>> {
    let cells = fleet.children("cell")?;
    let cell = *cells.first().context("no cell runs")?;
    let killed = Arc::new(AtomicBool::new(false));
    let killer = {
        let killed = killed.clone();
        // A different moment each round: early ones find the first batch, late ones a full pipeline.
        let delay = Duration::from_millis(20 + 17 * round as u64);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            killed.store(true, Ordering::SeqCst);
            kill(Pid::from_raw(cell), Signal::SIGKILL)
        })
    };
    let creates = stream::iter(0..CONCURRENT).map(|number| {
        let api = api.clone();
        async move {
            let name = format!("r{round}-{number}");
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"n": name}});
            let request = api.request(Method::POST, "/api/v1/namespaces/default/configmaps").json(&body);
            let answer = request.timeout(Duration::from_secs(10)).send().await;
            answer.is_ok_and(|answer| answer.status() == 201).then_some(name)
        }
    });
    let acknowledged = creates.buffer_unordered(CONCURRENT).filter_map(std::future::ready).collect().await;
    killer.await??;
    ensure!(killed.load(Ordering::SeqCst));
    Ok(acknowledged)
}

async fn serving_again(api: &ApiClient) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let request = api.request(Method::GET, "/readyz").timeout(Duration::from_secs(2));
        if request.send().await.is_ok_and(|answer| answer.status() == 200) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the cell did not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn names(api: &ApiClient) -> Result<BTreeSet<String>> {
    let list = api.get("/api/v1/namespaces/default/configmaps").await?;
    let items = list["items"].as_array().context("no items")?;
    Ok(items.iter().filter_map(|item| item["metadata"]["name"].as_str()).map(str::to_owned).collect())
}

#[test]
fn a_deleted_object_stays_deleted_and_revisions_only_grow() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fleet = Fleet::start(Options::default())?;
    runtime.block_on(async {
        let api = ApiClient::new(&fleet.kubeconfig()?)?;
        let path = "/api/v1/namespaces/default/configmaps";
        let made = api.create(path, &json!({"metadata": {"name": "gone"}})).await?;
        let (code, _) = api.call(Method::DELETE, &format!("{path}/gone"), None).await?;
        ensure!(code == 200);
        let cell = *fleet.children("cell")?.first().context("no cell runs")?;
        kill(Pid::from_raw(cell), Signal::SIGKILL)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        serving_again(&api).await?;
        let (code, _) = api.call(Method::GET, &format!("{path}/gone"), None).await?;
        ensure!(code == 404, "a deleted object is back");
        let next = api.create(path, &json!({"metadata": {"name": "next"}})).await?;
        ensure!(revision(&next)? > revision(&made)? + 1, "{next} after {made}");
        Ok(())
    })
}

fn revision(object: &Value) -> Result<u64> {
    Ok(object["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?.parse()?)
}
