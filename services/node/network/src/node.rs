//! What a node's process does to its own namespaces before anything else starts, and undoes at the end.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::mount::{MsFlags, mount};

use crate::{CommandError, Subnet, run};

#[derive(Debug, thiserror::Error)]
pub enum NodeNetworkError {
    #[error("{what} failed")]
    System {
        what: String,
        #[source]
        cause: io::Error,
    },
    #[error(
        "this kernel lacks nftables NAT (CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, CONFIG_NFT_MASQ): {said}"
    )]
    NoNftables { said: String },
    #[error(transparent)]
    Command(#[from] CommandError),
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> NodeNetworkError {
    let what = what.into();
    move |cause| NodeNetworkError::System { what, cause }
}

/// Makes the mount and UTS namespaces this process was started in its own: mounts spread no further, /run
/// is empty, CNI's cache lies below `cache_dir`, the host name is `name`.
///
/// Only for a process started by [`crate::launch`]: on a machine's own namespaces this would hide /run.
pub fn isolate(name: &str, cache_dir: &Path) -> Result<(), NodeNetworkError> {
    if !has_own_namespaces() {
        return Err(NodeNetworkError::System {
            what: "making this node's namespaces its own".to_owned(),
            cause: io::Error::other(
                "the process shares its parent's mounts, or cannot tell; start it by `roadstead up`",
            ),
        });
    }
    let none = None::<&str>;
    // Private first, so that nothing reaches the machine; shared among the node's own children after, so
    // that mounts pods make with Bidirectional propagation are seen by the others.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none))
        .map_err(|errno| system("taking over the mount namespace")(errno.into()))?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=755"))
        .map_err(|errno| system("mounting an own /run")(errno.into()))?;
    std::fs::create_dir_all("/run/lock").map_err(system("making /run/lock"))?;
    std::fs::create_dir_all("/run/netns").map_err(system("making /run/netns"))?;
    std::fs::create_dir_all("/var/lib/cni").map_err(system("making /var/lib/cni"))?;
    std::fs::create_dir_all(cache_dir).map_err(system(format!("making {}", cache_dir.display())))?;
    mount(Some(cache_dir), "/var/lib/cni", none, MsFlags::MS_BIND, none)
        .map_err(|errno| system("binding /var/lib/cni")(errno.into()))?;
    rustix::system::sethostname(name.as_bytes())
        .map_err(|errno| system("setting the host name")(errno.into()))
}

/// Whether this process has other mounts and another host name than whoever started it.
///
/// Only a clear yes is one: what follows would hide the machine's /run and change its host name. Process 1
/// would be the wrong one to compare with, since its namespaces may be hidden from us.
fn has_own_namespaces() -> bool {
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().to_string());
    let Some(parent) = parent else { return false };
    let of = |pid: &str, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    ["mnt", "uts"].into_iter().all(|kind| match (of("self", kind), of(&parent, kind)) {
        (Some(ours), Some(parents)) => ours != parents,
        (_, _) => false,
    })
}

/// Lets this namespace forward packets, and finds out now rather than at the first Service whether the
/// kernel can translate addresses.
pub async fn prepare() -> Result<(), NodeNetworkError> {
    for (key, value) in [("net/ipv4/ip_forward", "1"), ("net/ipv4/conf/all/rp_filter", "2")] {
        std::fs::write(format!("/proc/sys/{key}"), value).map_err(system(format!("setting {key}")))?;
    }
    // A machine without IPv6 is a fine IPv4 node.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
    let probe = "add table inet roadstead-probe\n\
        add chain inet roadstead-probe nat { type nat hook postrouting priority srcnat; }\n\
        add rule inet roadstead-probe nat ip saddr 192.0.2.1 masquerade\n\
        delete table inet roadstead-probe\n";
    match run("nft", &["-f", "-"], Some(probe)).await {
        Err(CommandError::Failed { said, .. }) => Err(NodeNetworkError::NoNftables { said }),
        other => other.map(drop).map_err(Into::into),
    }
}

/// Which traffic of pods keeps its source address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// This node's pods.
    pub pod_cidrs: Vec<Subnet>,
    /// Pods of the whole cluster: always reached with the true source.
    pub cluster_cidrs: Vec<Subnet>,
    /// Addresses that have a route back: the cluster's nodes.
    pub nodes: Vec<IpAddr>,
}

