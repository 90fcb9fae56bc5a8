//! A whole fleet on this machine: manager in this process, gateway, cells and nodes as children.

mod belonging;
mod ca;
mod cloud;
pub mod layout;
mod nodes;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};
use base_clock::SystemClock;
use base_ids::{CellId, Slug};
use base_net::pki::{Ca, Issued};
use base_net::tasks::Tasks;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fleet_cell::{EgressConfig, ProviderConfig};
use fleet_client::{Client, ClientError};
use fleet_manager::{Manager, Place, Unserved};
use fleet_model::{Cluster, ClusterState, CreateCluster, CreateToken, Email, Hidden, Role};

use crate::cli::Up;
use crate::client::output::note;
use crate::service::{CellReady, GatewayReady, StopSignals};
use base_child::{Recipe, Running};
use base_files::{lock_dir, private_dir, read_text, write_private};

use ca::{identity, kept_or_issued, profile};
use layout::Layout;

/// Clusters a cell takes at most. DESIGN's aim is ten thousand on a small machine.
const CELL_CAPACITY: u32 = 10_000;

/// How long the demo cluster may take to serve after it was asked for.
const CLUSTER_PATIENCE: Duration = Duration::from_secs(30);

pub async fn run(options: Up) -> Result<()> {
    let started = Instant::now();
    cloud::check(&options)?;
    let layout = Layout::new(&absolute(&options.data)?);
    let _lock = lock_dir(layout.root())?;
    private_dir(&layout.logs())?;
    let mut telemetry = base_telemetry::Options::from_env("roadstead-manager");
    if std::env::var_os("ROADSTEAD_LOG").is_none() {
        // The foreground shows progress; what went well belongs in no log.
        telemetry.filter = "warn".to_owned();
    }
    let _telemetry = base_telemetry::init(&telemetry)?;

    // Innermost first: nodes end while their API server is still there, cells before the manager.
    let fleet = Fleet::default();
    let mut signals = StopSignals::listen()?;
    let outcome = tokio::select! {
        outcome = bring_up(&options, &layout, &fleet, started) => outcome.map(|()| true),
        // Once is enough: whoever stops it while it starts is not asked again.
        () = signals.first() => {
            note("stopped before everything was up");
            Ok(false)
        }
    };
    let outcome = match outcome {
        Ok(true) => {
            signals.first().await;
            progress("stopping");
            Ok(())
        }
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    fleet.stop().await;
    outcome
}

/// Everything that runs, in the groups that end one after the other.
#[derive(Default)]
struct Fleet {
    managers: Tasks,
    cells: Tasks,
    gateway: Tasks,
    nodes: Tasks,
    clouds: Tasks,
    network: OnceLock<nodes::Network>,
}

impl Fleet {
    async fn stop(&self) {
        for group in [&self.nodes, &self.clouds, &self.gateway, &self.cells, &self.managers] {
            if !group.stop(Duration::from_secs(30)).await {
                tracing::warn!("something is still running after 30 s");
            }
        }
        if let Some(network) = self.network.get() {
            network.remove().await;
        }
    }
}

async fn bring_up(options: &Up, layout: &Layout, fleet: &Fleet, started: Instant) -> Result<()> {
    let place = options.database.clone().unwrap_or_else(|| Place::Sqlite(layout.database()));
    belonging::settle(layout, &place, options.adopt_database).await?;
    let ca = ca::fleet_ca(layout)?;
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let network = nodes::prepare(options, layout).await?.map(|network| fleet.network.get_or_init(|| network));

    let mut gateways = vec![options.gateway];
    gateways.extend(network.map(|network| SocketAddr::new(network.host_address, options.gateway.port())));
    let manager = start_manager(options, place, layout, &ca, &gateways, &fleet.managers).await?;
    let provider = cloud::start(options, layout, &ca, network, &binary, &fleet.clouds).await?;
    // The first one is for clusters that name none.
    let providers = [vec![provider], cloud::further(options, layout, &ca)?].concat();
    let mut unserved = Vec::new();
    for number in 1..=options.cells {
        let cells = &fleet.cells;
        unserved
            .extend(start_cell(options, number, layout, &ca, &binary, &manager, &providers, cells).await?);
    }
    progress(&format!("{} cell{} serving", options.cells, if options.cells == 1 { "" } else { "s" }));
    start_gateway(layout, &ca, &binary, &manager, &gateways, &fleet.gateway).await?;
    progress(&format!("gateway on {}", options.gateway));
    let client = admin(layout, &ca, &manager).await?;
    operator(layout, &manager).await?;
    progress(&format!("manager on https://{}", manager.rest_address));
    progress(&if fleet_console::is_built() {
        let password = layout.admin_password();
        format!(
            "console on https://{}: sign in as {OPERATOR}, password in {}",
            manager.rest_address,
            password.display()
        )
    } else {
        "no console in this binary: `cargo xtask console` builds it for the next one".to_owned()
    });

    let demo = if options.no_demo { None } else { demo_to_serve(options, &client, &unserved).await? };
    let Some(cluster) = demo else {
        say(&format!(
            "ready in {:.1} s: manager https://{}, gateway {}, token {}",
            started.elapsed().as_secs_f64(),
            manager.rest_address,
            options.gateway,
            layout.admin_token().display(),
        ));
        say(&format!("try next:\n  {} org create acme --data {}", binary.display(), layout.root().display()));
        say(&format!(
            "  {} cluster create blue --org acme --data {}",
            binary.display(),
            layout.root().display()
        ));
        say(&format!("  {} cluster list --org acme --data {}", binary.display(), layout.root().display()));
        return Ok(());
    };
    let kubeconfig = demo_kubeconfig(options, layout, &client, &cluster).await?;
    progress("cluster demo serving");
    if let Some(network) = network {
        nodes::start(options, layout, network, &client, &cluster, &binary, &fleet.nodes).await?;
    }
    say(&format!(
        "ready in {:.1} s: manager https://{}, gateway {}, token {}, kubeconfig {}",
        started.elapsed().as_secs_f64(),
        manager.rest_address,
        options.gateway,
        layout.admin_token().display(),
        kubeconfig.display(),
    ));
    say("try next:");
    say(&format!("  export KUBECONFIG={}", kubeconfig.display()));
    say("  kubectl create deployment web --image=roadstead.local/demo:1 --replicas=3");
    say(&format!("  {} cluster create acme --data {}", binary.display(), layout.root().display()));
    Ok(())
}

async fn start_manager(
    options: &Up,
    database: Place,
    layout: &Layout,
    ca: &Ca,
    gateways: &[SocketAddr],
    tasks: &Tasks,
) -> Result<Manager> {
    let config = fleet_manager::Config {
        listen: options.manager,
        rpc_listen: last_rpc_address(layout),
        database,
        https: identity(ca, "manager", Some(options.manager))?,
        fleet_ca_pem: ca.cert_pem().to_owned(),
        fleet: identity(ca, "manager", None)?,
        gateway_addresses: gateways.to_vec(),
    };
    let manager = Manager::start(config, SystemClock::shared(), tasks).await?;
    write_private(&layout.manager_url(), format!("https://{}\n", manager.rest_address).as_bytes())?;
    Ok(manager)
}

/// Where the manager's gRPC was the last time, if that is free: then nothing that names it has to be written again,
/// which a full disk would not take.
fn last_rpc_address(layout: &Layout) -> SocketAddr {
    let known = read_text(&layout.gateway().join("config.json")).ok().flatten();
    let known = known.and_then(|text| serde_json::from_str::<fleet_gateway::Config>(&text).ok());
    known
        .map(|config| config.manager)
        .filter(|address| address.ip().is_loopback() && std::net::TcpListener::bind(address).is_ok())
        .unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)))
}

