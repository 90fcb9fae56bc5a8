//! What many objects, many watchers and large answers cost one API server.
//!
//! Client and cell share the machine, so each figure holds the client's work too.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base_ids::Slug;
use dev_testkit::{ApiClient, Fleet, Kubeconfig};
use fleet_model::CreateCluster;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::cell::{forget_peak, peak_bytes, resident_bytes};
use crate::rows::{IN_FLIGHT, micros, millis};
use crate::table::Row;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Until memory that is only waiting to be given back has been.
const SETTLE: Duration = Duration::from_secs(10);

/// What an object costs in memory, and what looking through all of them does.
pub async fn objects(fleet: &Fleet, count: usize) -> Result<Vec<Row>> {
    let api = cluster(fleet, "objects").await?;
    let before = resident_bytes(fleet)?;
    let payload = "x".repeat(1024);
    create_all(&api, CONFIG_MAPS, count, |number| {
        json!({"metadata": {"name": format!("o{number}"), "labels": {"shard": format!("{}", number % 16)}},
            "data": {"x": payload}})
    })
    .await?;
    tokio::time::sleep(SETTLE).await;
    let each = resident_bytes(fleet)?.saturating_sub(before) as f64 / count as f64;
    let shown = api.request(Method::GET, &format!("{CONFIG_MAPS}/o0")).send().await?.bytes().await?.len();
    let mut times = Histogram::<u64>::new(3)?;
    for _ in 0..20 {
        let started = Instant::now();
        let found = api.get(&format!("{CONFIG_MAPS}?labelSelector=shard%3Dnone")).await?;
        ensure!(found["items"].as_array().is_some_and(Vec::is_empty), "{found}");
        times.record(micros(started.elapsed()))?;
    }
    let allowed = shown as f64 * 1.5 + 300.0;
    Ok(vec![
        Row::new(
            format!("memory per ConfigMap of {shown} bytes of JSON, over {count}, history included"),
            format!("{each:.0} bytes"),
            format!("under {allowed:.0} bytes (1.5 times the JSON + 300)"),
        ),
        Row::new(
            format!("list by a label that none of {count} objects has, p50 of 20"),
            millis(times.value_at_quantile(0.5)),
            "under 5 ms",
        ),
    ])
}

