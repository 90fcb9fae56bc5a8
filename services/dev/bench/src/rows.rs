//! What is measured.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use base_ids::Slug;
use dev_testkit::{ApiClient, Fleet, Kubeconfig};
use fleet_model::CreateCluster;
use futures::stream::{self, StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use reqwest::Method;
use serde_json::json;

use crate::cell::{cpu_ticks, resident_bytes};
use crate::table::Row;

/// Writes in flight, as the aim says.
pub(crate) const IN_FLIGHT: usize = 64;

/// Idle clusters are measured after their start-up work has settled.
const SETTLE: Duration = Duration::from_secs(10);

/// Create → first successful `create configmap`, one after the other, and what they cost when idle.
pub async fn clusters(fleet: &Fleet, count: usize) -> Result<Vec<Row>> {
    let manager = fleet.client()?;
    let org: Slug = "bench".parse()?;
    manager.create_organization(&org).await?;
    let before = resident_bytes(fleet)?;
    let mut times = Histogram::<u64>::new(3)?;
    for number in 0..count {
        let name: Slug = format!("c{number}").parse()?;
        let started = Instant::now();
        manager.create_cluster(&org, &CreateCluster::named(name.clone())).await?;
        let config = Kubeconfig::parse(&manager.kubeconfig(&org, &name).await?.kubeconfig)?;
        let api = ApiClient::new(&config)?;
        let body = json!({"metadata": {"name": "first"}, "data": {"a": "b"}});
        api.create("/api/v1/namespaces/default/configmaps", &body).await?;
        times.record(micros(started.elapsed()))?;
    }
    tokio::time::sleep(SETTLE).await;
    let each = resident_bytes(fleet)?.saturating_sub(before) / count as u64;
    let cpu_before = cpu_ticks(fleet)?;
    tokio::time::sleep(SETTLE).await;
    let idle = (cpu_ticks(fleet)? - cpu_before) as f64 / SETTLE.as_secs_f64();
    Ok(vec![
        Row::new(
            format!("cluster create to first ConfigMap, {count} clusters, p50"),
            millis(times.value_at_quantile(0.5)),
            "under 50 ms",
        ),
        Row::new("the same, p99", millis(times.value_at_quantile(0.99)), ""),
        Row::new(
            format!("memory of the cell per idle cluster, over {count}"),
            format!("{:.0} KiB", each as f64 / 1024.0),
            "under 1 MiB",
        ),
        Row::new(format!("CPU of the cell with {count} idle clusters"), format!("{idle:.1} % of a core"), ""),
    ])
}

/// Creates of 1 KiB ConfigMaps, each on disk before it is acknowledged.
pub async fn writes(fleet: &Fleet, count: usize) -> Result<Vec<Row>> {
    let api = ApiClient::new(&fleet.kubeconfig()?)?;
    let payload = "x".repeat(1024);
    let cpu_before = cpu_ticks(fleet)?;
    let started = Instant::now();
    let times: Vec<u64> = stream::iter(0..count)
        .map(|number| {
            let (api, payload) = (&api, &payload);
            async move {
                let body = json!({"metadata": {"name": format!("w{number}")}, "data": {"x": payload}});
                let started = Instant::now();
                api.create("/api/v1/namespaces/default/configmaps", &body).await?;
                Ok::<_, anyhow::Error>(micros(started.elapsed()))
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await?;
    let elapsed = started.elapsed();
    let cpu_seconds = (cpu_ticks(fleet)? - cpu_before) as f64 / 100.0;
    let mut histogram = Histogram::<u64>::new(3)?;
    for time in times {
        histogram.record(time)?;
    }
    Ok(vec![
        Row::new(
            format!("creates of 1 KiB ConfigMaps, {IN_FLIGHT} in flight, fsynced, {count}"),
            format!("{:.0}/s", count as f64 / elapsed.as_secs_f64()),
            "",
        ),
        Row::new(
            "the same, per second of the cell's CPU",
            format!("{:.0}", count as f64 / cpu_seconds.max(0.01)),
            "3 times kube-apiserver's",
        ),
        Row::new("the same, p50", millis(histogram.value_at_quantile(0.5)), ""),
        Row::new("the same, p99", millis(histogram.value_at_quantile(0.99)), ""),
    ])
}

/// One unpaged list of many pods, as JSON.
pub async fn list(fleet: &Fleet, count: usize) -> Result<Vec<Row>> {
    let api = ApiClient::new(&fleet.kubeconfig()?)?;
    api.create("/api/v1/namespaces", &json!({"metadata": {"name": "many"}})).await?;
    wait_for_service_account(&api).await?;
    stream::iter(0..count)
        .map(|number| {
            let api = &api;
            async move { api.create("/api/v1/namespaces/many/pods", &pod(number)).await }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await?;
    let (mut first, mut whole) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    let mut bytes = 0;
    for _ in 0..10 {
        let started = Instant::now();
        let mut answer = api.request(Method::GET, "/api/v1/namespaces/many/pods").send().await?;
        ensure!(answer.status() == 200, "{}", answer.status());
        bytes = 0;
        while let Some(chunk) = answer.chunk().await? {
            if bytes == 0 {
                first.record(micros(started.elapsed()))?;
            }
            bytes += chunk.len();
        }
        whole.record(micros(started.elapsed()))?;
    }
    Ok(vec![
        Row::new(
            format!("list of {count} pods ({:.1} MiB of JSON), p50 of 10", bytes as f64 / f64::from(1 << 20)),
            millis(whole.value_at_quantile(0.5)),
            "10 times quicker than kube-apiserver",
        ),
        Row::new("the same, to the first byte", millis(first.value_at_quantile(0.5)), "under 5 ms"),
    ])
}

async fn wait_for_service_account(api: &ApiClient) -> Result<()> {
    for _ in 0..200 {
        let path = "/api/v1/namespaces/many/serviceaccounts/default";
        if api.call(Method::GET, path, None).await?.0 == 200 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the ServiceAccount `default` did not appear within 10 s")
}

/// Scheduled by nobody: it asks for a scheduler that does not run.
fn pod(number: usize) -> serde_json::Value {
    json!({
        "metadata": {"name": format!("p{number}"), "labels": {"app": "many", "number": format!("{number}")}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "main",
                "image": "roadstead.local/demo:1",
                "ports": [{"containerPort": 8080, "name": "http"}],
                "env": [{"name": "NUMBER", "value": format!("{number}")}],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}
            }]
        }
    })
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}
