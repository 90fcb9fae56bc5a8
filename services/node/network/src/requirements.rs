//! What a machine must have before it can be a node.
//!
//! Asked before anything is made on it or in the cluster, so that a machine which cannot be a node hears why
//! in one line and is left as it was. The pods' plug-ins, whose folder is configured, are `cni`'s to look for.

use std::path::Path;

use crate::command::search_path;

/// What is run by name, and the Debian package it comes with.
const PROGRAMS: [(&str, &str); 5] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
];

/// Why this machine cannot be a node as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("a node needs root, for network namespaces, mounts and containerd: try again with sudo")]
    NotRoot,
    #[error("{program} is not installed: `apt-get install {package}`")]
    Missing { program: &'static str, package: &'static str },
}

/// Root and all programs are there.
pub fn check() -> Result<(), Unfit> {
    if !rustix::process::geteuid().is_root() {
        return Err(Unfit::NotRoot);
    }
    check_programs(&search_path())
}

fn check_programs(path: &str) -> Result<(), Unfit> {
    let found = |program: &str| std::env::split_paths(path).any(|folder| is_program(&folder.join(program)));
    match PROGRAMS.into_iter().find(|(program, _)| !found(program)) {
        Some((program, package)) => Err(Unfit::Missing { program, package }),
        None => Ok(()),
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_its_package() {
        use std::os::unix::fs::PermissionsExt;
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = format!("{}:{}", first.path().display(), second.path().display());
        let put = |folder: &Path, name: &str, mode: u32| {
            std::fs::write(folder.join(name), "").unwrap();
            std::fs::set_permissions(folder.join(name), PermissionsExt::from_mode(mode)).unwrap();
        };
        for (folder, name, mode, missing) in [
            (first.path(), "containerd", 0o755, Some(("ctr", "containerd"))),
            (first.path(), "ctr", 0o755, Some(("runc", "runc"))),
            // There, but nothing that can be run.
            (first.path(), "runc", 0o644, Some(("runc", "runc"))),
            (second.path(), "runc", 0o755, Some(("nft", "nftables"))),
            (second.path(), "nft", 0o755, Some(("ip", "iproute2"))),
            (second.path(), "ip", 0o755, None),
        ] {
            put(folder, name, mode);
            let expected = missing.map(|(program, package)| Unfit::Missing { program, package });
            assert_eq!(check_programs(&path).err(), expected, "after {name}");
        }
    }
}
