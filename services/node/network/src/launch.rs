//! Starts a node's process in namespaces of its own.
//!
//! `nsenter` and `unshare` of util-linux do it, and replace themselves by the program, so the child's pid
//! is the node's. `ip netns exec` would not do: it mounts a new /sys, which hides the cgroup mounts.
//!
//! The child's standard input is a pipe that this process never writes to: when it ends, for whatever
//! reason, the node sees the end of it and stops as it would on a signal.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::command::search_path;
use crate::host::{HostError, HostNetwork, NodeNetwork};

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the network of node {index} cannot be made")]
    Network {
        index: u8,
        #[source]
        cause: HostError,
    },
    #[error("log file {} cannot be opened", path.display())]
    Log {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("nsenter does not start (Debian package util-linux)")]
    Start(#[source] io::Error),
}

/// A node's process and its network.
#[derive(Debug)]
pub struct LaunchedNode {
    index: u8,
    pub network: NodeNetwork,
    child: Child,
}

/// Makes the network of node number `index` on `host` and starts `binary node run --config FILE` in it.
/// `config` is called with the node's network and returns the file, so that it can name its address.
/// What the node prints goes to the end of `log`.
pub async fn spawn_node(
    host: &HostNetwork,
    index: u8,
    binary: &Path,
    log: &Path,
    config: impl FnOnce(&NodeNetwork) -> io::Result<PathBuf>,
) -> Result<LaunchedNode, LaunchError> {
    let network = host.add_node(index).await.map_err(|cause| LaunchError::Network { index, cause })?;
    let opened = |cause| LaunchError::Log { path: log.to_path_buf(), cause };
    let out = File::options().create(true).append(true).open(log).map_err(opened)?;
    let err = out.try_clone().map_err(opened)?;
    let config = config(&network).map_err(LaunchError::Start)?;
    let (program, arguments) = command_line(&network, binary, &config);
    let child = Command::new(program)
        .args(arguments)
        .env("PATH", search_path())
        .stdin(Stdio::piped())
        .stdout(out)
        .stderr(err)
        // Ctrl-C at a terminal is for the parent, which stops its nodes in order.
        .process_group(0)
        .spawn()
        .map_err(LaunchError::Start)?;
    Ok(LaunchedNode { index, network, child })
}

impl LaunchedNode {
    pub fn index(&self) -> u8 {
        self.index
    }

    /// `None` once it was waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Resolves when the process ends. May be dropped and called again.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        // Not `Child::wait`, which closes standard input first: to the node that means "stop".
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Asks the node to stop, waits `patience` for it, ends it by force after that, and removes its network.
    pub async fn stop(mut self, host: &HostNetwork, patience: Duration) -> Result<(), HostError> {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM); // gone already is fine
            if tokio::time::timeout(patience, self.child.wait()).await.is_err() {
                tracing::warn!(node = self.index, "node does not stop; ending it by force");
                let _ = self.child.kill().await;
            }
        }
        host.remove_node(self.index).await
    }
}

/// The command that runs `binary node run --config FILE` in a node's network and in mount and UTS
/// namespaces of its own; for whoever keeps child processes in a way of their own.
pub fn command_line(network: &NodeNetwork, binary: &Path, config: &Path) -> (PathBuf, Vec<OsString>) {
    let mut arguments: Vec<OsString> = vec![format!("--net=/run/netns/{}", network.netns).into()];
    let inner = ["--", "unshare", "--mount", "--uts", "--propagation", "private", "--"];
    arguments.extend(inner.map(OsString::from));
    arguments.push(binary.into());
    arguments.extend(["node", "run", "--config"].map(OsString::from));
    arguments.push(config.into());
    (PathBuf::from("nsenter"), arguments)
}