/// What leaves for an address that cannot answer a pod takes the node's. Replaces the rules of before.
pub async fn masquerade(wanted: &Masquerade) -> Result<(), CommandError> {
    run("nft", &["-f", "-"], Some(&masquerade_rules(wanted))).await.map(drop)
}

/// Removes the rules and routes that [`masquerade`] and [`crate::routes`] made.
pub async fn clean() -> Result<(), CommandError> {
    let rules = "add table inet roadstead-pods\ndelete table inet roadstead-pods\n";
    run("nft", &["-f", "-"], Some(rules)).await?;
    let mut routes = crate::routes::Routes::load().await?;
    routes.apply(&Default::default()).await;
    Ok(())
}

fn masquerade_rules(wanted: &Masquerade) -> String {
    let mut text = String::from(
        "add table inet roadstead-pods\ndelete table inet roadstead-pods\ntable inet roadstead-pods {\n\
         \tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n",
    );
    for (family, is_ipv4) in [("ip", true), ("ip6", false)] {
        let sources: Vec<String> =
            wanted.pod_cidrs.iter().filter(|cidr| cidr.is_ipv4() == is_ipv4).map(Subnet::to_string).collect();
        if sources.is_empty() {
            continue;
        }
        let cluster =
            wanted.cluster_cidrs.iter().filter(|cidr| cidr.is_ipv4() == is_ipv4).map(Subnet::to_string);
        let outside = wanted.nodes.iter().filter(|address| {
            address.is_ipv4() == is_ipv4 && !wanted.cluster_cidrs.iter().any(|cidr| cidr.contains(**address))
        });
        let kept: std::collections::BTreeSet<String> =
            cluster.chain(outside.map(IpAddr::to_string)).chain(sources.iter().cloned()).collect();
        // A range inside another would be an overlap nft refuses; pod ranges lie in the cluster's.
        let kept: Vec<String> = without_contained(kept);
        text += &format!(
            "\t\t{family} saddr {{ {} }} {family} daddr != {{ {} }} masquerade\n",
            sources.join(", "),
            kept.join(", ")
        );
    }
    text + "\t}\n}\n"
}

fn without_contained(ranges: std::collections::BTreeSet<String>) -> Vec<String> {
    let parsed: Vec<Subnet> = ranges.iter().filter_map(|text| as_range(text)).collect();
    let inside = |range: &Subnet| {
        parsed
            .iter()
            .any(|other| other != range && other.contains(range.base()) && other.prefix() <= range.prefix())
    };
    parsed.iter().filter(|range| !inside(range)).map(Subnet::to_string).collect()
}

fn as_range(text: &str) -> Option<Subnet> {
    text.parse().ok().or_else(|| {
        let address: IpAddr = text.parse().ok()?;
        Subnet::new(address, if address.is_ipv4() { 32 } else { 128 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_just_started_has_no_namespace_of_its_own() {
        assert!(!has_own_namespaces());
    }

    #[test]
    fn only_what_cannot_answer_a_pod_is_masqueraded() {
        let nets = |given: &[&str]| given.iter().map(|net| net.parse().unwrap()).collect::<Vec<Subnet>>();
        for (pods, cluster, nodes, rules) in [
            (
                &["10.244.1.0/24"][..],
                &["10.244.0.0/16"][..],
                &["172.31.240.10", "172.31.240.11"][..],
                "ip saddr { 10.244.1.0/24 } ip daddr != { 10.244.0.0/16, 172.31.240.10/32, 172.31.240.11/32 } masquerade",
            ),
            (&["10.9.0.0/24"], &[], &[], "ip saddr { 10.9.0.0/24 } ip daddr != { 10.9.0.0/24 } masquerade"),
            (
                &["fd00:1::/64"],
                &["10.244.0.0/16"],
                &["172.31.240.10"],
                "ip6 saddr { fd00:1::/64 } ip6 daddr != { fd00:1::/64 } masquerade",
            ),
            (&[], &["10.244.0.0/16"], &[], ""),
        ] {
            let wanted = Masquerade {
                pod_cidrs: nets(pods),
                cluster_cidrs: nets(cluster),
                nodes: nodes.iter().map(|node| node.parse().unwrap()).collect(),
            };
            let text = masquerade_rules(&wanted);
            let said: Vec<&str> =
                text.lines().map(str::trim).filter(|line| line.contains(" saddr ")).collect();
            assert_eq!(said.join("\n"), rules);
        }
    }
}
