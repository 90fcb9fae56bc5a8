//! What an instance runs at its first boot: cloud-init takes a shell script as user data.
//! <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html>

use cloud_interface::{CloudError, MachineSpec};

use crate::config::Config;

/// EC2's limit before base64.
const MAX_BYTES: usize = 16 * 1024;

/// The script that fetches the node binary, checks its digest and joins. It runs once; systemd starts the
/// node at every later boot, which finds its identity on disk.
pub(crate) fn script(spec: &MachineSpec, config: &Config) -> Result<String, CloudError> {
    let join = &spec.join;
    let server = server(spec, config)?;
    let binary = &config.node_binary;
    let hashes: Vec<String> = join
        .ca_cert_hashes
        .iter()
        .map(|hash| format!("--discovery-token-ca-cert-hash {}", word(hash)))
        .collect();
    let script = format!(
        "#!/bin/bash
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
until apt-get update -q && apt-get install -qy ca-certificates curl containerd runc containernetworking-plugins nftables; do sleep 5; done
until curl -fsSL --retry 5 -o /usr/local/bin/roadstead.new {url}; do sleep 5; done
echo {digest} | sha256sum -c --quiet
chmod 755 /usr/local/bin/roadstead.new
mv /usr/local/bin/roadstead.new /usr/local/bin/roadstead
cat > /etc/systemd/system/roadstead-node.service <<'UNIT'
[Unit]
Description=Kubernetes node
After=network-online.target containerd.service
Wants=network-online.target
[Service]
ExecStart=/usr/local/bin/roadstead node join --server https://{server} --tls-server-name {name} --token {token} {hashes} --name {node}
Restart=always
RestartSec=5
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
UNIT
chmod 600 /etc/systemd/system/roadstead-node.service
systemctl daemon-reload
systemctl enable --now roadstead-node.service
",
        url = word(&binary.url),
        digest = word(&format!("{}  /usr/local/bin/roadstead.new", binary.sha256)),
        name = word(&join.tls_server_name),
        token = word(&join.token),
        hashes = hashes.join(" "),
        node = word(&spec.name),
    );
    match script.len() > MAX_BYTES {
        true => Err(CloudError::Invalid("the join command is longer than EC2's user data".to_owned())),
        false => Ok(script),
    }
}

/// Where an instance finds its cluster.
fn server(spec: &MachineSpec, config: &Config) -> Result<String, CloudError> {
    if let Some(gateway) = &config.gateway {
        return Ok(gateway.clone());
    }
    match spec.join.servers.first() {
        None => Err(CloudError::Invalid("there is no server to join".to_owned())),
        // The instance would look for its cluster on itself, for ever, and be paid for.
        Some(server) if server.ip().is_loopback() || server.ip().is_unspecified() => {
            Err(CloudError::Invalid(format!(
                "an instance cannot reach the fleet's gateway at {server}: start the fleet with --gateway at \
                 an address that it can, or set `gateway` in the provider's configuration"
            )))
        }
        Some(server) => Ok(server.to_string()),
    }
}

/// One word for a shell and for systemd alike. Neither a `%` nor a line break is in anything that ends up
/// here; both would mean something in a unit file.
fn word(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control() && !"'%\\$`\"".contains(*c)).collect();
    format!("'{plain}'")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base_ids::TenantId;
    use cloud_interface::Join;

    use super::*;

    fn spec(token: &str, hashes: usize) -> MachineSpec {
        MachineSpec {
            cluster: TenantId::generate(),
            client_token: "t".parse().unwrap(),
            name: "workers-1".to_owned(),
            machine_type: String::new(),
            join: Join {
                servers: vec!["192.0.2.7:6443".parse().unwrap()],
                tls_server_name: "c1.example".to_owned(),
                token: token.to_owned(),
                ca_cert_hashes: vec!["sha256:00".to_owned(); hashes],
                labels: BTreeMap::new(),
                taints: Vec::new(),
            },
            tags: BTreeMap::new(),
        }
    }
    fn config() -> Config {
        let text = r#"{
            "region": "r", "subnet_ids": [], "security_group_ids": [], "image_id": "", "machine_types": [],
            "node_binary": {"url": "https://example.com/roadstead", "sha256": ""}
        }"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_script_joins_and_cannot_be_broken_out_of() {
        let text = script(&spec("abcdef.0123456789abcdef", 1), &config()).unwrap();
        for part in [
            "--server https://192.0.2.7:6443",
            "--tls-server-name 'c1.example'",
            "--token 'abcdef.0123456789abcdef'",
            "--discovery-token-ca-cert-hash 'sha256:00'",
            "--name 'workers-1'",
            "sha256sum -c",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let hostile = script(&spec("x' ; rm -rf / ; '\nUNIT\nreboot", 1), &config()).unwrap();
        assert_eq!(hostile.lines().filter(|line| line.trim() == "reboot").count(), 0, "{hostile}");
        assert_eq!(hostile.matches("'x ; rm -rf / ; UNITreboot'").count(), 1, "{hostile}");
        let mut nowhere = spec("a", 1);
        nowhere.join.servers.clear();
        assert!(script(&nowhere, &config()).is_err());
        assert!(script(&spec("a", 1000), &config()).is_err(), "EC2 takes 16 KiB");
    }

    #[test]
    fn an_instance_is_told_an_address_that_it_can_reach() {
        for (server, gateway, wanted) in [
            ("192.0.2.7:6443", None, "--server https://192.0.2.7:6443 "),
            ("127.0.0.1:6443", None, "cannot reach the fleet's gateway at 127.0.0.1:6443"),
            ("0.0.0.0:6443", None, "cannot reach the fleet's gateway at 0.0.0.0:6443"),
            ("[::1]:6443", None, "cannot reach the fleet's gateway at [::1]:6443"),
            ("127.0.0.1:6443", Some("gw.example.com:443"), "--server https://gw.example.com:443 "),
        ] {
            let mut spec = spec("t", 1);
            spec.join.servers = vec![server.parse().unwrap()];
            let config = Config { gateway: gateway.map(str::to_owned), ..config() };
            let said = script(&spec, &config).unwrap_or_else(|error| error.to_string());
            assert!(said.contains(wanted), "{server} {gateway:?}: {said}");
        }
    }
}
