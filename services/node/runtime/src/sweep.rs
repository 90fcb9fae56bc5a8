//! Cleans up behind a node that was killed.
//!
//! containerd, shims and containers live on when the agent is killed. [`sweep`] finds them by the socket they
//! serve or report to, ends them by their ids, and undoes the mounts under the node's folders.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a killed containerd may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Ends every process that a containerd at `socket` left behind and unmounts all below `folders`.
///
/// Ends that containerd too, if an agent that was killed left it running. Gives the number of processes ended.
pub async fn sweep(socket: &Path, folders: &[&Path]) -> io::Result<usize> {
    // It would clean up after the shims at the same time as we do.
    let mut ended = end_daemons(socket).await?;
    // A container's processes are children of its shim; with the shim gone they are nobody's, so they go first.
    for shim in shims_of(socket)? {
        for child in children_of(shim)? {
            ended += usize::from(kill(child, Signal::SIGKILL).is_ok());
        }
        ended += usize::from(kill(shim, Signal::SIGKILL).is_ok());
    }
    if ended > 0 {
        // Mounts are busy until the last process is really gone.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for folder in folders {
        unmount_below(folder)?;
    }
    Ok(ended)
}

/// Ends containerds that serve `socket`; containers live on. Waits until they are gone, since one that is left
/// keeps the database locked. Gives their number.
pub(crate) async fn end_daemons(socket: &Path) -> io::Result<usize> {
    let daemons = daemons_of(socket)?;
    for daemon in &daemons {
        if let Err(cause) = kill(*daemon, Signal::SIGKILL) {
            tracing::debug!(pid = %daemon, %cause, "containerd is already gone");
        }
    }
    let deadline = tokio::time::Instant::now() + GONE_WITHIN;
    while !daemons_of(socket)?.is_empty() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(daemons.len())
}

/// Undoes every mount below `folder`, deepest first.
pub(crate) fn unmount_below(folder: &Path) -> io::Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    for point in mounts_below(&table, folder) {
        if let Err(cause) = nix::mount::umount2(point.as_str(), nix::mount::MntFlags::MNT_DETACH) {
            tracing::warn!(mount = point, %cause, "left-over mount stays");
        }
    }
    Ok(())
}

/// Mount points of a mountinfo table that lie below `folder`, the latest mounted first.
fn mounts_below(table: &str, folder: &Path) -> Vec<String> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut below: Vec<String> =
        points.filter(|point| Path::new(point) != folder && Path::new(point).starts_with(folder)).collect();
    below.reverse();
    below
}

/// mountinfo writes blanks and backslashes in octal.
fn unescape(field: &str) -> String {
    let mut plain = field.to_owned();
    for (escaped, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escaped, character);
    }
    plain
}

/// containerds by the configuration that they were started with; a zombie has no command line any more.
fn daemons_of(socket: &Path) -> io::Result<Vec<Pid>> {
    let mut daemons = Vec::new();
    for pid in processes()? {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let Some(file) = configuration_of(&command) else { continue };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if serves(&text, socket) {
            daemons.push(pid);
        }
    }
    Ok(daemons)
}

/// The configuration that a containerd's command line names.
fn configuration_of(command: &[u8]) -> Option<&Path> {
    let mut words = command.split(|byte| *byte == 0);
    let name = Path::new(std::str::from_utf8(words.next()?).ok()?);
    name.ends_with("containerd").then_some(())?;
    words.find(|word| *word == b"--config")?;
    Some(Path::new(std::str::from_utf8(words.next()?).ok()?))
}

fn serves(configuration: &str, socket: &Path) -> bool {
    let line = format!("address = {}", serde_json::Value::from(socket.display().to_string()));
    configuration.lines().any(|have| have.trim() == line)
}

fn shims_of(socket: &Path) -> io::Result<Vec<Pid>> {
    let address = socket.display().to_string();
    let mut shims = Vec::new();
    for pid in processes()? {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let is_shim = arguments.first().is_some_and(|name| name.ends_with(b"containerd-shim-runc-v2"));
        if is_shim && arguments.windows(2).any(|pair| pair[0] == b"-address" && pair[1] == address.as_bytes())
        {
            shims.push(pid);
        }
    }
    Ok(shims)
}

fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for pid in processes()? {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in brackets, may itself hold blanks and brackets.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        let ppid = fields.and_then(|mut fields| fields.nth(1)).and_then(|ppid| ppid.parse().ok());
        if ppid == Some(parent.as_raw()) {
            children.push(pid);
        }
    }
    Ok(children)
}

fn processes() -> io::Result<Vec<Pid>> {
    let entries = std::fs::read_dir("/proc")?;
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    Ok(names.filter_map(|name| name.to_str()?.parse().ok()).map(Pid::from_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containerd_is_known_by_its_configuration() {
        for (command, file) in [
            (&b"containerd\0--config\0/d/c.toml\0"[..], Some("/d/c.toml")),
            (b"/usr/bin/containerd\0--config\0/d/c.toml\0", Some("/d/c.toml")),
            (b"/usr/bin/containerd\0", None),
            (b"containerd\0--config\0", Some("")),
            (b"containerd-shim-runc-v2\0--config\0/d/c.toml\0", None),
            (b"vi\0--config\0/d/c.toml\0", None),
            (b"", None),
        ] {
            assert_eq!(
                configuration_of(command),
                file.map(Path::new),
                "{}",
                String::from_utf8_lossy(command)
            );
        }
        let text = "[grpc]\n  address = \"/run/n1/c.sock\"\n";
        assert!(serves(text, Path::new("/run/n1/c.sock")));
        assert!(!serves(text, Path::new("/run/n1/c")));
        assert!(!serves("", Path::new("/run/n1/c.sock")));
    }

    #[test]
    fn deeper_mounts_come_first_and_neighbours_stay() {
        let table = "22 1 0:1 / / rw - ext4 /dev/vda rw\n\
                     30 22 0:2 / /run/n1 rw - tmpfs tmpfs rw\n\
                     31 30 0:3 / /run/n1/a\\040b rw - tmpfs tmpfs rw\n\
                     32 31 0:4 / /run/n1/a\\040b/c rw - tmpfs tmpfs rw\n\
                     33 22 0:5 / /run/n10/x rw - tmpfs tmpfs rw\n";
        assert_eq!(mounts_below(table, Path::new("/run/n1")), ["/run/n1/a b/c", "/run/n1/a b"]);
    }
}
