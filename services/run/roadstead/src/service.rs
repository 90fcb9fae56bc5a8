//! Processes that `up` starts, or that an operator starts one by one.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base_clock::SystemClock;
use base_files::{DirLock, lock_dir, private_dir};
use base_net::pki::Issued;
use base_net::tasks::Tasks;
use cloud_local::Local;
use fleet_cell::ProviderConfig;
use node_agent::{JoinOptions, NodeConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::Node;
use base_child::{die_with_parent, say_ready};

/// How long tasks get to end after the signal.
const STOP_PATIENCE: Duration = Duration::from_secs(12);

/// Longer than a provider takes to end its machines.
const LOCK_PATIENCE: Duration = Duration::from_secs(25);

#[derive(Debug, Serialize, Deserialize)]
pub struct CellReady {
    pub rpc: SocketAddr,
    pub api: SocketAddr,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct GatewayReady {}

#[derive(Debug, Serialize, Deserialize)]
pub struct CloudReady {
    pub rpc: SocketAddr,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct NodeReady {
    pub name: String,
}

pub async fn cell(config: &Path, clouds: Vec<ProviderConfig>) -> Result<()> {
    die_with_parent()?;
    let mut config: fleet_cell::Config = read_config(config)?;
    config.providers.extend(clouds);
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

pub async fn cloud_local(config: &Path) -> Result<()> {
    die_with_parent()?;
    let config: cloud_local::Config = read_config(config)?;
    let _telemetry = base_telemetry::init(&base_telemetry::Options::from_env("roadstead-cloud-local"))?;
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    private_dir(&config.data_dir)?;
    let _lock = lock_in_turn(&config.data_dir).await?;
    let tasks = Tasks::new();
    let listener = listen(config.listen, config.any_port_if_taken).await?;
    let rpc = listener.local_addr()?;
    let local = Local::start(&config, binary, SystemClock::shared(), &tasks).await?;
    let identity = Issued { cert_pem: config.cert_pem.clone(), key_pem: config.key_pem.clone() };
    cloud_interface::serve(listener, &identity, &config.ca_pem, Arc::new(local.clone()), &tasks)?;
    say_ready(&CloudReady { rpc })?;
    stop_signal().await?;
    local.stop().await;
    tasks.stop(STOP_PATIENCE).await;
    Ok(())
}

/// A provider whose fleet was killed is still ending its machines when the next one starts.
async fn lock_in_turn(dir: &Path) -> Result<DirLock> {
    let deadline = tokio::time::Instant::now() + LOCK_PATIENCE;
    loop {
        match lock_dir(dir) {
            Err(_) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            locked => return locked,
        }
    }
}

async fn listen(address: SocketAddr, any_port_if_taken: bool) -> Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && any_port_if_taken => {
            TcpListener::bind(SocketAddr::new(address.ip(), 0)).await
        }
        bound => bound,
    };
    bound.with_context(|| format!("cannot listen on {address}"))
}

/// SIGTERM or SIGINT, whichever is first.
pub async fn stop_signal() -> Result<()> {
    StopSignals::listen()?.first().await;
    Ok(())
}

/// Hears them from when it is made, so that one that comes between two waits is not lost.
pub struct StopSignals {
    term: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub fn listen() -> Result<StopSignals> {
        Ok(StopSignals {
            term: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    pub async fn first(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

pub async fn node(command: Node) -> Result<()> {
    let _telemetry = base_telemetry::init(&base_telemetry::Options::from_env("roadstead-node"))?;
    let (config, by_hand) = match command {
        Node::Run { config } => {
            let config = NodeConfig::read(&config)?;
            if config.own_namespaces {
                // Started by `up`: without its parent it would be in nobody's care.
                die_with_parent()?;
            }
            (config, false)
        }
        Node::Join(join) => {
            let options = JoinOptions {
                server: join.server,
                tls_server_name: join.tls_server_name,
                token: join.token,
                ca_file: join.ca_file,
                ca_cert_hashes: join.discovery_token_ca_cert_hash.into_iter().collect(),
                name: join.name,
                data_dir: join.data,
            };
            (node_agent::join(options).await?, true)
        }
    };
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let with_parent = config.stop_with_parent;
    tokio::spawn(async move {
        node_agent::stop_signal(with_parent).await;
        stopping.cancel();
    });
    let name = config.name.clone();
    let ready = move |address| {
        let said = match by_hand {
            true => {
                let mut out = std::io::stdout();
                writeln!(out, "node {name} ({address}) is ready; Ctrl-C stops the agent, its pods run on")
                    .map_err(anyhow::Error::from)
            }
            false => say_ready(&NodeReady { name }),
        };
        if let Err(error) = said {
            tracing::warn!("nobody hears that the node is ready: {error:#}");
        }
    };
    Ok(node_agent::run(config, stop, ready).await?)
}

fn read_config<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not a configuration", path.display()))
}
