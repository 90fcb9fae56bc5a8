//! Where `up` keeps what, below its data directory.

use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: &Path) -> Layout {
        Layout { root: root.to_owned() }
    }
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// For whoever talks to the manager.
    pub fn admin_token(&self) -> PathBuf {
        self.root.join("admin.token")
    }
    /// Which fleet this is a folder of.
    pub fn fleet(&self) -> PathBuf {
        self.root.join("fleet.json")
    }
    /// The password of the operator who is made at the first start.
    pub fn admin_password(&self) -> PathBuf {
        self.root.join("admin.password")
    }
    pub fn manager_url(&self) -> PathBuf {
        self.root.join("manager.url")
    }
    pub fn fleet_ca(&self) -> PathBuf {
        self.root.join("fleet-ca.pem")
    }
    pub fn demo_kubeconfig(&self) -> PathBuf {
        self.root.join("demo.kubeconfig")
    }
    pub fn fleet_ca_key(&self) -> PathBuf {
        self.root.join("fleet-ca.key")
    }
    pub fn database(&self) -> PathBuf {
        self.root.join("manager.db")
    }
    pub fn cell(&self, number: u8) -> PathBuf {
        self.root.join("cells").join(format!("cell-{number}"))
    }
    pub fn gateway(&self) -> PathBuf {
        self.root.join("gateway")
    }
    pub fn cloud_local(&self) -> PathBuf {
        self.root.join("cloud-local")
    }
    /// Folders of the providers that somebody else runs, each with its identity.
    pub fn clouds(&self) -> PathBuf {
        self.root.join("clouds")
    }
    pub fn node(&self, name: &str) -> PathBuf {
        self.root.join("nodes").join(name)
    }
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }
    pub fn log(&self, of: &str) -> PathBuf {
        self.logs().join(format!("{of}.log"))
    }
}
