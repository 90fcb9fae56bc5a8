//! A part of a volume as a mount of its own.
//!
//! The volume's content belongs to the tenant, who may put a symlink there that leads anywhere on the node.
//! So the path is opened with `RESOLVE_BENEATH`, which cannot leave the volume, and what was opened (not the
//! name, which may lead elsewhere a moment later) is bound to a path of ours.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2};

use crate::mounts;

/// Binds `sub_path` of the volume at `volume` to `target`; makes missing folders first, as open as the volume.
pub fn bind(volume: &Path, sub_path: &str, target: &Path) -> io::Result<()> {
    if mounts::is_mounted(target)? {
        return Ok(());
    }
    let root = openat(CWD, volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let found = open_or_make(&root, sub_path)?;
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if FileType::from_raw_mode(fstat(&found)?.st_mode) == FileType::Directory {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::write(target, b"")?;
    }
    let source = format!("/proc/self/fd/{}", found.as_raw_fd());
    mounts::bind(Path::new(&source), target)
}

fn open_or_make(root: &OwnedFd, sub_path: &str) -> io::Result<OwnedFd> {
    let mut walked = String::new();
    for component in Path::new(sub_path).components() {
        let Component::Normal(name) = component else {
            if component == Component::CurDir {
                continue;
            }
            return Err(io::Error::other(format!("subPath {sub_path:?} leaves its volume")));
        };
        let name = name.to_str().ok_or_else(|| io::Error::other("subPath is not UTF-8"))?;
        let parent = if walked.is_empty() { None } else { Some(beneath(root, &walked)?) };
        if !walked.is_empty() {
            walked.push('/');
        }
        walked.push_str(name);
        match beneath(root, &walked) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = parent.as_ref().unwrap_or(root);
                match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
                    Ok(()) => open_up(&beneath(root, &walked)?, fstat(root)?.st_mode)?,
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    beneath(root, if walked.is_empty() { "." } else { &walked })
}

/// Gives a new folder the volume's own mode, whatever our umask: the container's user may not be ours. The
/// set-group bit came from the parent.
fn open_up(made: &OwnedFd, volume_mode: u32) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", made.as_raw_fd());
    let inherited = fstat(made)?.st_mode & 0o2000;
    fs::set_permissions(path, fs::Permissions::from_mode(volume_mode & 0o777 | inherited))
}

fn beneath(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_sub_path_never_leaves_its_volume() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("in")).unwrap();
        fs::write(volume.path().join("in/file"), "x").unwrap();
        symlink("in/file", volume.path().join("fine")).unwrap();
        symlink("/etc", volume.path().join("absolute")).unwrap();
        symlink("../..", volume.path().join("upwards")).unwrap();
        let root = openat(CWD, volume.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for (sub_path, fine) in [
            ("in/file", true),
            ("fine", true),
            ("new/folder", true),
            ("./in", true),
            ("absolute", false),
            ("absolute/passwd", false),
            ("upwards", false),
            ("../x", false),
            ("/etc", false),
        ] {
            assert_eq!(open_or_make(&root, sub_path).is_ok(), fine, "{sub_path}");
        }
        assert!(volume.path().join("new/folder").is_dir());
    }

    #[test]
    fn a_new_folder_is_as_open_as_its_volume() {
        let volume = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o750] {
            fs::set_permissions(volume.path(), fs::Permissions::from_mode(mode)).unwrap();
            let root = openat(CWD, volume.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
            open_or_make(&root, &format!("{mode}/b")).unwrap();
            for made in [format!("{mode}"), format!("{mode}/b")] {
                let found = fs::metadata(volume.path().join(&made)).unwrap().permissions().mode() & 0o777;
                assert_eq!(found, mode, "{made}");
            }
        }
    }
}
