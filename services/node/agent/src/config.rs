//! What a node is told, and how it fails.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use node_network::Subnet;
use serde::{Deserialize, Serialize};

/// The file of `roadstead node run --config FILE` (YAML or JSON).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeConfig {
    /// The Node object's name.
    pub name: String,
    /// Identity, images, volumes: everything this node keeps.
    pub data_dir: PathBuf,
    /// `https://HOST:PORT` of the cluster's API server or the gateway before it.
    pub server: String,
    /// Whom the server's certificate names, and what SNI says; the host of `server` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// How to get an identity the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Bootstrap>,
    /// The address that others reach this node at; the one that leads to the server if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ip: Option<IpAddr>,
    #[serde(default)]
    pub cluster: ClusterAddresses,
    /// The process was started in namespaces of its own (`node_network::launch`) and makes them its own.
    #[serde(default)]
    pub own_namespaces: bool,
    /// The end of standard input means "stop": whoever started the node has ended.
    #[serde(default)]
    pub stop_with_parent: bool,
    /// Stop pods and remove rules when the node stops; otherwise they run on for the next start.
    #[serde(default)]
    pub stop_containers_on_exit: bool,
    /// Where pods' cgroups are; `/roadstead/<name>` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_root: Option<String>,
    /// What the node offers; the whole machine if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityConfig>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<TaintConfig>,
    /// Who resolves names outside the cluster; those of the machine if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolvers: Option<Vec<IpAddr>>,
    #[serde(default = "default_cni_bin_dir")]
    pub cni_bin_dir: PathBuf,
    /// Image tars imported at the start; `images` below `data_dir` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_dir: Option<PathBuf>,
    #[serde(default = "default_kubelet_port")]
    pub kubelet_port: u16,
    /// Of pods' interfaces.
    #[serde(default = "default_mtu")]
    pub mtu: u32,
}

/// A token, and how to trust the server.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bootstrap {
    /// `abcdef.0123456789abcdef`
    pub token: String,
    /// The cluster's CA, if it is at hand: then nothing has to be discovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// `sha256:…` of the public key of a CA of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ca_cert_hashes: Vec<String>,
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The id of a token is public, its secret is not.
        let id = self.token.split('.').next().unwrap_or_default();
        f.debug_struct("Bootstrap")
            .field("token_id", &id)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

/// The cluster's addresses, as its control plane has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ClusterAddresses {
    pub service_cidr: Subnet,
    pub pod_cidr: Subnet,
    /// The Service `kubernetes`.
    pub api_service: IpAddr,
    pub dns_service: IpAddr,
    pub domain: String,
}

