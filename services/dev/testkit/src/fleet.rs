//! A fleet started from the binary in `ROADSTEAD_BINARY`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use fleet_client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::{Kubeconfig, Kubectl, process};

/// Cold caches, a busy machine: far more than it takes, far less than a hung test would.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Options {
    pub cells: u8,
    pub nodes: u8,
    pub demo: bool,
    /// Runs as this user; root needs none.
    pub user: Option<u32>,
    /// The manager's, instead of a file.
    pub database: Option<String>,
    /// Further words for `up`.
    pub words: Vec<String>,
    /// Environment of `up` and its children, beside this process's own.
    pub env: Vec<(&'static str, String)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cells: 1,
            nodes: 0,
            demo: true,
            user: None,
            database: None,
            words: Vec::new(),
            env: Vec::new(),
        }
    }
}

/// Stopped, and its folder removed, when dropped.
pub struct Fleet {
    child: Option<Child>,
    dir: TempDir,
    options: Options,
    binary: PathBuf,
    pub gateway: SocketAddr,
    pub manager: SocketAddr,
    /// Everything `up` printed until it was ready.
    pub said: Vec<String>,
}

impl Fleet {
    /// Ready to be used when it returns.
    pub fn start(options: Options) -> Result<Fleet> {
        let binary = match std::env::var_os("ROADSTEAD_BINARY") {
            Some(path) => PathBuf::from(path),
            None => beside_this_test()?,
        };
        Fleet::start_binary(&binary, options)
    }

    pub fn start_binary(binary: &Path, options: Options) -> Result<Fleet> {
        let dir = tempfile::Builder::new().prefix("roadstead-test-").tempdir()?;
        let binary = match options.user {
            None => binary.to_owned(),
            Some(user) => {
                std::os::unix::fs::chown(dir.path(), Some(user), Some(user))?;
                copy_for_others(binary, dir.path())?
            }
        };
        let mut fleet = Fleet {
            child: None,
            dir,
            options,
            binary,
            gateway: free_port()?,
            manager: free_port()?,
            said: Vec::new(),
        };
        fleet.start_again()?;
        Ok(fleet)
    }

    /// After [`Fleet::stop`] or [`Fleet::kill`]: the same folder, the same ports.
    pub fn start_again(&mut self) -> Result<()> {
        // As Ctrl-C does, should this process be killed: nothing stays behind.
        let mut command = process::bound(&self.binary, Signal::SIGTERM);
        self.as_its_user(&mut command);
        command
            .args(["up", "--data"])
            .arg(self.data())
            .args(["--cells", &self.options.cells.to_string(), "--nodes", &self.options.nodes.to_string()])
            .args(["--gateway", &self.gateway.to_string(), "--manager", &self.manager.to_string()])
            .args((!self.options.demo).then_some("--no-demo"))
            .args(self.options.database.iter().flat_map(|url| ["--database", url]))
            .args(&self.options.words)
            .envs(self.options.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child =
            process::start(command).with_context(|| format!("cannot start {}", self.binary.display()))?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
        self.child = Some(child);
        let (lines, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let deadline = Instant::now() + READY_TIMEOUT;
        self.said.clear();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match said.recv_timeout(left) {
                Ok(line) => {
                    let ready = line.starts_with("ready in ");
                    self.said.push(line);
                    if ready {
                        // The rest is read by the thread until the channel is gone; hand it over.
                        std::thread::spawn(move || while said.recv().is_ok() {});
                        return Ok(());
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!(
                        "not ready within {READY_TIMEOUT:?}; it said:\n{}\n{}",
                        self.said.join("\n"),
                        self.logs()
                    )
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = self.child.take().map(|mut child| child.wait());
                    bail!("`up` ended ({status:?}); it said:\n{}\n{}", self.said.join("\n"), self.logs())
                }
            }
        }
    }

    /// The program under test.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// `roadstead VERB --data DIR`.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = self.bare_command(verb);
        command.arg("--data").arg(self.data());
        command
    }

    /// `roadstead VERB`.
    pub fn bare_command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(verb);
        self.as_its_user(&mut command);
        command
    }

    fn as_its_user(&self, command: &mut Command) {
        if let Some(user) = self.options.user {
            std::os::unix::process::CommandExt::uid(command, user);
            std::os::unix::process::CommandExt::gid(command, user);
        }
    }

