//! The cloud provider of this machine, as a child.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use base_child::Recipe;
use base_files::{private_dir, read_text, write_private};
use base_net::pki::Ca;
use base_net::tasks::Tasks;
use fleet_cell::ProviderConfig;

use super::layout::Layout;
use super::nodes::Network;
use super::{identity, progress};
use crate::cli::Up;
use crate::service::CloudReady;

/// Starts `roadstead cloud-local` and answers where cells reach it. Without a network there are balancers
/// and no machines, and pools say so.
pub async fn start(
    options: &Up,
    layout: &Layout,
    ca: &Ca,
    network: Option<&Network>,
    binary: &Path,
    tasks: &Tasks,
) -> Result<ProviderConfig> {
    let dir = layout.cloud_local();
    private_dir(&dir)?;
    let config_file = dir.join("config.json");
    let known: Option<cloud_local::Config> = match read_text(&config_file)? {
        Some(text) => Some(serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged; restore it, or start on another folder", config_file.display())
        })?),
        None => None,
    };
    let certificate = identity(ca, cloud_interface::TLS_NAME, None)?;
    let gateway = match network {
        Some(network) => SocketAddr::new(network.host_address, options.gateway.port()),
        None => options.gateway,
    };
    let mut config = cloud_local::Config {
        listen: known.map_or(SocketAddr::from(([127, 0, 0, 1], 0)), |config| config.listen),
        any_port_if_taken: true,
        data_dir: dir,
        ca_pem: ca.cert_pem().to_owned(),
        cert_pem: certificate.cert_pem,
        key_pem: certificate.key_pem,
        bridge_of: network.map(|network| network.named_after.clone()),
        gateway,
        machines_max: cloud_local::default_machines_max(),
        machine_types: cloud_local::default_machine_types(),
        balancer_pool: cloud_local::pool_of(layout.root()),
    };
    write_private(&config_file, &serde_json::to_vec_pretty(&config)?)?;
    let recipe = Recipe {
        name: "cloud-local".to_owned(),
        program: binary.to_owned(),
        arguments: vec!["cloud-local".to_owned(), "--config".to_owned(), config_file.display().to_string()],
        log: layout.log("cloud-local"),
    };
    // The port is fixed from here on, so that one that was started again is where cells look for it.
    let (CloudReady { rpc }, _running) = recipe.keep_running(tasks).await?;
    config.listen = rpc;
    config.any_port_if_taken = false;
    write_private(&config_file, &serde_json::to_vec_pretty(&config)?)?;
    progress("provider local serving");
    Ok(ProviderConfig { name: cloud_local::NAME.to_owned(), address: rpc })
}
