//! The cloud providers: the one of this machine, as a child, and those that somebody else runs.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context, Result};
use base_child::Recipe;
use base_files::{private_dir, read_text, write_private};
use base_net::pki::{Ca, Issued, Profile, YEAR};
use base_net::tasks::Tasks;
use cloud_interface::{IDENTITY_FILE, Identity, TLS_NAME};
use fleet_cell::ProviderConfig;

use super::ca::{kept_or_issued, profile};
use super::layout::Layout;
use super::nodes::Network;
use super::progress;
use crate::cli::Up;
use crate::client::exit::Mistake;
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
    let kept = known
        .as_ref()
        .map(|known| Issued { cert_pem: known.cert_pem.clone(), key_pem: known.key_pem.clone() });
    let certificate = kept_or_issued(ca, &profile(TLS_NAME, Vec::new(), None), kept)?;
    let gateway = match network {
        Some(network) => SocketAddr::new(network.host_address, options.gateway.port()),
        None => options.gateway,
    };
    let listen = known.map_or(SocketAddr::from(([127, 0, 0, 1], 0)), |config| config.listen);
    let mut config = cloud_local::Config {
        listen,
        // Where nobody has taken it, this is what is written down already.
        any_port_if_taken: TcpListener::bind(listen).is_err(),
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

/// What is wrong with the providers that somebody asked for, before anything is started.
pub fn check(options: &Up) -> Result<()> {
    if options.clouds.iter().any(|one| one.name == cloud_local::NAME) {
        let why = format!(
            "--cloud {0}=…: {0} is the provider of this machine, which is there already; choose another name",
            cloud_local::NAME
        );
        return Err(Mistake::Usage(why).into());
    }
    ProviderConfig::check_all(&options.clouds).map_err(|why| Mistake::Usage(format!("--cloud: {why}")).into())
}

/// Writes down what the providers of `--cloud` need to be let in. They may run already, or later, or on
/// another machine: cells look for them until they are there.
pub fn further(options: &Up, layout: &Layout, ca: &Ca) -> Result<Vec<ProviderConfig>> {
    for provider in &options.clouds {
        let dir = layout.clouds().join(&provider.name);
        private_dir(&dir)?;
        let file = dir.join(IDENTITY_FILE);
        let known: Option<Identity> = read_text(&file)?.and_then(|text| serde_json::from_str(&text).ok());
        let kept = known.map(|known| Issued { cert_pem: known.cert_pem, key_pem: known.key_pem });
        // For serving only: nobody in the fleet is asked by a provider.
        let wanted = Profile {
            common_name: TLS_NAME.to_owned(),
            organizations: vec!["roadstead".to_owned()],
            dns_names: vec![TLS_NAME.to_owned()],
            ip_addresses: vec![provider.address.ip()],
            server: true,
            client: false,
            lifetime: YEAR,
        };
        let issued = kept_or_issued(ca, &wanted, kept)?;
        let identity = Identity {
            name: provider.name.clone(),
            address: provider.address,
            ca_pem: ca.cert_pem().to_owned(),
            cert_pem: issued.cert_pem,
            key_pem: issued.key_pem,
        };
        write_private(&file, &serde_json::to_vec_pretty(&identity)?)?;
        progress(&format!(
            "provider {} is looked for at {}; its identity is in {}",
            provider.name,
            provider.address,
            file.display()
        ));
    }
    for name in forgotten(options, layout) {
        progress(&format!(
            "provider {name} was there before: what clusters have there waits for --cloud {name}=IP:PORT \
             (remove {} to hear no more of it)",
            layout.clouds().join(&name).display()
        ));
    }
    Ok(options.clouds.clone())
}

/// Providers of earlier starts that this one was not given.
fn forgotten(options: &Up, layout: &Layout) -> Vec<String> {
    let folders = std::fs::read_dir(layout.clouds()).into_iter().flatten().flatten();
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| !options.clouds.iter().any(|one| one.name == *name)).collect();
    names.sort();
    names
}
