//! Small files that must be whole and, where they hold secrets, private; folders with one user at a time.
//!
//! Not here: anything large, or written often (`store/log`).

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// Replaces `path` by `content`; readers see the old or the new file, never half of one. Mode 0600. What is there
/// already is not written again, so that it needs no room on a full disk.
pub fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    if has(path, content) {
        return Ok(());
    }
    // The whole name and more: files that differ in their extension alone must not share it.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    let write = || -> std::io::Result<()> {
        // Left behind by a crash, possibly with other permissions.
        let _ = fs::remove_file(fresh);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(fresh)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(fresh, path)?;
        // Else a power cut could bring the old one back.
        File::open(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
            .sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Whether a private file has just this content. One that is there is whole, since it came by renaming.
fn has(path: &Path, content: &[u8]) -> bool {
    let is_private = fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o7777 == 0o600);
    is_private && fs::read(path).is_ok_and(|found| found == content)
}

/// Makes sure that `path` is a file that only its owner can read, empty if it is new: for programs that open
/// their files themselves.
pub fn private_file(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

/// `None` when there is no such file.
pub fn read_text(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// A folder that only its owner can look into.
pub fn private_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
        .with_context(|| format!("cannot set permissions of {}", path.display()))
}

/// Held for as long as the process lives; the kernel lets go of it even after kill -9.
#[derive(Debug)]
pub struct DirLock(#[allow(dead_code, reason = "held, not used")] File);

/// Takes the data directory for this process alone.
pub fn lock_dir(dir: &Path) -> Result<DirLock> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let holder = fs::read_to_string(&path).unwrap_or_default();
        bail!(
            "{} is in use by process {}; stop it, or choose another folder with --data",
            dir.display(),
            holder.trim()
        );
    }
    // For people only: the lock holds without it, also where the disk has no room for a few digits. Written
    // over, then cut, since what is cut off first may not come back there.
    let holder = std::process::id().to_string();
    let _ = file.write_all(holder.as_bytes()).and_then(|()| file.set_len(holder.len() as u64));
    Ok(DirLock(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_user_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock_dir(dir.path()).unwrap();
        let error = lock_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(first);
        lock_dir(dir.path()).unwrap();
    }

    #[test]
    fn secrets_are_private_even_over_an_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(dir.path().join("token.new"), "left over").unwrap();
        write_private(&path, b"secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_text(&path).unwrap().as_deref(), Some("secret"));
        // The same again is no work, unless others could read it.
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let first = inode(&path);
        write_private(&path, b"secret").unwrap();
        assert_eq!(inode(&path), first);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write_private(&path, b"secret").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let database = dir.path().join("rows");
        fs::write(&database, "kept").unwrap();
        fs::set_permissions(&database, Permissions::from_mode(0o644)).unwrap();
        private_file(&database).unwrap();
        assert_eq!(fs::metadata(&database).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_text(&database).unwrap().as_deref(), Some("kept"));
    }
}
