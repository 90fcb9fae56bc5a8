//! A machine that carries several nodes: one bridge, one network namespace per node.
//!
//! [`HostNetwork::create`] sweeps what an earlier run of the same data directory left, then makes the
//! bridge; [`HostNetwork::attach`] finds one that another process made; [`HostNetwork::add_node`] makes a
//! node's namespace with its address. The machine reaches the
//! nodes and they it (at [`HostNetwork::gateway`]) over the bridge.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tracing::{debug, info, warn};

use crate::{CommandError, RunId, Subnet, cgroups, run};

/// Where runs take their /24 from.
pub const DEFAULT_RANGE: &str = "172.31.240.0/20";

/// Nodes per run: addresses .10 to .209 of the run's /24.
pub const NODES_MAX: u8 = 200;
const FIRST_NODE: u32 = 10;

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("local nodes need root")]
    NotRoot,
    #[error("no free /24 in {range} for the bridge of this run; other runs hold them all")]
    NoRange { range: Subnet },
    #[error("there is no bridge {bridge}: whoever was to make it is gone")]
    NoBridge { bridge: String },
    #[error("{index} is not a node number: at most {NODES_MAX} nodes per machine")]
    TooMany { index: u8 },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{what} cannot be written")]
    Sysctl {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error("`ip -json` printed something else")]
    Output(#[source] serde_json::Error),
}

/// The bridge of one run and what hangs on it.
#[derive(Debug, Clone)]
pub struct HostNetwork {
    run: RunId,
    subnet: Subnet,
    gateway: Ipv4Addr,
}

/// A namespace made for a node.
#[derive(Debug, Clone)]
pub struct NodeNetwork {
    /// As in `ip netns list`.
    pub netns: String,
    pub address: Ipv4Addr,
    pub gateway: Ipv4Addr,
    pub subnet: Subnet,
}

impl HostNetwork {
    /// The bridge of this run, with a /24 of `range` that nobody on this machine uses. Sweeps first.
    pub async fn create(run_id: &RunId, range: Subnet) -> Result<HostNetwork, HostError> {
        if !rustix::process::geteuid().is_root() {
            return Err(HostError::NotRoot);
        }
        sweep(run_id).await?;
        let subnet = choose(range, run_id, &addresses_in_use().await?).ok_or(HostError::NoRange { range })?;
        let (Some(IpAddr::V4(gateway)), bridge) = (subnet.nth(1), bridge_name(run_id)) else {
            return Err(HostError::NoRange { range });
        };
        let network = HostNetwork { run: run_id.clone(), subnet, gateway };
        let address = format!("{gateway}/{}", subnet.prefix());
        run("ip", &["link", "add", &bridge, "type", "bridge"], None).await?;
        run("ip", &["addr", "add", &address, "dev", &bridge], None).await?;
        run("ip", &["link", "set", &bridge, "up"], None).await?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .map_err(|cause| HostError::Sysctl { what: "net.ipv4.ip_forward", cause })?;
        run("nft", &["-f", "-"], Some(&network.rules())).await?;
        info!(%bridge, %subnet, "bridge for local nodes is up");
        Ok(network)
    }

    /// The bridge of this run as [`HostNetwork::create`] made it in another process. Sweeps nothing.
    pub async fn attach(run_id: &RunId) -> Result<HostNetwork, HostError> {
        let bridge = bridge_name(run_id);
        let printed = match run("ip", &["-json", "addr", "show", "dev", &bridge], None).await {
            Ok(printed) => printed,
            Err(error) if error.said("does not exist") => return Err(HostError::NoBridge { bridge }),
            Err(error) => return Err(error.into()),
        };
        let links: Vec<LinkAddresses> = serde_json::from_str(&printed).map_err(HostError::Output)?;
        let own = links.into_iter().flat_map(|link| link.addr_info).find_map(|one| {
            let (Some(IpAddr::V4(gateway)), Some(prefix)) = (one.local, one.prefixlen) else { return None };
            Some((gateway, Subnet::new(IpAddr::V4(gateway), prefix)?))
        });
        let (gateway, subnet) = own.ok_or(HostError::NoBridge { bridge })?;
        Ok(HostNetwork { run: run_id.clone(), subnet, gateway })
    }

