//! What three replicas cost, beside one: on a fleet of three cells of one machine, so that both pay the same.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use base_ids::Slug;
use dev_testkit::{ApiClient, Fleet, Kubeconfig};
use fleet_model::CreateCluster;
use futures::stream::{self, StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::rows::{IN_FLIGHT, micros, millis};
use crate::table::Row;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Create through REST → a kubeconfig that lists, then writes one at a time and many at once, with 1 and 3
/// replicas.
pub async fn one_and_three(fleet: &Fleet, clusters: usize, writes: usize) -> Result<Vec<Row>> {
    let manager = fleet.client()?;
    let org: Slug = "replicas".parse()?;
    manager.create_organization(&org).await?;
    let mut rows = Vec::new();
    for replicas in [1, 3] {
        let mut created = Histogram::<u64>::new(3)?;
        let mut last = None;
        for number in 0..clusters {
            let name: Slug = format!("r{replicas}-{number}").parse()?;
            let started = Instant::now();
            let request = CreateCluster { replicas: Some(replicas), ..CreateCluster::named(name.clone()) };
            manager.create_cluster(&org, &request).await?;
            let config = Kubeconfig::parse(&manager.kubeconfig(&org, &name).await?.kubeconfig)?;
            let api = ApiClient::new(&config)?;
            api.get("/api/v1/namespaces").await?;
            created.record(micros(started.elapsed()))?;
            last = Some(api);
        }
        let api = last.context("no cluster was made")?;
        let (one, many, rate) = write(&api, writes).await?;
        let aim = if replicas == 3 { "p50 under 100 ms" } else { "under 50 ms" };
        let what = format!("create to usable kubeconfig, {replicas} replicas, {clusters} clusters");
        rows.extend([
            Row::new(format!("{what}, p50"), millis(created.value_at_quantile(0.5)), aim),
            Row::new(format!("{what}, p99"), millis(created.value_at_quantile(0.99)), ""),
            Row::new(
                format!("write of 1 KiB, one at a time, {replicas} replicas, p50"),
                millis(one.value_at_quantile(0.5)),
                "",
            ),
            Row::new(
                format!("write of 1 KiB, {IN_FLIGHT} in flight, {replicas} replicas, p50"),
                millis(many.value_at_quantile(0.5)),
                "",
            ),
            Row::new(
                format!("writes of 1 KiB, {IN_FLIGHT} in flight, {replicas} replicas"),
                format!("{rate:.0}/s"),
                "",
            ),
        ]);
    }
    Ok(rows)
}

async fn write(api: &ApiClient, count: usize) -> Result<(Histogram<u64>, Histogram<u64>, f64)> {
    let payload = "x".repeat(1024);
    let timed = async |name: String| {
        let body = json!({"metadata": {"name": name}, "data": {"x": payload}});
        let started = Instant::now();
        api.create(CONFIG_MAPS, &body).await?;
        Ok::<_, anyhow::Error>(micros(started.elapsed()))
    };
    let (mut one, mut many) = (Histogram::new(3)?, Histogram::new(3)?);
    for number in 0..count / 10 {
        one.record(timed(format!("one-{number}")).await?)?;
    }
    let started = Instant::now();
    let times: Vec<u64> = stream::iter(0..count)
        .map(|number| timed(format!("many-{number}")))
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    for time in times {
        many.record(time)?;
    }
    Ok((one, many, rate))
}

/// From kill -9 of a cell to the first write that goes through the gateway, over all cells in turn.
pub async fn kill(fleet: &Fleet, rounds: usize) -> Result<Vec<Row>> {
    let manager = fleet.client()?;
    let (org, name): (Slug, Slug) = ("replicas".parse()?, "r3-0".parse()?);
    let config = Kubeconfig::parse(&manager.kubeconfig(&org, &name).await?.kubeconfig)?;
    let mut pauses = Histogram::<u64>::new(3)?;
    for round in 0..rounds {
        let cells = fleet.children("cell")?;
        let cell = *cells.get(round % cells.len()).context("no cell runs")?;
        let killed = Instant::now();
        // In `dev` alone: the cell is a child of a fleet that this program started.
        std::process::Command::new("kill").args(["-9", &cell.to_string()]).status()?;
        let mut tries = 0;
        loop {
            tries += 1;
            let api = ApiClient::new(&config)?;
            let body = json!({"metadata": {"name": format!("k{round}-{tries}")}});
            let created = tokio::time::timeout(Duration::from_secs(5), api.create(CONFIG_MAPS, &body));
            if matches!(created.await, Ok(Ok(_))) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        pauses.record(micros(killed.elapsed()))?;
        // It comes back and catches up.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let what = format!("kill -9 of a cell of three to the next write, {rounds} times");
    Ok(vec![
        Row::new(format!("{what}, p50"), millis(pauses.value_at_quantile(0.5)), "p50 under 1 s"),
        Row::new(format!("{what}, slowest"), millis(pauses.max()), "p99 under 3 s"),
    ])
}
