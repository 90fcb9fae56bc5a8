//! A second machine, as far as one kernel can give it: network, mounts, processes and host name of its own.
//!
//! Its first process holds the namespaces; everything else enters them through `nsenter`. When that process is
//! ended, the kernel ends all others in there, containers too.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// Host part of its address: beyond those that `up` gives to its own nodes (.10 to .209).
const HOST: u8 = 230;

/// Gone, with everything that ran in it, when dropped.
pub struct Machine {
    name: String,
    netns: String,
    /// `unshare`, which waits for the first process and takes it along.
    holder: Child,
    /// The first process, by the number it has outside.
    first: i32,
    dir: TempDir,
}

impl Machine {
    /// On the bridge where this machine has the address `gateway`.
    pub fn beside(gateway: std::net::Ipv4Addr, name: &str) -> Result<Machine> {
        let bridge = interface_of(gateway)?;
        let [a, b, c, _] = gateway.octets();
        let netns = format!("rstest-{}", std::process::id());
        let link = format!("rst{}", std::process::id());
        let dir = tempfile::Builder::new().prefix("roadstead-machine-").tempdir()?;
        fs::create_dir(dir.path().join("cni"))?;
        ip(&format!("netns add {netns}"))?;
        let made = (|| {
            ip(&format!("link add {link} type veth peer name eth0 netns {netns}"))?;
            ip(&format!("link set {link} master {bridge} up"))?;
            ip(&format!("-n {netns} link set lo up"))?;
            ip(&format!("-n {netns} addr add {a}.{b}.{c}.{HOST}/24 dev eth0"))?;
            ip(&format!("-n {netns} link set eth0 up"))?;
            ip(&format!("-n {netns} route add default via {gateway}"))?;
            first_process(&netns, name, dir.path())
        })();
        match made {
            Ok((holder, first)) => Ok(Machine { name: name.to_owned(), netns, holder, first, dir }),
            Err(error) => {
                let _ = ip(&format!("netns delete {netns}"));
                Err(error)
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A folder of the machine's own disk.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `program` in there, yet to be run.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--net", "--mount", "--uts", "--pid", "--"]);
        command.arg(program);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // `unshare --kill-child`: ending the holder ends the first process, and with it everything.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        if let Err(error) = ip(&format!("netns delete {}", self.netns)) {
            eprintln!("{error:#}");
        }
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroup(&hierarchy.path().join("roadstead").join(&self.name));
        }
        remove_cgroup(&Path::new("/sys/fs/cgroup/roadstead").join(&self.name));
    }
}

fn first_process(netns: &str, name: &str, dir: &Path) -> Result<(Child, i32)> {
    // /run and CNI's folder would be the host's; the rest of the disk may be shared.
    let script = r#"
        set -e
        mount -t tmpfs tmpfs /run
        mkdir -p /run/netns /run/lock /var/lib/cni
        mount --bind "$1" /var/lib/cni
        hostname "$0"
        echo here
        exec sleep infinity
    "#;
    let mut holder = crate::bound("nsenter", Signal::SIGKILL);
    holder
        .arg(format!("--net=/run/netns/{netns}"))
        .args(["--", "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--propagation", "private", "--", "sh", "-c", script, name])
        .arg(dir.join("cni"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut holder = crate::start(holder).context("setpriv (Debian's util-linux)")?;
    let mut said = String::new();
    let stdout = holder.stdout.take().ok_or_else(|| anyhow!("no output"))?;
    BufReader::new(stdout).read_line(&mut said)?;
    let child = crate::process::children_of(i32::try_from(holder.id())?)?.first().copied();
    match (said.trim(), child) {
        ("here", Some(first)) => Ok((holder, first)),
        _ => {
            let _ = holder.kill();
            let _ = holder.wait();
            bail!("the second machine does not start")
        }
    }
}

fn interface_of(address: std::net::Ipv4Addr) -> Result<String> {
    let printed = ip("-o -4 addr show")?;
    let wanted = format!("{address}/");
    let line = printed.lines().find(|line| line.split_whitespace().any(|word| word.starts_with(&wanted)));
    let name = line.and_then(|line| line.split_whitespace().nth(1));
    name.map(str::to_owned).ok_or_else(|| anyhow!("no interface of this machine has {address}"))
}

fn ip(arguments: &str) -> Result<String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("ip (Debian's iproute2)")?;
    if !output.status.success() {
        bail!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A cgroup's folders can only be removed from the deepest upwards.
fn remove_cgroup(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
