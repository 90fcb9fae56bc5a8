//! Debian packages that nodes and tests need, installed when missing.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::command::run;

/// A file that shows whether a package is there, and the package.
type Need = (&'static str, &'static str);

const NODE: &[Need] = &[
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/sbin/nft", "nftables"),
    // The demo image is made of it; plain `busybox` has the same file, linked dynamically.
    ("/usr/share/doc/busybox-static", "busybox-static"),
    ("/sbin/ip", "iproute2"),
    ("/usr/bin/nsenter", "util-linux"),
    // The portmap plug-in, for hostPort.
    ("/usr/sbin/iptables", "iptables"),
];

/// Debian's own kubectl is years old; it is taken only where no other one is installed.
const KUBECTL: Need = ("/usr/bin/kubectl", "kubernetes-client");

/// The manager's other database. Debian 12 has version 15.
const POSTGRES: Need = ("/usr/lib/postgresql", "postgresql");

pub fn install_for_nodes() -> Result<()> {
    install(NODE)
}

pub fn install_for_tests() -> Result<()> {
    // A pod borrows curl from the machine to ask the API who it is; the console is shown in Chromium.
    install(
        &[NODE, &[KUBECTL, ("/usr/bin/curl", "curl"), ("/usr/bin/chromium", "chromium"), POSTGRES]].concat(),
    )
}

/// A Python that can make environments of its own, which fetch tools from PyPI.
pub fn install_for_python() -> Result<()> {
    let has_venv = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    if has_venv.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    install(&[("/usr/share/doc/python3-venv", "python3-venv")])
}

fn install(needs: &[Need]) -> Result<()> {
    let missing: Vec<&str> =
        needs.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        // Everything but the nodes works without them, and `up` says so itself.
        eprintln!("xtask: not root, so not installing {}; local nodes will not start", missing.join(" "));
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("install these, this machine has no apt-get: {}", missing.join(" "));
    }
    run(Command::new("apt-get").args(["update", "-q"]))?;
    run(Command::new("apt-get")
        .args(["install", "-q", "--yes", "--no-install-recommends"])
        .args(missing)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of our own process folder is our user.
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
