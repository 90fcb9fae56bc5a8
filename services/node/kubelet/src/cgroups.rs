//! The cgroups that pods live in, in version 1 and 2.
//!
//! `<root>/kubepods[/burstable|/besteffort]/pod<uid>`: upstream's tree for the cgroupfs driver. containerd is
//! given a pod's path and makes the containers' cgroups below it. In version 1 the folder must exist in every
//! hierarchy, and cpuset's is unusable until cpus and mems are copied from above.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::pod::PodExt;
use crate::qos::{self, PodLimits};

#[derive(Debug, Clone)]
pub struct Cgroups {
    root: String,
    layout: Layout,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Layout {
    V1 {
        /// The mount point of every hierarchy and the controllers it has.
        hierarchies: Vec<(PathBuf, String)>,
        /// An empty version 2 tree beside them, where runc makes a folder for each container all the same.
        unified: Option<PathBuf>,
    },
    V2(PathBuf),
}

impl Cgroups {
    /// Finds the machine's layout. `root` is a path in it, such as `/roadstead/n1`.
    pub fn detect(root: &str) -> io::Result<Cgroups> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let root = root.trim_matches('/').to_owned();
        Ok(Cgroups { root, layout: layout(&table) })
    }

    pub fn is_v2(&self) -> bool {
        matches!(self.layout, Layout::V2(_))
    }

    /// What containerd is told: the pod's path in the hierarchy.
    pub fn pod_path(&self, pod: &Pod) -> String {
        let class = match qos::qos_class(pod) {
            "Guaranteed" => "kubepods",
            "BestEffort" => "kubepods/besteffort",
            _ => "kubepods/burstable",
        };
        let path = format!("{}/{class}/pod{}", self.root, pod.uid());
        format!("/{}", path.trim_start_matches('/'))
    }

    /// Makes the pod's cgroup and holds it to the pod's limits. Repeating it is harmless.
    pub fn make(&self, pod: &Pod) -> io::Result<()> {
        let path = self.pod_path(pod);
        let limits = qos::pod_limits(pod);
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                for (mount, controllers) in hierarchies {
                    let folder = make_v1(mount, &path, controllers)?;
                    set_v1(&folder, controllers, limits)?;
                }
            }
            Layout::V2(mount) => set_v2(&make_v2(mount, &path)?, limits)?,
        }
        Ok(())
    }

    /// Removes the pod's cgroup, which is empty by then.
    pub fn remove(&self, pod: &Pod) -> io::Result<()> {
        self.remove_path(&self.pod_path(pod))
    }

    /// Removes all that is below the root, and the root: for a node that goes away.
    pub fn remove_all(&self) -> io::Result<()> {
        if self.root.is_empty() { self.remove_path("/kubepods") } else { self.remove_path(&self.root) }
    }

    fn remove_path(&self, path: &str) -> io::Result<()> {
        let mounts: Vec<&PathBuf> = match &self.layout {
            Layout::V1 { hierarchies, unified } => {
                hierarchies.iter().map(|(mount, _)| mount).chain(unified).collect()
            }
            Layout::V2(mount) => vec![mount],
        };
        for mount in mounts {
            remove_tree(&mount.join(path.trim_start_matches('/')))?;
        }
        Ok(())
    }
}

fn layout(mountinfo: &str) -> Layout {
    let mut hierarchies = Vec::new();
    let mut unified = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mount = left.split(' ').nth(4).unwrap_or_default();
        let mut right = right.split(' ');
        match right.next() {
            Some("cgroup") => {
                let options = right.nth(1).unwrap_or_default();
                hierarchies.push((PathBuf::from(mount), options.to_owned()));
            }
            Some("cgroup2") => unified = Some(PathBuf::from(mount)),
            _ => {}
        }
    }
    if hierarchies.is_empty() {
        Layout::V2(unified.unwrap_or_else(|| "/sys/fs/cgroup".into()))
    } else {
        Layout::V1 { hierarchies, unified }
    }
}

fn has(controllers: &str, wanted: &str) -> bool {
    controllers.split(',').any(|one| one == wanted)
}

fn make_v1(mount: &Path, path: &str, controllers: &str) -> io::Result<PathBuf> {
    let mut folder = mount.to_owned();
    for step in path.split('/').filter(|step| !step.is_empty()) {
        let above = folder.clone();
        folder.push(step);
        make_folder(&folder)?;
        if has(controllers, "cpuset") {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let own = read(&folder.join(file))?;
                if own.trim().is_empty() {
                    write(&folder.join(file), read(&above.join(file))?.trim())?;
                }
            }
        }
    }
    Ok(folder)
}

fn set_v1(folder: &Path, controllers: &str, limits: PodLimits) -> io::Result<()> {
    if has(controllers, "cpu") {
        write(&folder.join("cpu.shares"), &limits.cpu_shares.to_string())?;
        // A kernel without CFS bandwidth has no such files: limits of the containers fail alike there.
        if folder.join("cpu.cfs_quota_us").exists() {
            write(&folder.join("cpu.cfs_period_us"), &limits.cpu_period_us.to_string())?;
            write(&folder.join("cpu.cfs_quota_us"), &limits.cpu_quota_us.unwrap_or(-1).to_string())?;
        }
    }
    if has(controllers, "memory") {
        write(&folder.join("memory.limit_in_bytes"), &limits.memory_bytes.unwrap_or(-1).to_string())?;
    }
    Ok(())
}

fn make_v2(mount: &Path, path: &str) -> io::Result<PathBuf> {
    let mut folder = mount.to_owned();
    for step in path.split('/').filter(|step| !step.is_empty()) {
        for controller in ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"] {
            // Which ones there are differs from kernel to kernel: each is asked for alone.
            if let Err(cause) = write(&folder.join("cgroup.subtree_control"), &format!("+{controller}")) {
                tracing::debug!(folder = %folder.display(), controller, %cause, "controller is not passed on");
            }
        }
        folder.push(step);
        make_folder(&folder)?;
    }
    Ok(folder)
}

fn set_v2(folder: &Path, limits: PodLimits) -> io::Result<()> {
    let quota = limits.cpu_quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
    let memory = limits.memory_bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
    for (file, value) in [
        ("cpu.weight", qos::weight(limits.cpu_shares).to_string()),
        ("cpu.max", format!("{quota} {}", limits.cpu_period_us)),
        ("memory.max", memory),
    ] {
        if folder.join(file).exists() {
            write(&folder.join(file), &value)?;
        }
    }
    Ok(())
}

/// Removes a cgroup and those below it; they must have no processes.
fn remove_tree(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(named(folder, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| named(folder, error))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(folder, error)),
        _ => Ok(()),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(named(folder, error)),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|error| named(path, error))
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|error| named(path, error))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_read_off_the_mounts() {
        let v1 = "30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                  31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                  33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let v2 = "31 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let mount = |path: &str, options: &str| (PathBuf::from(path), options.to_owned());
        let hierarchies = vec![
            mount("/sys/fs/cgroup/cpu,cpuacct", "rw,cpu,cpuacct"),
            mount("/sys/fs/cgroup/systemd", "rw,name=systemd"),
        ];
        let unified = Some("/sys/fs/cgroup/unified".into());
        for (table, expected) in
            [(v1, Layout::V1 { hierarchies, unified }), (v2, Layout::V2("/sys/fs/cgroup".into()))]
        {
            assert_eq!(layout(table), expected);
        }
    }
}