    /// Runs a client verb; its output, or what it complained about.
    pub fn roadstead(&self, arguments: &[&str]) -> Result<String> {
        let (verb, rest) = arguments.split_first().ok_or_else(|| anyhow!("no verb"))?;
        let output = self.command(verb).args(rest).output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    pub fn data(&self) -> &Path {
        self.dir.path()
    }

    pub fn demo_kubeconfig(&self) -> PathBuf {
        self.data().join("demo.kubeconfig")
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.demo_kubeconfig())
    }

    pub fn kubeconfig(&self) -> Result<Kubeconfig> {
        Kubeconfig::read(&self.demo_kubeconfig())
    }

    /// The manager's API with the provider's token.
    pub fn client(&self) -> Result<Client> {
        let read = |name: &str| std::fs::read_to_string(self.data().join(name)).context(name.to_owned());
        Ok(Client::new(&format!("https://{}", self.manager), &read("fleet-ca.pem")?, &read("admin.token")?)?)
    }

    /// Process ids of children of `up` whose command line has `word` in it.
    pub fn children(&self, word: &str) -> Result<Vec<i32>> {
        let children = process::children_of(self.pid()?.as_raw())?;
        Ok(children.into_iter().filter(|pid| process::words_of(*pid).iter().any(|one| one == word)).collect())
    }

    pub fn pid(&self) -> Result<Pid> {
        let child = self.child.as_ref().ok_or_else(|| anyhow!("the fleet does not run"))?;
        Ok(Pid::from_raw(i32::try_from(child.id())?))
    }

    /// As Ctrl-C does.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("`up` ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill()?;
        child.wait()?;
        bail!("`up` did not stop within {STOP_TIMEOUT:?}\n{}", self.logs())
    }

    /// The whole fleet at once, without a chance to say goodbye.
    pub fn kill(&mut self) -> Result<()> {
        let mut all = self.children("cell")?;
        all.extend(self.children("gateway")?);
        all.extend(self.children("cloud-local")?);
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill()?;
        child.wait()?;
        for pid in all {
            // It may have gone with its parent.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        Ok(())
    }

    /// Adds to a failure what the cluster and the logs say.
    pub fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let asked = self.kubectl().run("get nodes,pods,events -A -o wide");
            let said = asked.map_or_else(|error| error.to_string(), |ran| ran.stdout + &ran.stderr);
            error.context(format!("{said}\n{}", self.logs()))
        })
    }

    /// The ends of all logs, for the message of a test that fails.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        let Ok(files) = std::fs::read_dir(self.data().join("logs")) else { return text };
        for file in files.flatten() {
            let log = std::fs::read_to_string(file.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            text += &format!("--- {}\n{}\n", file.file_name().to_string_lossy(), tail.join("\n"));
        }
        text
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        if let Err(error) = self.stop() {
            eprintln!("{error:#}");
        }
    }
}

/// The build's own folder may be closed to everybody but its owner.
pub fn copy_for_others(binary: &Path, folder: &Path) -> Result<PathBuf> {
    let copy = folder.join("roadstead");
    std::fs::copy(binary, &copy).with_context(|| format!("cannot copy {}", binary.display()))?;
    Ok(copy)
}

/// For tests of what needs network namespaces and containers.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Below what Linux hands out for port 0 and to outgoing connections (`ip_local_port_range`), and below NodePorts:
/// nobody is given one of these who has not asked for it.
const PORTS: Range<u16> = 20_000..30_000;

/// A port nobody listens on right now, and nobody will who does not choose it. Another test may, once in thousands of
/// times; then `up` says so.
pub fn free_port() -> Result<SocketAddr> {
    for _ in 0..100 {
        let random = RandomState::new().hash_one(std::process::id()) % PORTS.len() as u64;
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + random as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port in {PORTS:?}")
}

/// `target/debug/deps/some_test-…` → `target/debug/roadstead`
fn beside_this_test() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test.parent().and_then(Path::parent).ok_or_else(|| anyhow!("no target folder"))?;
    let binary = folder.join("roadstead");
    if !binary.exists() {
        bail!("{} is missing; run `cargo xtask test`, or `cargo build` first", binary.display());
    }
    Ok(binary)
}