#[allow(clippy::too_many_arguments)] // Everything a cell is made of, once.
async fn start_cell(
    options: &Up,
    number: u8,
    layout: &Layout,
    ca: &Ca,
    binary: &Path,
    manager: &Manager,
    providers: &[ProviderConfig],
    tasks: &Tasks,
) -> Result<Vec<Unserved>> {
    let dir = layout.cell(number);
    private_dir(&dir)?;
    let config_file = dir.join("config.json");
    let known: Option<fleet_cell::Config> = match read_text(&config_file)? {
        Some(text) => Some(serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged; restore it, or start on another folder", config_file.display())
        })?),
        None => None,
    };
    // The id outlives restarts: clusters are assigned to it. Other cells know this one by its certificate.
    let id = known.as_ref().map_or_else(CellId::generate, |config| config.id);
    let wanted = profile("cell", vec![fleet_cell::certificate_name(id)], None);
    let kept = known
        .as_ref()
        .map(|known| Issued { cert_pem: known.cert_pem.clone(), key_pem: known.key_pem.clone() });
    let certificate = kept_or_issued(ca, &wanted, kept)?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = fleet_cell::Config {
        id,
        data_dir: dir,
        // Where it was the last time, if it can: a gateway that has lost its manager still finds it then.
        rpc_listen: known.as_ref().map_or(any_port, |config| config.rpc_listen),
        api_listen: known.as_ref().map_or(any_port, |config| config.api_listen),
        any_port_if_taken: true,
        egress: EgressConfig {
            allow: options.egress_allow.clone(),
            refuse: Vec::new(),
            never: vec![manager.rest_address, manager.rpc_address],
        },
        providers: providers.to_vec(),
        ca_pem: ca.cert_pem().to_owned(),
        cert_pem: certificate.cert_pem,
        key_pem: certificate.key_pem,
    };
    write_private(&config_file, &serde_json::to_vec_pretty(&config)?)?;
    let name: Slug = format!("cell-{number}").parse()?;
    let recipe = Recipe {
        name: name.to_string(),
        program: binary.to_owned(),
        arguments: vec!["cell".to_owned(), "--config".to_owned(), config_file.display().to_string()],
        log: layout.log(name.as_str()),
    };
    let (ready, Running { ready: mut again }): (CellReady, _) = recipe.keep_running(tasks).await?;
    let unserved = manager.register_cell(config.id, &name, ready.rpc, ready.api, CELL_CAPACITY).await?;
    tell_unserved(&name, &unserved);
    (config.rpc_listen, config.api_listen) = (ready.rpc, ready.api);
    write_private(&config_file, &serde_json::to_vec_pretty(&config)?)?;
    // A cell that was started again may listen elsewhere.
    let (manager, name, id) = (manager.clone(), name.clone(), config.id);
    tasks.spawn(async move {
        while let Some(ready) = again.recv().await {
            match manager.register_cell(id, &name, ready.rpc, ready.api, CELL_CAPACITY).await {
                Ok(unserved) => tell_unserved(&name, &unserved),
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, cell = %name, "not registered");
                }
            }
        }
    });
    Ok(unserved)
}

