//! Which clusters this cell hosts, on its own disk: it starts without asking anybody.
//!
//! One small file per cluster, replaced by renaming, so that a crash leaves the old or the new one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use base_ids::{CellId, Slug, TenantId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What the manager said about a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub cluster: TenantId,
    pub name: Slug,
    pub organization: Slug,
    pub kubernetes_version: String,
    /// TLS server name through the gateway.
    pub server_name: String,
    /// `ip:port` of the gateway; the first one goes into cluster-info.
    pub gateway_addresses: Vec<std::net::SocketAddr>,
    /// Goes up with every change that the manager makes.
    #[serde(default)]
    pub generation: i64,
    /// Of the cell's cloud providers; its first one when empty.
    #[serde(default)]
    pub provider: String,
    #[serde(default)]
    pub node_pools: Vec<cloud_controllers::Pool>,
    /// The cells with a replica, this one's among them, in the order of replica numbers. Alone when empty.
    #[serde(default)]
    pub replicas: Vec<Replica>,
    /// Whose certificates and tokens are refused. On disk, so that they are while the manager is away.
    #[serde(default)]
    pub revocations: Vec<Revoked>,
    /// Whether a cell that does not have the cluster may make it. Never so after a restart: what was made is
    /// on disk then, and what was not the manager asks for again.
    #[serde(skip)]
    pub founding: bool,
}

/// What was issued to `user` until then is refused; to everybody whom the manager names when it is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    pub user: String,
    pub before_ms: i64,
}

/// One replica, and where cells reach its cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    pub cell: CellId,
    pub address: std::net::SocketAddr,
}

#[derive(Debug, thiserror::Error)]
pub enum AssignmentError {
    #[error("{} cannot be read or written", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

#[derive(Debug)]
pub(crate) struct Assignments {
    dir: PathBuf,
    known: Mutex<BTreeMap<TenantId, Assignment>>,
}

impl Assignments {
    pub(crate) fn open(dir: &Path) -> Result<Assignments, AssignmentError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| AssignmentError::Io { path, source }
        };
        fs::create_dir_all(dir).map_err(io(dir))?;
        let mut known = BTreeMap::new();
        for file in fs::read_dir(dir).map_err(io(dir))? {
            let path = file.map_err(io(dir))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let bytes = fs::read(&path).map_err(io(&path))?;
            match serde_json::from_slice::<Assignment>(&bytes) {
                Ok(assignment) => drop(known.insert(assignment.cluster, assignment)),
                // One cluster's damage is not the others' (DESIGN §9).
                Err(error) => tracing::error!(
                    file = %path.display(),
                    %error,
                    "damaged assignment: its cluster is not served; put the file back from another copy"
                ),
            }
        }
        Ok(Assignments { dir: dir.to_owned(), known: Mutex::new(known) })
    }

    pub(crate) fn all(&self) -> Vec<Assignment> {
        self.known.lock().values().cloned().collect()
    }

    /// On disk when it returns.
    pub(crate) fn put(&self, assignment: &Assignment) -> Result<(), AssignmentError> {
        let mut known = self.known.lock();
        if known.get(&assignment.cluster) == Some(assignment) {
            return Ok(());
        }
        let path = self.path(assignment.cluster);
        let write = || -> std::io::Result<()> {
            let fresh = path.with_extension("new");
            let mut file = File::create(&fresh)?;
            file.write_all(&serde_json::to_vec(assignment)?)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|source| AssignmentError::Io { path: path.clone(), source })?;
        known.insert(assignment.cluster, assignment.clone());
        Ok(())
    }

    pub(crate) fn remove(&self, id: TenantId) -> Result<(), AssignmentError> {
        let mut known = self.known.lock();
        let path = self.path(id);
        // On disk as well when it returns: nobody asks again, and one that came back would be an error at every
        // start, since its data is gone.
        let remove = || fs::remove_file(&path).and_then(|()| File::open(&self.dir)?.sync_all());
        match remove() {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(AssignmentError::Io { path, source }),
        }
        known.remove(&id);
        Ok(())
    }

    fn path(&self, id: TenantId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> Assignment {
        Assignment {
            cluster: TenantId::generate(),
            name: "demo".parse().unwrap(),
            organization: "acme".parse().unwrap(),
            kubernetes_version: "v1.36.0".to_owned(),
            server_name: "c1.roadstead.local".to_owned(),
            gateway_addresses: vec!["127.0.0.1:6443".parse().unwrap()],
            generation: 1,
            provider: String::new(),
            node_pools: Vec::new(),
            replicas: Vec::new(),
            revocations: vec![Revoked { user: "ann@example.com".to_owned(), before_ms: 1 }],
            founding: false,
        }
    }

    #[test]
    fn assignments_survive_a_restart_and_a_half_written_file_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, removed) = (assignment(), assignment());
        let first = Assignments::open(dir.path()).unwrap();
        first.put(&kept).unwrap();
        first.put(&removed).unwrap();
        first.remove(removed.cluster).unwrap();
        first.remove(removed.cluster).unwrap();
        fs::write(dir.path().join(format!("{}.new", TenantId::generate())), b"{").unwrap();
        assert_eq!(Assignments::open(dir.path()).unwrap().all(), vec![kept]);
    }

    #[test]
    fn a_damaged_file_is_one_cluster_s_damage() {
        let dir = tempfile::tempdir().unwrap();
        let fine = assignment();
        Assignments::open(dir.path()).unwrap().put(&fine).unwrap();
        fs::write(dir.path().join(format!("{}.json", TenantId::generate())), b"{").unwrap();
        assert_eq!(Assignments::open(dir.path()).unwrap().all(), vec![fine]);
    }
}
