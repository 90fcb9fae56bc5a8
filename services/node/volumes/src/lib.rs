//! What a pod mounts: emptyDir, hostPath, configMap, secret, downwardAPI and projected volumes.
//!
//! Start at [`Volumes::set_up`]. It is one road: the first call makes a pod's volumes, every later call brings
//! their content up to date (a changed ConfigMap, a token that grows old), and a call after a restart finds
//! what is there. [`Volumes::tear_down`] undoes all of it, [`Volumes::orphans`] finds pods nobody wants any more.
//!
//! Not here: volumes that need a driver (PersistentVolumeClaims, CSI, image volumes). They answer
//! [`VolumeError::Unsupported`], which the kubelet tells the pod's owner.

mod atomic;
mod content;
pub mod downward;
mod mounts;
pub mod quantity;
mod sources;
mod subpath;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource, Pod, Volume};

pub use sources::{Sources, Token, TokenWanted};

/// Why a pod's volumes are not there (yet).
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume \"{volume}\": {kind} volumes are not supported on this node")]
    Unsupported { volume: String, kind: &'static str },
    /// An object the volume needs is missing or unreadable: it may come.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {reason}")]
    Source { volume: String, reason: String },
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {doing}")]
    File {
        volume: String,
        doing: String,
        #[source]
        cause: io::Error,
    },
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : hostPath type check failed: {path} {reason}")]
    HostPath { volume: String, path: String, reason: &'static str },
    #[error("no volume \"{volume}\" in the pod")]
    Unknown { volume: String },
}

/// What is wrong with a pod's volumes: each one that is not there, since each is mended by itself.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(whole).collect::<Vec<_>>().join("; "))]
pub struct VolumeErrors(pub Vec<VolumeError>);

/// An error with its cause.
pub fn whole(error: &VolumeError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// All volumes of one node's pods, below `<root>/pods`.
#[derive(Debug, Clone)]
pub struct Volumes {
    pods: PathBuf,
}

/// A pod's volumes, ready to be mounted into containers.
#[derive(Debug, Clone, Default)]
pub struct Mounted {
    folder: PathBuf,
    paths: BTreeMap<String, PathBuf>,
}

impl Volumes {
    /// `root` is the kubelet's folder.
    pub fn new(root: &Path) -> Volumes {
        Volumes { pods: root.join("pods") }
    }

    /// The folder of everything one pod has on the node's disk.
    pub fn pod_folder(&self, uid: &str) -> PathBuf {
        self.pods.join(uid)
    }

    /// Makes the pod's volumes and brings their content up to date. One that fails keeps no other back.
    pub async fn set_up(
        &self,
        pod: &Pod,
        sources: &dyn Sources,
        now: Timestamp,
    ) -> Result<Mounted, VolumeErrors> {
        let folder = self.pod_folder(pod.metadata.uid.as_deref().unwrap_or_default());
        let mut mounted = Mounted { folder: folder.clone(), paths: BTreeMap::new() };
        let mut errors = Vec::new();
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            match set_up_one(&folder, pod, volume, sources, now).await {
                Ok(path) => drop(mounted.paths.insert(volume.name.clone(), path)),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(mounted) } else { Err(VolumeErrors(errors)) }
    }

    /// Unmounts and removes the volumes that [`Volumes::set_up`] made; what else the pod has on disk stays.
    ///
    /// Repeating it is harmless. Nothing is removed below a mount that would not go away: what it shows may be
    /// somebody else's.
    pub fn tear_down(&self, uid: &str) -> io::Result<()> {
        let folder = self.checked_folder(uid)?;
        for point in mounts::mounted_below(&folder)? {
            mounts::unmount(&point)?;
        }
        for part in ["volumes", "volume-subpaths"] {
            remove(&folder.join(part))?;
        }
        Ok(())
    }

    /// [`Volumes::tear_down`], and then all that is left of the pod on this node's disk.
    pub fn remove(&self, uid: &str) -> io::Result<()> {
        self.tear_down(uid)?;
        remove(&self.checked_folder(uid)?)
    }

    /// A folder of ours, and above all not the folder of all pods.
    fn checked_folder(&self, uid: &str) -> io::Result<PathBuf> {
        if uid.is_empty() || uid.contains('/') || uid == ".." || uid == "." {
            return Err(io::Error::other(format!("{uid:?} is no pod uid")));
        }
        Ok(self.pod_folder(uid))
    }

    /// Pods that have a folder here and are not among `live`.
    pub fn orphans(&self, live: &BTreeSet<String>) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.pods) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names = entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|uid| !live.contains(uid)).collect())
    }
}

impl Mounted {
    /// What a container mounts for `volume`, or for a part of it. `container` and `index` (of the mount in
    /// the container) name the mount that a part needs.
    pub fn path(
        &self,
        volume: &str,
        sub_path: &str,
        container: &str,
        index: usize,
    ) -> Result<PathBuf, VolumeError> {
        let whole =
            self.paths.get(volume).ok_or_else(|| VolumeError::Unknown { volume: volume.to_owned() })?;
        if sub_path.is_empty() {
            return Ok(whole.clone());
        }
        let target = self.folder.join("volume-subpaths").join(volume).join(container).join(index.to_string());
        subpath::bind(whole, sub_path, &target)
            .map_err(file_error(volume, &format!("mounting its subPath {sub_path:?}")))?;
        Ok(target)
    }
}