/// Every event to every watcher, each on a connection of its own; from before the write is sent until the
/// event is read.
pub async fn watchers(fleet: &Fleet, watchers: usize, events: usize) -> Result<Vec<Row>> {
    let config = cluster_config(fleet, "watchers").await?;
    let api = ApiClient::new(&config)?;
    let from = api.get(CONFIG_MAPS).await?;
    let from = from["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?.to_owned();
    let origin = Instant::now();
    let mut readers = Vec::new();
    for _ in 0..watchers {
        let response = watch(&ApiClient::new(&config)?, &from).await?;
        readers.push(tokio::spawn(delays(response, events, origin)));
    }
    let started = Instant::now();
    let payload = "x".repeat(1024);
    for number in 0..events {
        let at = micros(origin.elapsed());
        let body = json!({"metadata": {"name": format!("e{number}")}, "data": {"at": format!("{at};"), "x": payload}});
        api.create(CONFIG_MAPS, &body).await?;
    }
    let mut times = Histogram::<u64>::new(3)?;
    for reader in readers {
        for delay in reader.await?? {
            times.record(delay)?;
        }
    }
    ensure!(times.len() == (watchers * events) as u64, "{} events came", times.len());
    let rate = times.len() as f64 / started.elapsed().as_secs_f64();
    Ok(vec![
        Row::new(
            format!("write to receipt, {watchers} watchers x {events} events, p50"),
            millis(times.value_at_quantile(0.5)),
            "",
        ),
        Row::new("the same, p99", millis(times.value_at_quantile(0.99)), "a quarter of kube-apiserver's"),
        Row::new("the same, events received", format!("{rate:.0}/s"), ""),
    ])
}

/// Watches that nothing happens on, many to a connection.
pub async fn idle_watches(fleet: &Fleet) -> Result<Vec<Row>> {
    const CONNECTIONS: usize = 4;
    const EACH: usize = 90;
    let config = cluster_config(fleet, "idle").await?;
    let clients: Vec<ApiClient> = (0..CONNECTIONS).map(|_| ApiClient::new(&config)).collect::<Result<_>>()?;
    let mut from = String::new();
    for api in &clients {
        let list = api.get(CONFIG_MAPS).await?;
        from = list["metadata"]["resourceVersion"].as_str().context("no resourceVersion")?.to_owned();
    }
    tokio::time::sleep(SETTLE).await;
    let before = resident_bytes(fleet)?;
    let mut open = Vec::new();
    for number in 0..CONNECTIONS * EACH {
        open.push(watch(&clients[number % CONNECTIONS], &from).await?);
    }
    tokio::time::sleep(SETTLE).await;
    let each = resident_bytes(fleet)?.saturating_sub(before) as f64 / open.len() as f64;
    Ok(vec![Row::new(
        format!("memory of an idle watch, over {} on {CONNECTIONS} connections", open.len()),
        format!("{:.1} KiB", each / 1024.0),
        "under 10 KiB",
    )])
}

/// Answers that would not fit: what they add to the cell's memory at its highest.
pub async fn large_lists(fleet: &Fleet) -> Result<Vec<Row>> {
    const LISTS: usize = 64;
    const SECRETS: usize = 100;
    let api = cluster(fleet, "large").await?;
    let path = "/api/v1/namespaces/default/secrets";
    // In base64, as they travel.
    let value = "QUJD".repeat(250_000);
    create_all(
        &api,
        path,
        SECRETS,
        |number| json!({"metadata": {"name": format!("s{number}")}, "data": {"x": value}}),
    )
    .await?;
    tokio::time::sleep(SETTLE).await;
    let before = resident_bytes(fleet)?;
    forget_peak(fleet)?;
    let started = Instant::now();
    let lists = (0..LISTS).map(|_| {
        let api = api.clone();
        async move {
            let mut answer = api.request(Method::GET, path).send().await?;
            let mut bytes = 0;
            while let Some(chunk) = answer.chunk().await? {
                bytes += chunk.len();
            }
            ensure!(bytes > SECRETS * 1_000_000, "{bytes} bytes came");
            Ok(())
        }
    });
    try_join_all(lists).await?;
    let grown = peak_bytes(fleet)?.saturating_sub(before);
    Ok(vec![Row::new(
        format!(
            "memory that {LISTS} lists of {SECRETS} x 1 MB Secrets at once add ({:.0} s)",
            started.elapsed().as_secs_f64()
        ),
        format!("{:.0} MB", grown as f64 / 1e6),
        "under 200 MB",
    )])
}

/// A cluster of its own for a figure.
async fn cluster(fleet: &Fleet, name: &str) -> Result<ApiClient> {
    ApiClient::new(&cluster_config(fleet, name).await?)
}

async fn cluster_config(fleet: &Fleet, name: &str) -> Result<Kubeconfig> {
    let manager = fleet.client()?;
    let (org, name): (Slug, Slug) = (format!("of-{name}").parse()?, name.parse()?);
    manager.create_organization(&org).await?;
    manager.create_cluster(&org, &CreateCluster::named(name.clone())).await?;
    Kubeconfig::parse(&manager.kubeconfig(&org, &name).await?.kubeconfig)
}

async fn create_all(api: &ApiClient, path: &str, count: usize, body: impl Fn(usize) -> Value) -> Result<()> {
    stream::iter(0..count)
        .map(|number| {
            let body = body(number);
            async move { api.create(path, &body).await }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await
}

async fn watch(api: &ApiClient, from: &str) -> Result<Response> {
    let path = format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=3600&resourceVersion={from}");
    let request = api.request(Method::GET, &path).timeout(Duration::from_secs(3600));
    let response = request.send().await?;
    ensure!(response.status() == 200, "watch: {}", response.status());
    Ok(response)
}

/// Microseconds from each event's writing to now, as it comes.
async fn delays(mut response: Response, events: usize, origin: Instant) -> Result<Vec<u64>> {
    let mut delays = Vec::with_capacity(events);
    let mut rest = Vec::new();
    while delays.len() < events {
        let chunk = response.chunk().await?.context("the watch ended early")?;
        let now = micros(origin.elapsed());
        rest.extend_from_slice(&chunk);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            delays.push(now.saturating_sub(written_at(&line).context("an event without its time")?));
        }
    }
    Ok(delays)
}

/// The figure after `"at":"`, up to its semicolon: parsing each event whole would measure the parser.
fn written_at(event: &[u8]) -> Option<u64> {
    const KEY: &[u8] = b"\"at\":\"";
    let start = event.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let length = event[start..].iter().position(|byte| *byte == b';')?;
    std::str::from_utf8(&event[start..start + length]).ok()?.parse().ok()
}