/// One cluster's damage is not the others' (DESIGN §9), and whoever watches hears of it.
fn tell_unserved(cell: &Slug, unserved: &[Unserved]) {
    for one in unserved {
        progress(&format!(
            "{cell} does not serve cluster {} of {} ({}): {}",
            one.name, one.organization, one.cluster, one.why
        ));
    }
}

async fn start_gateway(
    layout: &Layout,
    ca: &Ca,
    binary: &Path,
    manager: &Manager,
    listen: &[SocketAddr],
    tasks: &Tasks,
) -> Result<()> {
    let dir = layout.gateway();
    private_dir(&dir)?;
    let config_file = dir.join("config.json");
    // One that cannot be read is simply written anew: nothing in it has to last.
    let known: Option<fleet_gateway::Config> =
        read_text(&config_file)?.and_then(|text| serde_json::from_str(&text).ok());
    let kept = known.map(|known| Issued { cert_pem: known.cert_pem, key_pem: known.key_pem });
    let certificate = kept_or_issued(ca, &profile("gateway", Vec::new(), None), kept)?;
    let config = fleet_gateway::Config {
        listen: listen.to_vec(),
        manager: manager.rpc_address,
        ca_pem: ca.cert_pem().to_owned(),
        cert_pem: certificate.cert_pem,
        key_pem: certificate.key_pem,
        state_file: dir.join("routes.json"),
    };
    write_private(&config_file, &serde_json::to_vec_pretty(&config)?)?;
    let recipe = Recipe {
        name: "gateway".to_owned(),
        program: binary.to_owned(),
        arguments: vec!["gateway".to_owned(), "--config".to_owned(), config_file.display().to_string()],
        log: layout.log("gateway"),
    };
    let (GatewayReady {}, _running) = recipe.keep_running(tasks).await?;
    Ok(())
}

