//! One cluster in memory on a free loopback port, for trying `kubectl` against.
//!
//! `cargo run -p tenant-apiserver --example serve -- /tmp/kubeconfig` writes the kubeconfig and serves until it
//! is interrupted. Nothing is kept, no controller and no scheduler runs.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use base_clock::SystemClock;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use store_mvcc::Limits;
use store_raft::Group;
use tenant_apiserver::{Config, ControlPlane};
use tenant_auth::{ClusterPki, kubeconfig, policy};
use tenant_registry::bootstrap;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let path = std::env::args().nth(1).context("usage: serve KUBECONFIG")?;
    let tenant = TenantId::generate();
    let clock = SystemClock::shared();
    let pki = ClusterPki::generate()?;
    let group = Group::in_memory(Limits::default());
    let first = bootstrap::command(&bootstrap::Options {
        now: clock.now(),
        keys: pki.to_entries(),
        client_ca_pem: pki.ca_pem().to_owned(),
        front_proxy_ca_pem: pki.front_proxy_ca().cert_pem().to_owned(),
        defaults: policy::default_objects(),
    })?;
    group.write(first).await?;
    let server_name = format!("{}.roadstead.local", tenant.dns_label());
    let tasks = Tasks::new();
    let plane = ControlPlane::start(Config {
        tenant,
        group,
        pki: pki.clone(),
        clock,
        dialer: None,
        egress: tenant_outbound::Egress::new(&tenant_outbound::EgressConfig::default())?,
        mount: None,
        dns_names: vec![server_name.clone()],
        ip_addresses: Vec::new(),
        tasks: tasks.clone(),
    })?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let identity =
        pki.issue_client("kubernetes-admin", &["system:masters"], Duration::from_secs(24 * 3600))?;
    let config = kubeconfig(
        "demo",
        &format!("https://{address}"),
        Some(&server_name),
        pki.ca_pem(),
        "admin",
        &identity,
    );
    std::fs::write(&path, config).with_context(|| format!("cannot write {path}"))?;
    println!("serving https://{address} as {server_name}; kubeconfig in {path}");
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                let plane = plane.clone();
                tasks.spawn(async move {
                    if let Err(error) = plane.accept(stream).await {
                        tracing::debug!(%error, "connection refused");
                    }
                });
            }
            stopped = tokio::signal::ctrl_c() => {
                stopped?;
                break;
            }
        }
    }
    tasks.stop(Duration::from_secs(5)).await;
    Ok(())
}
