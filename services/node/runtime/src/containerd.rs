//! A containerd of the node's own: configuration, start, restart, stop.
//!
//! Containers outlive the daemon (their shims are processes of their own), so a restart of containerd or of
//! the agent disturbs no pod. Whoever wants the pods gone stops them first and then calls [`crate::sweep()`].

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base_net::tasks::Tasks;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Cri, PAUSE_IMAGE};

/// How long a fresh containerd may take until it answers; a cold disk has been seen to need ten.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Between the polite signal and the other one.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// Pause before a dead containerd is started again, so that a broken one does not spin.
const RESTART_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct ContainerdConfig {
    /// Images and snapshots; kept over restarts.
    pub root: PathBuf,
    /// Sockets and mounts of running containers; short, since socket paths end at 107 bytes.
    pub state: PathBuf,
    /// Where clients dial.
    pub socket: PathBuf,
    /// Where its configuration and its log go.
    pub config_file: PathBuf,
    pub log_file: PathBuf,
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dir: PathBuf,
    /// Tars to import once it is up.
    pub images_dir: PathBuf,
    /// Where containerd, its shims and `ctr` are looked for, as in PATH.
    pub search_path: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    #[error("{} is not usable", path.display())]
    Path {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("containerd does not start")]
    Spawn(#[source] io::Error),
    #[error("containerd ended at once ({status}); its log {} ends with: {last_line}", log.display())]
    Died { status: String, log: PathBuf, last_line: String },
    #[error("containerd does not answer on {} within {} s", socket.display(), READY_WITHIN.as_secs())]
    NotReady { socket: PathBuf },
}

/// A running containerd. Ends with [`Containerd::stop`] or with the task group it was started in.
#[derive(Debug)]
pub struct Containerd {
    socket: PathBuf,
    stop: CancellationToken,
    /// Closed when the process has ended.
    ended: watch::Receiver<()>,
}

impl Containerd {
    /// Starts containerd, waits until it answers and imports the images folder, to which it adds the image of
    /// sandboxes: no registry has that.
    ///
    /// From then on it is started again whenever it dies, until `tasks` or the handle are stopped.
    pub async fn start(config: ContainerdConfig, tasks: &Tasks) -> Result<Containerd, ContainerdError> {
        for folder in [&config.root, &config.state, &config.cni_conf_dir, &config.images_dir] {
            make_folder(folder)?;
        }
        for file in [&config.socket, &config.config_file, &config.log_file] {
            make_folder(file.parent().unwrap_or(Path::new("/")))?;
        }
        let facts = MachineFacts::detect(&config.root);
        let text = configuration(&config, facts);
        crate::images::pause()
            .and_then(|archive| archive.write_to(&config.images_dir))
            .map_err(|cause| ContainerdError::Path { path: config.images_dir.clone(), cause })?;
        std::fs::write(&config.config_file, text)
            .map_err(|cause| ContainerdError::Path { path: config.config_file.clone(), cause })?;
        if facts.restrict_oom_score_adj {
            tracing::info!("no CAP_SYS_RESOURCE: containers keep the agent's oom_score_adj");
        }
        if !facts.overlayfs {
            tracing::info!(root = %config.root.display(), "no overlayfs here: images are copied, not layered");
        }

        // An agent that was killed leaves its containerd running, and that keeps the database to itself.
        match crate::sweep::end_daemons(&config.socket).await {
            Ok(0) => {}
            Ok(_) => tracing::info!(socket = %config.socket.display(), "containerd of an earlier run ended"),
            Err(cause) => tracing::warn!(%cause, "cannot look for a containerd of an earlier run"),
        }
        let mut child = spawn(&config)?;
        wait_ready(&config, &mut child).await?;
        let stop = tasks.stopping().child_token();
        let (running, ended) = watch::channel(());
        let supervised = supervise(child, config.clone(), stop.clone());
        tasks.spawn_to_end(async move {
            supervised.await;
            drop(running);
        });
        match crate::images::import_folder(&config.socket, &config.images_dir).await {
            Ok(_) => {}
            Err(cause) => {
                tracing::warn!(folder = %config.images_dir.display(), %cause, "images folder is not readable")
            }
        }
        Ok(Containerd { socket: config.socket, stop, ended })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops the daemon; containers run on.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

/// What this machine lets us do, found out by trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MachineFacts {
    restrict_oom_score_adj: bool,
    overlayfs: bool,
}

impl MachineFacts {
    fn detect(root: &Path) -> MachineFacts {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        MachineFacts {
            restrict_oom_score_adj: !has_sys_resource(&status),
            overlayfs: try_overlay(root).is_ok(),
        }
    }
}

/// `CapEff` of /proc/self/status, bit 24.
fn has_sys_resource(status: &str) -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask & CAP_SYS_RESOURCE != 0)
}

/// A filesystem may refuse to be an overlay's upper layer (overlay itself does, in nested containers).
fn try_overlay(root: &Path) -> io::Result<()> {
    let trial = tempfile::tempdir_in(root)?;
    let folders = ["lower", "upper", "work", "merged"].map(|name| trial.path().join(name));
    for folder in &folders {
        std::fs::create_dir(folder)?;
    }
    let [lower, upper, work, merged] = &folders;
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("overlay"), merged, Some("overlay"), flags, Some(options.as_str()))?;
    nix::mount::umount(merged)?;
    Ok(())
}

