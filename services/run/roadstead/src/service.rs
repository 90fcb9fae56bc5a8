//! Processes that `up` starts, or that an operator starts one by one.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base_clock::SystemClock;
use base_net::tasks::Tasks;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use tokio::signal::unix::{SignalKind, signal};

use crate::child::{die_with_parent, say_ready};
use crate::cli::Node;

/// How long tasks get to end after the signal.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

#[derive(Debug, Serialize, Deserialize)]
pub struct CellReady {
    pub rpc: SocketAddr,
    pub api: SocketAddr,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct GatewayReady {}

#[derive(Debug, Serialize, Deserialize)]
pub struct NodeReady {
    pub name: String,
}

pub async fn cell(config: &Path) -> Result<()> {
    die_with_parent()?;
    let config: fleet_cell::Config = read_config(config)?;
    let _telemetry = base_telemetry::init(&base_telemetry::Options::from_env("roadstead-cell"))?;
    let tasks = Tasks::new();
    let cell = fleet_cell::Cell::start(config, SystemClock::shared(), &tasks).await?;
    say_ready(&CellReady { rpc: cell.rpc_address, api: cell.api_address })?;
    tokio::select! {
        signal = stop_signal() => signal?,
        failure = cell.failed() => bail!("the cell's disk failed: {failure}"),
    }
    cell.stop().await;
    tasks.stop(STOP_PATIENCE).await;
    Ok(())
}

pub async fn gateway(config: &Path) -> Result<()> {
    die_with_parent()?;
    let config: fleet_gateway::Config = read_config(config)?;
    let _telemetry = base_telemetry::init(&base_telemetry::Options::from_env("roadstead-gateway"))?;
    let tasks = Tasks::new();
    fleet_gateway::run(config, &tasks).await?;
    say_ready(&GatewayReady {})?;
    stop_signal().await?;
    tasks.stop(STOP_PATIENCE).await;
    Ok(())
}

/// SIGTERM or SIGINT, whichever is first.
pub async fn stop_signal() -> Result<()> {
    let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn read_config<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not a configuration", path.display()))
}
