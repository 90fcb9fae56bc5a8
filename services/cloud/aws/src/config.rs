//! What the operator of the account says once.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The configuration file of `roadstead-cloud-aws`, JSON. Credentials are not in it: they come from where
/// every AWS program takes them (environment, profile, instance role), or from a file it names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// gRPC, for cells.
    pub listen: SocketAddr,
    /// mTLS with the fleet's CA.
    pub ca_pem: String,
    pub cert_pem: String,
    pub key_pem: String,
    pub region: String,
    /// Another endpoint than AWS's own, for tests and for clouds that speak its API.
    #[serde(default)]
    pub endpoint_url: Option<String>,
    /// Credentials in the format of `~/.aws/credentials`, for the profile `default`.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Where machines and balancers go, one per zone, all in one VPC.
    pub subnet_ids: Vec<String>,
    /// Of machines. They must admit [`Config::balancer_security_group_id`] on node ports.
    pub security_group_ids: Vec<String>,
    /// A group without rules that every balancer carries, so that machines can admit balancers by it.
    #[serde(default)]
    pub balancer_security_group_id: Option<String>,
    /// A Debian 12 image.
    pub image_id: String,
    /// EC2 instance types that pools may ask for; the first is the default.
    pub machine_types: Vec<String>,
    /// Where an instance gets the `roadstead` binary.
    pub node_binary: NodeBinary,
    #[serde(default)]
    pub balancer_scheme: Scheme,
    /// The root volume of machines, in GiB.
    #[serde(default = "default_disk_gib")]
    pub disk_gib: i32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeBinary {
    /// `https://…`
    pub url: String,
    /// Hexadecimal. An instance runs nothing that differs.
    pub sha256: String,
}

/// Who reaches a balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    #[default]
    InternetFacing,
    Internal,
}

fn default_disk_gib() -> i32 {
    20
}

impl Config {
    /// What is wrong with it, in words for whoever wrote it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let digest_is_fine =
            self.node_binary.sha256.len() == 64 && hex::decode(&self.node_binary.sha256).is_ok();
        // It becomes a word of a shell script.
        let url_is_fine = self.node_binary.url.starts_with("https://")
            && self
                .node_binary
                .url
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"'\"\\`$".contains(&byte));
        for (is_fine, what) in [
            (!self.region.is_empty(), "region is empty"),
            (!self.subnet_ids.is_empty(), "subnet_ids is empty"),
            (!self.security_group_ids.is_empty(), "security_group_ids is empty"),
            (!self.image_id.is_empty(), "image_id is empty"),
            (!self.machine_types.is_empty(), "machine_types is empty"),
            (self.disk_gib >= 8, "disk_gib is below 8, which Debian's image needs"),
            (digest_is_fine, "node_binary.sha256 is not 64 hexadecimal digits"),
            (url_is_fine, "node_binary.url is not a plain https:// address"),
        ] {
            if !is_fine {
                return Err(what.to_owned());
            }
        }
        Ok(())
    }
}
