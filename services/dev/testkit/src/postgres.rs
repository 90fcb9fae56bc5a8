//! A real PostgreSQL of Debian's, for one test.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User};
use tempfile::TempDir;

/// Where Debian puts each version's programs.
const PROGRAMS: &str = "/usr/lib/postgresql";

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Stopped, and its folder removed, when dropped.
pub struct Postgres {
    child: Child,
    dir: TempDir,
    port: u16,
    programs: PathBuf,
    user: Option<User>,
    databases: u32,
}

impl Postgres {
    /// Ready to be used when it returns; empty.
    pub fn start() -> Result<Postgres> {
        let programs = programs()?;
        // The server refuses to run as root.
        let user = match crate::is_root() {
            true => Some(User::from_name("postgres")?.context("there is no user postgres")?),
            false => None,
        };
        let dir = tempfile::Builder::new().prefix("roadstead-postgres-").tempdir()?;
        if let Some(user) = &user {
            std::os::unix::fs::chown(dir.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        let data = dir.path().join("data");
        let made = command(&programs, "initdb", user.as_ref())
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"])
            .arg("--pgdata")
            .arg(&data)
            .current_dir(dir.path())
            .output()
            .context("cannot start initdb")?;
        if !made.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = std::fs::File::create(dir.path().join("log"))?;
        // Its "immediate shutdown", as when this is dropped.
        let mut server = crate::bound(programs.join("postgres"), Signal::SIGQUIT);
        as_user(&mut server, user.as_ref());
        server
            .arg("-D")
            .arg(&data)
            .arg("-p")
            .arg(port.to_string())
            .arg("-k")
            .arg(dir.path())
            // A test's database need not survive a power cut.
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = crate::start(server).context("cannot start postgres")?;
        let mut postgres = Postgres { child, dir, port, programs, user, databases: 0 };
        postgres.wait_until_ready()?;
        Ok(postgres)
    }

    /// The address of a new, empty database.
    pub fn database(&mut self) -> Result<String> {
        self.databases += 1;
        let name = format!("test{}", self.databases);
        let made = self
            .program("createdb")
            .args(["--host=127.0.0.1", "--username=postgres", "--port", &self.port.to_string(), &name])
            .output()?;
        if !made.status.success() {
            bail!("createdb: {}", String::from_utf8_lossy(&made.stderr));
        }
        Ok(format!("postgres://postgres@127.0.0.1:{}/{name}", self.port))
    }

    fn program(&self, name: &str) -> Command {
        let mut command = command(&self.programs, name, self.user.as_ref());
        command.current_dir(self.dir.path());
        command
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("postgres ended with {status}\n{}", self.log());
            }
            let port = self.port.to_string();
            let asked = self.program("pg_isready").args(["-q", "-h", "127.0.0.1", "-p", &port]).status()?;
            if asked.success() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("postgres is not ready after {START_TIMEOUT:?}\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // At once, as for its "immediate shutdown": nothing of it is kept.
            let _ = kill(Pid::from_raw(pid), Signal::SIGQUIT);
        }
        let _ = self.child.wait();
    }
}

fn command(programs: &Path, name: &str, user: Option<&User>) -> Command {
    let mut command = Command::new(programs.join(name));
    as_user(&mut command, user);
    command
}

fn as_user(command: &mut Command, user: Option<&User>) {
    if let Some(user) = user {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.env("LC_ALL", "C.UTF-8");
}

/// The newest version's.
fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir(PROGRAMS)
        .with_context(|| format!("{PROGRAMS} is missing; run `cargo xtask packages`"))?;
    versions
        .flatten()
        .filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin")))
        })
        .max()
        .map(|(_, programs)| programs)
        .ok_or_else(|| anyhow!("no PostgreSQL below {PROGRAMS}; run `cargo xtask packages`"))
}