impl Default for ClusterAddresses {
    fn default() -> ClusterAddresses {
        let net = |a, b, prefix| {
            let base = IpAddr::V4(Ipv4Addr::new(a, b, 0, 0));
            Subnet::new(base, prefix).unwrap_or_else(|| unreachable!("a prefix of 16 fits IPv4"))
        };
        ClusterAddresses {
            service_cidr: net(10, 96, 16),
            pod_cidr: net(10, 244, 16),
            api_service: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)),
            dns_service: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
            domain: "cluster.local".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CapacityConfig {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub ephemeral_storage_bytes: u64,
    #[serde(default = "default_pods")]
    pub pods: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintConfig {
    pub key: String,
    #[serde(default)]
    pub value: String,
    pub effect: String,
}

/// Where Debian's package puts the plug-ins.
pub fn default_cni_bin_dir() -> PathBuf {
    PathBuf::from("/usr/lib/cni")
}
fn default_kubelet_port() -> u16 {
    10250
}
fn default_mtu() -> u32 {
    1500
}
fn default_pods() -> u32 {
    110
}

impl NodeConfig {
    /// A node with the usual settings, to be changed field by field.
    pub fn new(
        name: impl Into<String>,
        data_dir: impl Into<PathBuf>,
        server: impl Into<String>,
    ) -> NodeConfig {
        NodeConfig {
            name: name.into(),
            data_dir: data_dir.into(),
            server: server.into(),
            tls_server_name: None,
            bootstrap: None,
            node_ip: None,
            cluster: ClusterAddresses::default(),
            own_namespaces: false,
            stop_with_parent: false,
            stop_containers_on_exit: false,
            cgroup_root: None,
            capacity: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            resolvers: None,
            cni_bin_dir: default_cni_bin_dir(),
            images_dir: None,
            kubelet_port: default_kubelet_port(),
            mtu: default_mtu(),
        }
    }

    pub fn read(path: &Path) -> Result<NodeConfig, AgentError> {
        let text = std::fs::read_to_string(path).map_err(|cause| AgentError::File {
            what: "node configuration",
            path: path.to_path_buf(),
            cause,
        })?;
        serde_yaml::from_str(&text).map_err(|cause| AgentError::Config { path: path.to_path_buf(), cause })
    }

    /// Writes the file, for the owner's eyes only: it may hold a token.
    pub fn write(&self, path: &Path) -> Result<(), AgentError> {
        let text = serde_yaml::to_string(self)
            .map_err(|cause| AgentError::Config { path: path.to_path_buf(), cause })?;
        write_private(path, &text).map_err(|cause| AgentError::File {
            what: "node configuration",
            path: path.to_path_buf(),
            cause,
        })
    }

    pub fn cgroup_root(&self) -> String {
        self.cgroup_root.clone().unwrap_or_else(|| format!("/roadstead/{}", self.name))
    }
    pub fn images_dir(&self) -> PathBuf {
        self.images_dir.clone().unwrap_or_else(|| self.data_dir.join("images"))
    }
}

/// Atomically, readable by the owner alone.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let draft = path.with_extension("draft");
    // A draft of a killed run may have other permissions.
    match std::fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}

/// Why a node does not start. Each says in one line what is wrong and, where somebody can do something
/// about it, what.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Unfit(#[from] node_network::requirements::Unfit),
    #[error("{what} {} cannot be read or written", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is no node configuration", path.display())]
    Config {
        path: PathBuf,
        #[source]
        cause: serde_yaml::Error,
    },
    #[error("{given:?} is not a server address such as https://HOST:PORT")]
    Server { given: String },
    #[error("{given:?} is not a token such as abcdef.0123456789abcdef")]
    TokenForm { given: String },
    #[error("this node has no identity in {} and no token to get one", folder.display())]
    NoIdentity { folder: PathBuf },
    #[error(
        "{} holds the identity of node {found}, not of {name}: choose another --data, or remove that folder",
        folder.display()
    )]
    OtherNode { folder: PathBuf, found: String, name: String },
    #[error(
        "{} holds the identity of a node of another cluster: choose another --data, or remove that folder",
        folder.display()
    )]
    OtherCluster { folder: PathBuf },
    #[error(
        "a token alone does not say whom to trust: give --discovery-token-ca-cert-hash or --ca-file as well"
    )]
    NoTrust,
    #[error("{server} is not reachable")]
    Unreachable {
        server: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "wrong CA hash: the cluster's CA is sha256:{found}, which is none of those given; the server may be another cluster's or an impostor"
    )]
    WrongCaHash { found: String },
    #[error("the certificate of {server} is not by the CA given")]
    WrongCa { server: String },
    #[error("{given:?} is not a CA hash such as sha256: and 64 hex digits")]
    CaHashForm { given: String },
    #[error(
        "token {id} is not known to the cluster: it expired, was used up or was revoked; get a new one with `roadstead cluster join-command`"
    )]
    TokenUnknown { id: String },
    #[error(
        "the cluster's signature does not fit the secret of token {id}: the token was mistyped or replaced"
    )]
    TokenSignature { id: String },
    #[error("the cluster publishes no cluster-info for joining nodes: {why}")]
    ClusterInfo { why: String },
    #[error(
        "this machine's clock is {seconds} s {direction} the server's; certificates will not be accepted: set it (NTP) and try again"
    )]
    Skew { seconds: i64, direction: &'static str },
    #[error(
        "a node named {name} is in the cluster and Ready: two machines with one name; choose another with --name"
    )]
    NameTaken { name: String },
    #[error("the certificate request {name} was denied: {why}")]
    Denied { name: String, why: String },
    #[error(
        "the certificate request {name} was not approved within {minutes} min: approve it (kubectl certificate approve {name}) and start again"
    )]
    NotApproved { name: String, minutes: u64 },
    #[error("{what} failed")]
    Api {
        what: &'static str,
        #[source]
        cause: kube::Error,
    },
    #[error("certificates")]
    Pki(#[from] base_net::pki::PkiError),
    #[error("TLS")]
    Tls(#[from] base_net::tls::TlsError),
    #[error("{what} is not usable: {why}")]
    Certificate { what: &'static str, why: String },
    #[error("network")]
    Network(#[from] node_network::node::NodeNetworkError),
    #[error("pod network")]
    Cni(#[from] node_network::cni::CniError),
    #[error("cgroups")]
    Cgroups(#[from] node_network::cgroups::CgroupError),
    #[error("command")]
    Command(#[from] node_network::CommandError),
    #[error("container runtime")]
    Containerd(#[from] node_runtime::ContainerdError),
    #[error("kubelet")]
    Kubelet(#[from] node_kubelet::KubeletError),
    #[error("{what} cannot listen on {address}")]
    Listen {
        what: &'static str,
        address: std::net::SocketAddr,
        #[source]
        cause: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.yaml");
        let mut config = NodeConfig::new("n", "/var/lib/roadstead/n", "https://172.31.240.1:6443");
        config.bootstrap = Some(Bootstrap {
            token: "abcdef.0123456789abcdef".to_owned(),
            ca_file: None,
            ca_cert_hashes: vec!["sha256:00".to_owned()],
        });
        config.labels.insert("zone".to_owned(), "n".to_owned());
        config.write(&path).unwrap();
        assert_eq!(NodeConfig::read(&path).unwrap(), config);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{config:?}").contains("0123456789abcdef"), "a secret in a log");

        std::fs::write(&path, "name: a\nnonsense: 1\n").unwrap();
        assert!(matches!(NodeConfig::read(&path), Err(AgentError::Config { .. })));
    }
}
