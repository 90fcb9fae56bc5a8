//! What the operator of the account says once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cloud_interface::{IDENTITY_FILE, Identity};
use serde::{Deserialize, Serialize};

/// The configuration file of `roadstead-cloud-aws`, JSON. Credentials are not in it: they come from where
/// every AWS program takes them (environment, profile, instance role), or from a file it names. Paths are
/// relative to its own folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The file that `roadstead up --cloud NAME=IP:PORT` wrote.
    #[serde(default = "default_identity_file")]
    pub identity_file: PathBuf,
    /// gRPC, for cells; the address in the identity when absent.
    #[serde(default)]
    pub listen: Option<SocketAddr>,
    /// Where machines reach the fleet's gateway, `HOST:PORT`; where the fleet itself says when absent.
    #[serde(default)]
    pub gateway: Option<String>,
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

fn default_identity_file() -> PathBuf {
    PathBuf::from(IDENTITY_FILE)
}
fn default_disk_gib() -> i32 {
    20
}

impl Config {
    /// The file, and the identity it names.
    pub fn read(path: &Path) -> Result<(Config, Identity)> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut config: Config = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not as it should be", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.identity_file = folder.join(&config.identity_file);
        config.credentials_file = config.credentials_file.map(|file| folder.join(file));
        let file = &config.identity_file;
        let text = std::fs::read(file).with_context(|| {
            format!("cannot read {}, which `roadstead up --cloud NAME=IP:PORT` writes", file.display())
        })?;
        let identity =
            serde_json::from_slice(&text).with_context(|| format!("{} is no identity", file.display()))?;
        Ok((config, identity))
    }

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
        let gateway_is_fine = self.gateway.as_deref().is_none_or(is_host_and_port);
        for (is_fine, what) in [
            (gateway_is_fine, "gateway is not HOST:PORT"),
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

/// Nothing but what belongs into an address: it becomes a word of a shell script.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let of_a_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte);
    !host.is_empty() && host.bytes().all(of_a_host) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_a_host_and_a_port() {
        for (text, is_fine) in [
            ("203.0.113.9:6443", true),
            ("gateway.example.com:443", true),
            ("[2001:db8::1]:6443", true),
            ("gateway.example.com", false),
            (":6443", false),
            ("gateway:0", false),
            ("x;reboot:6443", false),
            ("https://gateway:6443", false),
        ] {
            assert_eq!(is_host_and_port(text), is_fine, "{text}");
        }
    }

    #[test]
    fn paths_are_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let said = || format!("{:#}", Config::read(&file).unwrap_err());
        assert!(said().contains("cannot read"), "{}", said());
        std::fs::write(&file, "{}").unwrap();
        assert!(said().contains("missing field `region`"), "{}", said());
        let config = r#"{
            "region": "eu-central-1", "subnet_ids": ["s"], "security_group_ids": ["g"], "image_id": "a",
            "machine_types": ["t3.medium"], "credentials_file": "credentials",
            "node_binary": {"url": "https://example.com/roadstead", "sha256": ""}
        }"#;
        std::fs::write(&file, config).unwrap();
        assert!(said().contains("`roadstead up --cloud NAME=IP:PORT` writes"), "{}", said());
        let identity = r#"{
            "name": "aws", "address": "127.0.0.1:7443", "ca_pem": "", "cert_pem": "", "key_pem": "secret"
        }"#;
        std::fs::write(folder.path().join(IDENTITY_FILE), identity).unwrap();
        let (config, identity) = Config::read(&file).unwrap();
        assert_eq!(config.credentials_file, Some(folder.path().join("credentials")));
        assert_eq!((identity.name.as_str(), config.listen), ("aws", None));
        assert!(!format!("{identity:?}").contains("secret"));
    }
}