    /// The machine's own address on the bridge: where nodes reach the gateway process.
    pub fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }
    pub fn subnet(&self) -> Subnet {
        self.subnet
    }
    pub fn run_id(&self) -> &RunId {
        &self.run
    }

    /// The address node number `index` has or will have.
    pub fn node_address(&self, index: u8) -> Result<Ipv4Addr, HostError> {
        match self.subnet.nth(FIRST_NODE + u32::from(index)) {
            Some(IpAddr::V4(address)) if index < NODES_MAX => Ok(address),
            _ => Err(HostError::TooMany { index }),
        }
    }

    /// A network namespace with an address on the bridge and a default route through it.
    pub async fn add_node(&self, index: u8) -> Result<NodeNetwork, HostError> {
        let address = self.node_address(index)?;
        let (netns, bridge) = (netns_name(&self.run, index), bridge_name(&self.run));
        let link = format!("{}v{index}", prefix(&self.run));
        let [a, b, c, d] = address.octets();
        // From the address, so that neighbours' caches stay right when a node is made anew.
        let mac = format!("02:52:{a:02x}:{b:02x}:{c:02x}:{d:02x}");
        let with_prefix = format!("{address}/{}", self.subnet.prefix());
        let gateway = self.gateway.to_string();
        run("ip", &["netns", "add", &netns], None).await?;
        let peer = ["type", "veth", "peer", "name", "eth0", "address", &mac, "netns", &netns];
        run("ip", &[&["link", "add", &link][..], &peer[..]].concat(), None).await?;
        run("ip", &["link", "set", &link, "master", &bridge, "up"], None).await?;
        for step in [
            &["link", "set", "lo", "up"][..],
            &["addr", "add", &with_prefix, "dev", "eth0"],
            &["link", "set", "eth0", "up"],
            &["route", "add", "default", "via", &gateway],
        ] {
            run("ip", &[&["-n", &netns][..], step].concat(), None).await?;
        }
        Ok(NodeNetwork { netns, address, gateway: self.gateway, subnet: self.subnet })
    }

    /// Ends everything in the node's namespace and removes it.
    pub async fn remove_node(&self, index: u8) -> Result<(), HostError> {
        remove_netns(&netns_name(&self.run, index)).await
    }

    /// Removes namespaces, bridge and rules.
    pub async fn remove(&self) -> Result<(), HostError> {
        sweep(&self.run).await
    }

    /// What leaves the machine takes its address, since nobody outside knows the way back.
    fn rules(&self) -> String {
        let (table, bridge, subnet) = (table_name(&self.run), bridge_name(&self.run), self.subnet);
        format!(
            "add table ip {table}\ndelete table ip {table}\ntable ip {table} {{\n\
             \tchain postrouting {{\n\
             \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
             \t\tip saddr {subnet} ip daddr != {subnet} oifname != \"{bridge}\" masquerade\n\
             \t}}\n}}\n"
        )
    }
}

/// Removes what a run of this id left on the machine: processes in its namespaces and cgroups, the
/// namespaces, the bridge, the rules. Nothing there is fine.
pub async fn sweep(run_id: &RunId) -> Result<(), HostError> {
    let wanted = format!("{}n", prefix(run_id));
    for line in run("ip", &["netns", "list"], None).await?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        if name.strip_prefix(&wanted).is_some_and(|rest| rest.parse::<u8>().is_ok()) {
            debug!(netns = name, "sweeping");
            remove_netns(name).await?;
        }
    }
    cgroups::sweep(&cgroups::parent_of(run_id)).await;
    ignore_absent(run("ip", &["link", "delete", &bridge_name(run_id)], None).await, "Cannot find device")?;
    let table = table_name(run_id);
    // Created first so that deleting succeeds whether it was there or not.
    run("nft", &["-f", "-"], Some(&format!("add table ip {table}\ndelete table ip {table}\n"))).await?;
    Ok(())
}