/// The manager's API with the provider's token, which is made at the first start.
async fn admin(layout: &Layout, ca: &Ca, manager: &Manager) -> Result<Client> {
    let known = read_text(&layout.admin_token())?;
    let token = match known {
        Some(token) if manager.accepts(token.trim()).await? => token,
        _ => {
            let request = CreateToken {
                description: "made by `roadstead up`".to_owned(),
                role: Role::Provider,
                organization: None,
                cluster: None,
                expires_in_seconds: None,
            };
            let secret = manager.create_token(&request).await?.secret;
            write_private(&layout.admin_token(), format!("{secret}\n").as_bytes())?;
            secret
        }
    };
    Ok(Client::new(&format!("https://{}", manager.rest_address), ca.cert_pem(), &token)?)
}

/// Who signs in to the console of a fleet that has just been made.
const OPERATOR: &str = "admin@roadstead.local";

/// Makes the operator, with a password that is found in `admin.password`.
async fn operator(layout: &Layout, manager: &Manager) -> Result<()> {
    let email: Email = OPERATOR.parse()?;
    if manager.has_user(&email).await? {
        return Ok(());
    }
    let file = layout.admin_password();
    // An account of another database may have it: what was written down once stays true.
    let password = match read_text(&file)? {
        Some(kept) => kept.trim().to_owned(),
        None => {
            let mut bytes = [0u8; 18];
            File::open("/dev/urandom")
                .and_then(|mut file| file.read_exact(&mut bytes))
                .context("no random bytes")?;
            let fresh = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            // The file first: a password that is nowhere to be read would lock everybody out.
            write_private(&file, format!("{fresh}\n").as_bytes())?;
            fresh
        }
    };
    manager.create_operator(&email, "Operator", &Hidden::new(password)).await.with_context(|| {
        format!("{} is to become the password of {OPERATOR}; remove it for a new one", file.display())
    })
}

fn demo() -> Result<Slug> {
    Ok("demo".parse()?)
}

/// The demo cluster, unless none of its cells can serve it: the others' clusters are up all the same.
async fn demo_to_serve(options: &Up, client: &Client, unserved: &[Unserved]) -> Result<Option<Cluster>> {
    // Where there are three cells, the demo shows what they are for.
    let replicas = (options.cells >= 3).then_some(3);
    let cluster = demo_cluster(client, replicas).await?;
    let damaged = unserved.iter().filter(|one| one.cluster == cluster.id).count();
    if damaged > 0 && damaged >= cluster.cells.len() {
        progress("cluster demo is not served, and gets no nodes; everything else is");
        return Ok(None);
    }
    Ok(Some(cluster))
}

