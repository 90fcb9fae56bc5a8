//! A node's cgroup, in every hierarchy the machine has.
//!
//! Under version 1 a folder must exist in each hierarchy before anything starts in it, and a fresh cpuset
//! admits no process until it has CPUs and memory nodes, which are copied from the parent.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracing::warn;

use crate::RunId;

const ROOT: &str = "/sys/fs/cgroup";

/// The part of the tree below which all nodes of a run live.
pub fn parent_of(run_id: &RunId) -> String {
    format!("/roadstead/{run_id}")
}

/// The cgroup of one node of a run: what its kubelet gets as root.
pub fn of_node(run_id: &RunId, node: &str) -> String {
    format!("/roadstead/{run_id}/{node}")
}

#[derive(Debug, thiserror::Error)]
#[error("cgroup folder {} cannot be prepared", path.display())]
pub struct CgroupError {
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// Makes `cgroup` (`/roadstead/ab12cd/node-1`) in every hierarchy.
pub fn prepare(cgroup: &str) -> Result<(), CgroupError> {
    hierarchies().into_iter().try_for_each(|hierarchy| prepare_in(&hierarchy, cgroup))
}

/// The mounted hierarchies: the one of version 2, or the folders of version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_path_buf()];
    }
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path());
    // Links such as cpu -> cpu,cpuacct name a hierarchy twice.
    folders.filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

fn prepare_in(hierarchy: &Path, cgroup: &str) -> Result<(), CgroupError> {
    let mut here = hierarchy.to_path_buf();
    for part in cgroup.split('/').filter(|part| !part.is_empty() && *part != "..") {
        let parent = here.clone();
        here.push(part);
        match std::fs::create_dir(&here) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CgroupError { path: here, cause: error });
            }
            _ => {}
        }
        let failed = |path: PathBuf| move |cause| CgroupError { path, cause };
        if parent.join("cgroup.subtree_control").exists() && parent.join("cgroup.controllers").exists() {
            delegate(&parent).map_err(failed(parent.clone()))?;
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (ours, theirs) = (here.join(file), parent.join(file));
            let is_v1 = ours.exists() && here.join("cgroup.clone_children").exists();
            if is_v1 && std::fs::read_to_string(&ours).is_ok_and(|now| now.trim().is_empty()) {
                let inherited = std::fs::read_to_string(&theirs).map_err(failed(theirs))?;
                std::fs::write(&ours, inherited.trim()).map_err(failed(ours))?;
            }
        }
    }
    Ok(())
}

/// Version 2: children get every controller their parent has. The pure v1 `unified` mount has none.
fn delegate(parent: &Path) -> io::Result<()> {
    let available = std::fs::read_to_string(parent.join("cgroup.controllers"))?;
    for controller in available.split_whitespace() {
        if let Err(error) = std::fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}")) {
            warn!(controller, folder = %parent.display(), %error, "controller is not available to pods");
        }
    }
    Ok(())
}

/// Ends every process below `cgroup` and removes the folders. What cannot be removed is left, and said.
pub async fn sweep(cgroup: &str) {
    let relative = cgroup.trim_start_matches('/');
    if relative.is_empty() || relative.split('/').any(|part| part == "..") {
        return;
    }
    for hierarchy in hierarchies() {
        let folder = hierarchy.join(relative);
        if !folder.is_dir() {
            continue;
        }
        for _ in 0..20 {
            let mut pids = Vec::new();
            collect(&folder, &mut pids);
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL); // gone already is fine
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if let Err(error) = remove(&folder) {
            warn!(folder = %folder.display(), %error, "cgroup folder stays behind");
        }
    }
}

fn collect(folder: &Path, pids: &mut Vec<i32>) {
    let listed = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    pids.extend(listed.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 1));
    for child in children(folder) {
        collect(&child, pids);
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    for child in children(folder) {
        remove(&child)?;
    }
    std::fs::remove_dir(folder)
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|e| e.path())
        .collect()
}
