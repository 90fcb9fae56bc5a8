//! How pods are connected: a configuration for Debian's CNI plug-ins.
//!
//! `ptp` rather than `bridge`: each pod hangs on a link of its own and everything is routed, so a reply
//! always passes the connection tracking that translated its request. On a bridge, two pods of one node
//! that talk through a Service would bypass it unless the kernel's bridge filter is loaded and on.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::Subnet;

/// The one file of the configuration folder; the name sorts before what others might drop there.
const FILE: &str = "10-roadstead.conflist";

const PLUGINS: [&str; 4] = ["ptp", "host-local", "portmap", "loopback"];

#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error("CNI plug-in {plugin} is missing in {}: `apt-get install containernetworking-plugins`", folder.display())]
    MissingPlugin { plugin: &'static str, folder: PathBuf },
    #[error("{} cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("CNI configuration {} is broken: {why}", path.display())]
    Broken { path: PathBuf, why: String },
}

#[derive(Debug, Clone)]
pub struct CniConfig {
    /// Where containerd looks; this node's own.
    pub conf_dir: PathBuf,
    pub bin_dir: PathBuf,
    /// Where `host-local` remembers addresses.
    pub state_dir: PathBuf,
    /// Node.spec.podCIDRs, one or one per family.
    pub pod_cidrs: Vec<Subnet>,
    pub mtu: u32,
}

/// All plug-ins are there.
pub fn check_plugins(bin_dir: &Path) -> Result<(), CniError> {
    let missing = PLUGINS.into_iter().find(|plugin| !bin_dir.join(plugin).is_file());
    missing.map_or(Ok(()), |plugin| Err(CniError::MissingPlugin { plugin, folder: bin_dir.to_path_buf() }))
}

/// Writes the configuration, atomically, if it differs from what is there.
pub fn write(config: &CniConfig) -> Result<(), CniError> {
    check_plugins(&config.bin_dir)?;
    let path = config.conf_dir.join(FILE);
    let failed = |cause| CniError::Write { path: path.clone(), cause };
    let text = render(config);
    if std::fs::read_to_string(&path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    std::fs::create_dir_all(&config.conf_dir).map_err(failed)?;
    std::fs::create_dir_all(&config.state_dir).map_err(failed)?;
    let draft = config.conf_dir.join(".roadstead.draft");
    std::fs::write(&draft, text).map_err(failed)?;
    std::fs::rename(&draft, &path).map_err(failed)
}

/// Another file in the folder would be taken by containerd if it sorts first; said before pods fail on it.
pub fn check_folder(conf_dir: &Path) -> Result<(), CniError> {
    let Ok(entries) = std::fs::read_dir(conf_dir) else { return Ok(()) };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        let kind = path.extension().and_then(|extension| extension.to_str());
        matches!(kind, Some("conf" | "conflist" | "json"))
    });
    files.sort();
    let Some(first) = files.into_iter().next() else { return Ok(()) };
    let broken = |why: String| CniError::Broken { path: first.clone(), why };
    let text = std::fs::read_to_string(&first).map_err(|error| broken(error.to_string()))?;
    let parsed: serde_json::Value = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    let has_plugins = parsed["plugins"].as_array().is_some_and(|list| !list.is_empty());
    if has_plugins || parsed["type"].is_string() {
        Ok(())
    } else {
        Err(broken("no plug-in in it".to_owned()))
    }
}

/// What `host-local` gave to pods that no longer exist is forgotten; only sensible with no pod running.
pub fn forget_addresses(state_dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(state_dir.join("roadstead")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn render(config: &CniConfig) -> String {
    let ranges: Vec<_> =
        config.pod_cidrs.iter().map(|cidr| json!([{ "subnet": cidr.to_string() }])).collect();
    let routes: Vec<_> = config
        .pod_cidrs
        .iter()
        .map(|cidr| json!({ "dst": if cidr.is_ipv4() { "0.0.0.0/0" } else { "::/0" } }))
        .collect();
    let conf = json!({
        "cniVersion": "0.4.0",
        "name": "roadstead",
        "plugins": [
            {
                "type": "ptp",
                "mtu": config.mtu,
                // Ours is by nftables (`node`), once per node instead of once per pod.
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": config.state_dir,
                    "ranges": ranges,
                    "routes": routes,
                },
            },
            { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
        ],
    });
    format!("{conf:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_folder_is_named() {
        let good = r#"{"name":"a","plugins":[{"type":"ptp"}]}"#;
        for (file, text, why) in [
            ("10-a.conflist", good, None),
            ("10-a.conflist", "{", Some("EOF while parsing an object at line 1 column 1")),
            ("10-a.conflist", "{}", Some("no plug-in in it")),
            ("README", "anything", None),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(file), text).unwrap();
            let path = folder.path().join(file);
            let expected = why.map(|why| format!("CNI configuration {} is broken: {why}", path.display()));
            assert_eq!(check_folder(folder.path()).err().map(|error| error.to_string()), expected, "{text}");
        }
    }

    #[test]
    fn both_families_get_a_range_and_a_default_route() {
        let config = CniConfig {
            conf_dir: "/c".into(),
            bin_dir: "/b".into(),
            state_dir: "/s".into(),
            pod_cidrs: vec!["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
            mtu: 1450,
        };
        let conf: serde_json::Value = serde_json::from_str(&render(&config)).unwrap();
        let ptp = &conf["plugins"][0];
        assert_eq!(ptp["mtu"], 1450);
        assert_eq!(ptp["ipam"]["ranges"], json!([[{"subnet":"10.244.1.0/24"}], [{"subnet":"fd00:1::/64"}]]));
        assert_eq!(ptp["ipam"]["routes"], json!([{"dst":"0.0.0.0/0"}, {"dst":"::/0"}]));
    }
}
