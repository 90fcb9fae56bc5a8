//! A test in namespaces of its own: whatever it starts, containers with their shims too, ends with it, even
//! when it is killed.
//!
//! Not here: a machine that other processes enter (`machine`).

use std::io;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

const INSIDE: &str = "ROADSTEAD_TEST_ALONE";

/// Runs the calling test, `name` in full, once more in namespaces for processes and mounts and those that
/// `more` asks `unshare` for, after the shell commands `first`. `None` in there: go on. Needs root.
pub fn alone(name: &str, more: &[&str], first: &str) -> io::Result<Option<ExitStatus>> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(None);
    }
    let mut command = crate::bound("unshare", Signal::SIGKILL);
    command
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(more)
        .args(["--", "sh", "-c", &format!("{first}exec \"$0\" --exact \"$1\" --nocapture")])
        .arg(std::env::current_exe()?)
        .arg(name)
        .env(INSIDE, "1");
    crate::start(command)?.wait().map(Some)
}