/// The text of config.toml.
fn configuration(config: &ContainerdConfig, facts: MachineFacts) -> String {
    let quoted = |path: &Path| serde_json::Value::from(path.display().to_string()).to_string();
    let snapshotter = if facts.overlayfs { "overlayfs" } else { "native" };
    format!(
        r#"# Written by the node agent at every start; changes are lost.
version = 2
root = {root}
state = {state}
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[grpc]
  address = {socket}
  max_recv_message_size = 16777216
  max_send_message_size = 16777216

[debug]
  level = "info"

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  stream_idle_timeout = "4h0m0s"
  enable_tls_streaming = false
  restrict_oom_score_adj = {restrict}
  disable_apparmor = {no_apparmor}
  max_container_log_line_size = 16384
  device_ownership_from_security_context = false

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {cni_bin}
    conf_dir = {cni_conf}
    max_conf_num = 1
"#,
        root = quoted(&config.root),
        state = quoted(&config.state),
        socket = quoted(&config.socket),
        opt = quoted(&config.root.join("opt")),
        restrict = facts.restrict_oom_score_adj,
        // Its profile loader needs apparmor_parser, which a minimal machine lacks.
        no_apparmor = !Path::new("/sbin/apparmor_parser").exists(),
        cni_bin = quoted(&config.cni_bin_dir),
        cni_conf = quoted(&config.cni_conf_dir),
    )
}

fn spawn(config: &ContainerdConfig) -> Result<Child, ContainerdError> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(&config.log_file);
    let log = log.map_err(|cause| ContainerdError::Path { path: config.log_file.clone(), cause })?;
    let errors =
        log.try_clone().map_err(|cause| ContainerdError::Path { path: config.log_file.clone(), cause })?;
    let mut command = Command::new("containerd");
    // Its shims look for runc there, which a user's own PATH may not lead to.
    command.arg("--config").arg(&config.config_file).env("PATH", &config.search_path);
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    // A group of its own: Ctrl-C at the terminal is for the agent, which stops things in order.
    command.process_group(0);
    command.spawn().map_err(ContainerdError::Spawn)
}

async fn wait_ready(config: &ContainerdConfig, child: &mut Child) -> Result<(), ContainerdError> {
    let not_ready = || ContainerdError::NotReady { socket: config.socket.clone() };
    let deadline = Instant::now() + READY_WITHIN;
    let cri = Cri::connect(&config.socket).map_err(|_| not_ready())?;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let log = std::fs::read_to_string(&config.log_file).unwrap_or_default();
            let last_line = log.lines().last().unwrap_or("(empty)").to_owned();
            let log = config.log_file.clone();
            return Err(ContainerdError::Died { status: status.to_string(), log, last_line });
        }
        if config.socket.exists() && cri.version().await.is_ok() {
            return Ok(());
        }
        if Instant::now() > deadline {
            end(child).await;
            return Err(not_ready());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// Keeps one containerd alive until the group is stopped.
async fn supervise(mut child: Child, config: ContainerdConfig, stopping: CancellationToken) {
    loop {
        tokio::select! {
            () = stopping.cancelled() => return end(&mut child).await,
            status = child.wait() => {
                let status = status.map_or_else(|cause| cause.to_string(), |status| status.to_string());
                tracing::warn!(status, log = %config.log_file.display(), "containerd ended, starting it again");
            }
        }
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
            match spawn(&config) {
                Ok(started) => break child = started,
                Err(error) => tracing::warn!(%error, "containerd does not start, trying on"),
            }
        }
    }
}

/// SIGTERM, patience, SIGKILL.
async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        let pid = nix::unistd::Pid::from_raw(pid);
        if let Err(cause) = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM) {
            tracing::debug!(%pid, %cause, "containerd is already gone");
        }
    }
    if tokio::time::timeout(STOP_WITHIN, child.wait()).await.is_err()
        && let Err(cause) = child.kill().await
    {
        tracing::warn!(%cause, "containerd does not end");
    }
}

fn make_folder(path: &Path) -> Result<(), ContainerdError> {
    std::fs::create_dir_all(path).map_err(|cause| ContainerdError::Path { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_bit_24() {
        for (status, has) in [
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", true),
            ("Name:\tx\nCapEff:\t000001fffeffffff\n", false),
            ("Name:\tx\nCapEff:\t0000000000000000\n", false),
            ("", false),
        ] {
            assert_eq!(has_sys_resource(status), has, "{status:?}");
        }
    }

    #[test]
    fn the_configuration_says_what_the_machine_needs() {
        let config = ContainerdConfig {
            root: "/data/n \"1\"/containerd".into(),
            state: "/run/n1".into(),
            socket: "/run/n1/containerd.sock".into(),
            config_file: "/data/config.toml".into(),
            log_file: "/data/containerd.log".into(),
            cni_conf_dir: "/data/cni".into(),
            cni_bin_dir: "/usr/lib/cni".into(),
            images_dir: "/data/images".into(),
            search_path: "/usr/sbin:/usr/bin".into(),
        };
        let poor = MachineFacts { restrict_oom_score_adj: true, overlayfs: false };
        let rich = MachineFacts { restrict_oom_score_adj: false, overlayfs: true };
        for (facts, line) in [
            (poor, "restrict_oom_score_adj = true"),
            (poor, "snapshotter = \"native\""),
            (rich, "restrict_oom_score_adj = false"),
            (rich, "snapshotter = \"overlayfs\""),
            (rich, r#"root = "/data/n \"1\"/containerd""#),
            (rich, r#"sandbox_image = "roadstead.local/pause:1""#),
            (rich, r#"conf_dir = "/data/cni""#),
        ] {
            let text = configuration(&config, facts);
            assert!(text.lines().any(|have| have.trim() == line), "{line} in {text}");
        }
    }
}