async fn remove_netns(netns: &str) -> Result<(), HostError> {
    // A few rounds: whoever forks while being listed is caught in the next one.
    for _ in 0..20 {
        let pids = match run("ip", &["netns", "pids", netns], None).await {
            Ok(pids) => pids,
            Err(error) if error.said("No such file") => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let pids: Vec<i32> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        if pids.is_empty() {
            break;
        }
        for pid in pids {
            // Gone already is what we want.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    match run("ip", &["netns", "delete", netns], None).await {
        Err(error) if !error.said("No such file") => {
            warn!(%error, "network namespace stays behind");
            Err(error.into())
        }
        _ => Ok(()),
    }
}

fn ignore_absent(result: Result<String, CommandError>, words: &str) -> Result<(), CommandError> {
    match result {
        Err(error) if !error.said(words) => Err(error),
        _ => Ok(()),
    }
}

/// Interface names end at 15 bytes: `rs` + 6 + `v` + 3.
fn prefix(run_id: &RunId) -> String {
    format!("rs{run_id}")
}
fn bridge_name(run_id: &RunId) -> String {
    format!("{}br0", prefix(run_id))
}
fn netns_name(run_id: &RunId, index: u8) -> String {
    format!("{}n{index}", prefix(run_id))
}
fn table_name(run_id: &RunId) -> String {
    format!("roadstead-{run_id}")
}

/// The first free /24, looked for from a place that depends on the run, so that a restart finds the same.
fn choose(range: Subnet, run_id: &RunId, used: &[Subnet]) -> Option<Subnet> {
    let parts: Vec<Subnet> = range.parts(24).collect();
    let start = usize::from_str_radix(run_id.as_str(), 16).unwrap_or(0) % parts.len().max(1);
    let rotated = parts[start..].iter().chain(&parts[..start]);
    rotated.copied().find(|part| !used.iter().any(|used| used.overlaps(part)))
}

#[derive(Deserialize)]
struct LinkAddresses {
    #[serde(default)]
    addr_info: Vec<AddressInfo>,
}
#[derive(Deserialize)]
struct AddressInfo {
    local: Option<IpAddr>,
    prefixlen: Option<u8>,
}

async fn addresses_in_use() -> Result<Vec<Subnet>, HostError> {
    let printed = run("ip", &["-json", "addr", "show"], None).await?;
    let links: Vec<LinkAddresses> = serde_json::from_str(&printed).map_err(HostError::Output)?;
    let addresses = links.into_iter().flat_map(|link| link.addr_info);
    Ok(addresses.filter_map(|one| Subnet::new(one.local?, one.prefixlen?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_share_the_range_without_sharing_a_part() {
        let range: Subnet = DEFAULT_RANGE.parse().unwrap();
        let run_id = RunId("000001".to_owned());
        let nets = |given: &[&str]| given.iter().map(|net| net.parse().unwrap()).collect::<Vec<Subnet>>();
        for (used, chosen) in [
            (nets(&[]), Some("172.31.241.0/24")),
            (nets(&["172.31.241.0/24"]), Some("172.31.242.0/24")),
            (nets(&["172.31.241.5/32", "172.31.242.0/23"]), Some("172.31.244.0/24")),
            (nets(&["172.31.0.0/16"]), None),
            (nets(&["10.0.0.0/8"]), Some("172.31.241.0/24")),
        ] {
            let found = choose(range, &run_id, &used).map(|subnet| subnet.to_string());
            assert_eq!(found.as_deref(), chosen, "{used:?}");
        }
    }

    #[test]
    fn names_fit_an_interface() {
        let run_id = RunId("abcdef".to_owned());
        assert!(format!("{}v{NODES_MAX}", prefix(&run_id)).len() <= 15);
        assert!(bridge_name(&run_id).len() <= 15);
    }
}