/// The cluster `demo` of the organisation `demo`, both made when missing.
async fn demo_cluster(client: &Client, replicas: Option<u8>) -> Result<Cluster> {
    let name = demo()?;
    let conflict =
        |error: &ClientError| matches!(error, ClientError::Problem(problem) if problem.status == 409);
    // A fleet that is full, or not all back yet, takes no new cluster; it need not, when this one is there.
    match client.cluster(&name, &name).await {
        Ok(_) => {}
        Err(error) if error.is_not_found() => {
            match client.create_organization(&name).await {
                Ok(_) => {}
                Err(error) if conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
            let request = CreateCluster { replicas, ..CreateCluster::named(name.clone()) };
            client.create_cluster(&name, &request).await?;
        }
        Err(error) => return Err(error.into()),
    }
    let deadline = Instant::now() + CLUSTER_PATIENCE;
    loop {
        let cluster = client.cluster(&name, &name).await?;
        if cluster.state == ClusterState::Ready {
            return Ok(cluster);
        }
        if Instant::now() > deadline {
            return Err(anyhow!(
                "the cluster demo is still {} after {CLUSTER_PATIENCE:?}",
                cluster.state.as_str()
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Kept while it names the same cluster at the same gateway and is good for a while; people may have copied it.
async fn demo_kubeconfig(
    options: &Up,
    layout: &Layout,
    client: &Client,
    cluster: &Cluster,
) -> Result<PathBuf> {
    let path = layout.demo_kubeconfig();
    let kept = read_text(&path)?.is_some_and(|text| is_current(&text, options.gateway, &cluster.server_name));
    if !kept {
        let fresh = client.kubeconfig(&cluster.organization, &cluster.name).await?.kubeconfig;
        write_private(&path, fresh.as_bytes())?;
    }
    Ok(path)
}

/// A kubeconfig with less left is made anew at a start.
const KUBECONFIG_LEFT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Whether `kubeconfig` leads to this cluster at this gateway, with a certificate that lasts for some time.
fn is_current(kubeconfig: &str, gateway: SocketAddr, server_name: &str) -> bool {
    let Ok(parsed) = serde_yaml::from_str::<serde_yaml::Value>(kubeconfig) else { return false };
    let cluster = &parsed["clusters"][0]["cluster"];
    let certificate = parsed["users"][0]["user"]["client-certificate-data"].as_str().unwrap_or_default();
    let left = STANDARD
        .decode(certificate)
        .ok()
        .and_then(|pem| base_net::pki::ends_at(&String::from_utf8_lossy(&pem)))
        .and_then(|end| end.duration_since(SystemTime::now()).ok());
    cluster["server"].as_str() == Some(&format!("https://{gateway}"))
        && cluster["tls-server-name"].as_str() == Some(server_name)
        && left.is_some_and(|left| left > KUBECONFIG_LEFT)
}

pub(crate) fn progress(what: &str) {
    say(&format!("· {what}"));
}

/// One line for whoever watches. That may be nobody any more, which is no reason to end a fleet.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn absolute(path: &Path) -> Result<PathBuf> {
    // One that is there may be anybody's (`--data /tmp`): what has to be private below it is so by itself.
    if !path.is_dir() {
        private_dir(path)?;
    }
    fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_comes_back_where_it_was_if_it_can() {
        let dir = std::env::temp_dir().join(format!("roadstead-up-{}", std::process::id()));
        let layout = Layout::new(&dir);
        std::fs::create_dir_all(layout.gateway()).unwrap();
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        assert_eq!(last_rpc_address(&layout), any_port, "it was nowhere yet");
        let file = layout.gateway().join("config.json");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(last_rpc_address(&layout), any_port, "nobody knows where it was");

        let taken = std::net::TcpListener::bind(any_port).unwrap();
        let config = fleet_gateway::Config {
            listen: Vec::new(),
            manager: taken.local_addr().unwrap(),
            ca_pem: String::new(),
            cert_pem: String::new(),
            key_pem: String::new(),
            state_file: dir.join("routes.json"),
        };
        std::fs::write(&file, serde_json::to_vec(&config).unwrap()).unwrap();
        assert_eq!(last_rpc_address(&layout), any_port, "somebody else is there");
        drop(taken);
        assert_eq!(last_rpc_address(&layout), config.manager);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
