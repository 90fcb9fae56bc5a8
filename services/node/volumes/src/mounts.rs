//! Mounts and ownership: the few file system calls that volumes need.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// True when something is mounted exactly there.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(points(&table).any(|point| point == path))
}

/// Everything mounted below `folder` or on it, the latest first.
pub fn mounted_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut below: Vec<PathBuf> = points(&table).filter(|point| point.starts_with(folder)).collect();
    below.reverse();
    Ok(below)
}

/// Memory as a file system; `size` in bytes, or half of the machine's when there is no limit.
pub fn mount_tmpfs(path: &Path, size: Option<i64>) -> io::Result<()> {
    let options = match size {
        Some(bytes) if bytes > 0 => format!("mode=0777,size={bytes}"),
        _ => "mode=0777".to_owned(),
    };
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
    Ok(())
}

/// Shows `source` (file or folder) at `target` as well.
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Undoes a mount, even one that is still in use: it vanishes when its last user does.
pub fn unmount(path: &Path) -> io::Result<()> {
    umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    Ok(())
}

/// Gives a volume to a group: files become readable and writable for it, folders pass the group on.
pub fn give_to_group(path: &Path, gid: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    lchown(path, None, Some(gid))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let bits = if meta.is_dir() { 0o2770 } else { 0o660 };
    // chown clears setgid on files, hence the mode comes second.
    fs::set_permissions(path, Permissions::from_mode((meta.mode() & 0o7777) | bits))?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to_group(&entry?.path(), gid)?;
        }
    }
    Ok(())
}

fn points(table: &str) -> impl Iterator<Item = PathBuf> {
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(|field| {
        // mountinfo writes blanks and backslashes in octal.
        let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        PathBuf::from(pairs.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to)))
    })
}