/// Where the volume is once it stands.
async fn set_up_one(
    folder: &Path,
    pod: &Pod,
    volume: &Volume,
    sources: &dyn Sources,
    now: Timestamp,
) -> Result<PathBuf, VolumeError> {
    let name = &volume.name;
    let fs_group = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()?.fs_group);
    let gid = fs_group.and_then(|gid| u32::try_from(gid).ok());
    if let Some(source) = &volume.host_path {
        return host_path(name, source);
    }
    if let Some(source) = &volume.empty_dir {
        let path = folder.join("volumes/kubernetes.io~empty-dir").join(name);
        empty_dir(&path, source, gid).map_err(file_error(name, "making an empty folder"))?;
        return Ok(path);
    }
    let files = content::files(pod, volume, sources).await;
    let files = files.map_err(|reason| VolumeError::Source { volume: name.clone(), reason })?;
    let Some(files) = files else {
        return Err(VolumeError::Unsupported { volume: name.clone(), kind: kind(volume) });
    };
    let path = folder.join(content_folder(volume)).join(name);
    let in_memory = volume.config_map.is_none();
    content_dir(&path, in_memory)
        .and_then(|()| atomic::write(&path, &files, gid, now))
        .map_err(file_error(name, "writing its files"))?;
    Ok(path)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn empty_dir(path: &Path, source: &EmptyDirVolumeSource, gid: Option<u32>) -> io::Result<()> {
    if path.exists() {
        let wants_memory = source.medium.as_deref() == Some("Memory");
        // After a reboot the folder is there and the memory is not.
        if !wants_memory || mounts::is_mounted(path)? {
            return Ok(());
        }
    }
    fs::create_dir_all(path)?;
    if source.medium.as_deref() == Some("Memory") {
        mounts::mount_tmpfs(path, source.size_limit.as_ref().and_then(quantity::whole))?;
    }
    fs::set_permissions(path, Permissions::from_mode(0o777))?;
    match gid {
        Some(gid) => mounts::give_to_group(path, gid),
        None => Ok(()),
    }
}

/// The folder of content volumes: in memory when it may hold a secret, so that it never reaches a disk.
fn content_dir(path: &Path, in_memory: bool) -> io::Result<()> {
    fs::create_dir_all(path)?;
    if in_memory && !mounts::is_mounted(path)? {
        mounts::mount_tmpfs(path, None)?;
    }
    fs::set_permissions(path, Permissions::from_mode(0o777))
}

fn host_path(volume: &str, source: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(&source.path);
    let refuse =
        |reason| Err(VolumeError::HostPath { volume: volume.to_owned(), path: source.path.clone(), reason });
    let found = fs::metadata(&path).map(|meta| meta.file_type());
    let is = |what: fn(&fs::FileType) -> bool| found.as_ref().is_ok_and(what);
    match source.type_.as_deref().unwrap_or_default() {
        // Any: what isn't there, the runtime makes as a folder, as upstream lets it.
        "" if found.is_err() => fs::create_dir_all(&path).map_err(file_error(volume, "making the folder"))?,
        "" => {}
        "DirectoryOrCreate" if found.is_err() => {
            fs::create_dir_all(&path).map_err(file_error(volume, "making the folder"))?;
        }
        "FileOrCreate" if found.is_err() => {
            fs::write(&path, b"").map_err(file_error(volume, "making the file"))?;
        }
        "DirectoryOrCreate" | "Directory" if !is(fs::FileType::is_dir) => {
            return refuse("is not a directory");
        }
        "FileOrCreate" | "File" if !is(fs::FileType::is_file) => return refuse("is not a file"),
        "Socket" if !is(FileTypeExt::is_socket) => return refuse("is not a socket file"),
        "CharDevice" if !is(FileTypeExt::is_char_device) => return refuse("is not a character device"),
        "BlockDevice" if !is(FileTypeExt::is_block_device) => return refuse("is not a block device"),
        "DirectoryOrCreate" | "Directory" | "FileOrCreate" | "File" | "Socket" | "CharDevice"
        | "BlockDevice" => {}
        _ => return refuse("has an unknown hostPath type"),
    }
    Ok(path)
}

fn content_folder(volume: &Volume) -> &'static str {
    if volume.config_map.is_some() {
        "volumes/kubernetes.io~configmap"
    } else if volume.secret.is_some() {
        "volumes/kubernetes.io~secret"
    } else if volume.downward_api.is_some() {
        "volumes/kubernetes.io~downward-api"
    } else {
        "volumes/kubernetes.io~projected"
    }
}

/// The name of a kind that we do not have, for the message.
fn kind(volume: &Volume) -> &'static str {
    if volume.persistent_volume_claim.is_some() {
        "persistentVolumeClaim"
    } else if volume.csi.is_some() {
        "csi"
    } else if volume.ephemeral.is_some() {
        "ephemeral"
    } else if volume.image.is_some() {
        "image"
    } else if volume.nfs.is_some() {
        "nfs"
    } else if volume.iscsi.is_some() {
        "iscsi"
    } else {
        "in-tree driver"
    }
}

fn file_error(volume: &str, doing: &str) -> impl FnOnce(io::Error) -> VolumeError + use<> {
    let (volume, doing) = (volume.to_owned(), doing.to_owned());
    move |cause| VolumeError::File { volume, doing, cause }
}

#[cfg(test)]
mod tests;
