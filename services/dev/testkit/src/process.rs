//! Processes: as `/proc` shows them, and servers that end with the test that started them.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{OnceLock, mpsc};

use anyhow::Result;
use nix::sys::signal::Signal;

/// The children of a process.
pub fn children_of(parent: i32) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // Processes come and go while we look.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in brackets, may hold blanks.
        let ppid = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<i32>().ok());
        if ppid == Some(parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The words of a process's command line; none once it is gone.
pub fn words_of(pid: i32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// `program`, which gets `signal` when this process ends, however it ends: a test that is killed cleans up
/// nothing. To be started by [`start`]. It goes through `setpriv` of util-linux, which replaces itself by the
/// program, so the child's pid is the program's.
pub fn bound(program: impl AsRef<OsStr>, signal: Signal) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal.as_str(), "--"]).arg(program);
    command
}

/// Starts it from a thread that lives as long as this process. The kernel sends the signal when the *thread*
/// ends that made the child, and what one test starts may be another's as well.
pub fn start(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static STARTER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (tell, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // Whoever does not wait for the child has no use for it either.
                let _ = answer.send(command.spawn());
            }
        });
        tell
    });
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (tell, answer) = mpsc::channel();
    starter.send((command, tell)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// Runs it to its end, with nothing to read.
pub fn output_of(mut command: Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    start(command)?.wait_with_output()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::{Duration, Instant};

    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;

    const INSIDE: &str = "ROADSTEAD_TEST_BOUND";

    fn is_gone(pid: i32) -> bool {
        // A zombie runs no more; whoever inherited it may not have looked yet.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }

    fn wait_until_gone(pid: i32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_gone(pid) {
            assert!(Instant::now() < deadline, "{pid} still runs");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    #[allow(clippy::zombie_processes, reason = "the inner child is waited for by nobody: that is the point")]
    fn a_bound_child_ends_with_a_process_that_is_killed_but_not_with_a_thread() {
        if std::env::var_os(INSIDE).is_some() {
            let mut sleep = bound("sleep", Signal::SIGKILL);
            sleep.arg("600").stdout(Stdio::null());
            let child = std::thread::spawn(|| start(sleep)).join().expect("a thread").expect("a child");
            println!("\nchild {}", child.id());
            std::thread::sleep(Duration::from_secs(600));
        }
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["process::tests::a_bound_child_ends_with_a_process_that_is_killed_but_not_with_a_thread"])
            .args(["--exact", "--nocapture"])
            .env(INSIDE, "1")
            .stdout(Stdio::piped());
        let mut parent = command.spawn().expect("this program again");
        let lines = BufReader::new(parent.stdout.take().expect("a pipe")).lines();
        let pid: i32 = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("child ")?.parse().ok())
            .expect("it says whom it started");
        // Its thread is gone by now, and some time passes.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!is_gone(pid), "the child ended with the thread");
        kill(Pid::from_raw(i32::try_from(parent.id()).expect("a pid")), Signal::SIGKILL).expect("killed");
        parent.wait().expect("gone");
        wait_until_gone(pid);
    }
}
