//! Files that change all at once.
//!
//! A volume's folder holds `..data`, a link to a timestamped folder with the files, and a link per file that
//! leads through it. New content goes into a new folder; one rename of `..data` then shows all of it. Nobody
//! who reads through the links sees half of an update. Names and layout are upstream's, since programs know them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path};

use jiff::Timestamp;

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

/// One file: what is in it, and its mode and owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Owner, when it isn't root.
    pub uid: Option<u32>,
}

/// Files by their path below the volume.
pub type Files = BTreeMap<String, File>;

/// Makes `folder` show exactly `files`, which belong to group `gid`, if given. True when something changed.
pub fn write(folder: &Path, files: &Files, gid: Option<u32>, now: Timestamp) -> io::Result<bool> {
    for path in files.keys() {
        check_path(path)?;
    }
    let current = fs::read_link(folder.join(DATA)).ok();
    if current.as_ref().is_some_and(|current| shows(&folder.join(current), files)) {
        return Ok(false);
    }
    let name = format!("..{}.{}", now.strftime("%Y_%m_%d_%H_%M_%S"), now.subsec_nanosecond().unsigned_abs());
    let fresh = folder.join(&name);
    fs::create_dir(&fresh)?;
    // A folder that stays behind half-written would be taken for content by nobody, but it costs space.
    if let Err(error) = fill(&fresh, files, gid) {
        let _ = fs::remove_dir_all(&fresh);
        return Err(error);
    }
    let next = folder.join(DATA_TMP);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(&name, &next)?;
    fs::rename(&next, folder.join(DATA))?;
    link_names(folder, files)?;
    if let Some(current) = current {
        fs::remove_dir_all(folder.join(current))?;
    }
    Ok(true)
}

/// Relative, without `..`, and not in the way of our own names.
fn check_path(path: &str) -> io::Result<()> {
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    let fine = !path.is_empty() && !path.starts_with("..") && Path::new(path).components().all(plain);
    if fine { Ok(()) } else { Err(io::Error::other(format!("{path:?} is no path for a volume's file"))) }
}

fn shows(data: &Path, files: &Files) -> bool {
    let same = |(path, file): (&String, &File)| {
        let path = data.join(path);
        let mode = fs::metadata(&path).map(|meta| meta.permissions().mode() & 0o777);
        // A group adds bits of its own; the mode asked for must at least be there.
        mode.is_ok_and(|mode| mode & file.mode == file.mode & 0o777)
            && fs::read(&path).is_ok_and(|have| have == file.data)
    };
    files.iter().all(same) && count_files(data) == files.len()
}

fn count_files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

fn fill(fresh: &Path, files: &Files, gid: Option<u32>) -> io::Result<()> {
    fs::set_permissions(fresh, Permissions::from_mode(0o755))?;
    for (path, file) in files {
        let path = fresh.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, &file.data)?;
        if file.uid.is_some() || gid.is_some() {
            std::os::unix::fs::chown(&path, file.uid, gid)?;
        }
        // Readable by the group, as upstream's fsGroup does for read-only content.
        let mode = if gid.is_some() { file.mode | 0o440 } else { file.mode };
        fs::set_permissions(&path, Permissions::from_mode(mode & 0o777))?;
    }
    Ok(())
}

/// A link per top-level name; those of names that are gone are removed, now that nothing leads there.
fn link_names(folder: &Path, files: &Files) -> io::Result<()> {
    let wanted: BTreeSet<&str> = files.keys().map(|path| path.split('/').next().unwrap_or(path)).collect();
    for name in &wanted {
        match symlink(Path::new(DATA).join(name), folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_none_or(|name| name.starts_with("..") || wanted.contains(name));
        if !ours && entry.file_type()?.is_symlink() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(rows: &[(&str, &str)]) -> Files {
        let file = |data: &str| File { data: data.into(), mode: 0o644, uid: None };
        rows.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
    }

    fn listing(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with("..") {
                continue;
            }
            if entry.path().is_dir() {
                found.extend(listing(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
            } else {
                found.push(format!("{name}={}", fs::read_to_string(entry.path()).unwrap()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_folder_shows_exactly_what_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-11-30T21:05:48.5Z".parse().unwrap();
        for (second, rows, shown, changed) in [
            (1, vec![("a", "1"), ("d/b", "2")], vec!["a=1", "d/b=2"], true),
            (2, vec![("a", "1"), ("d/b", "2")], vec!["a=1", "d/b=2"], false),
            (3, vec![("a", "3")], vec!["a=3"], true),
            (4, vec![("a", "3"), ("c", "")], vec!["a=3", "c="], true),
            (5, vec![], vec![], true),
        ] {
            let at = now + jiff::SignedDuration::from_secs(second);
            assert_eq!(write(folder.path(), &files(&rows), None, at).unwrap(), changed, "{second}");
            assert_eq!(listing(folder.path()), shown, "{second}");
        }
        let leftovers = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(leftovers, 2, "..data and the one folder it leads to");
    }

    #[test]
    fn paths_stay_below_the_volume() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["", "/etc/passwd", "../x", "a/../../x", "..data", "./a"] {
            assert!(
                write(folder.path(), &files(&[(path, "x")]), None, Timestamp::UNIX_EPOCH).is_err(),
                "{path:?}"
            );
        }
    }
}
