//! Child processes: started, waited for until ready, restarted when they die, ended in order.
//!
//! A child writes one line of JSON to its standard output once it serves; its standard error is its log.
//! [`Recipe::keep_running`] is for one that must come up, [`Recipe::keep_trying`] for one that may not.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use base_net::tasks::Tasks;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

/// A child that says nothing for this long will not come up. A node imports images first.
const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// How long a child may take to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Where a child's last words are looked for: logs grow for years.
const LAST_WORDS_BYTES: u64 = 64 << 10;

/// Before a child that died is started again; doubled each time up to the longest.
const RESTART_DELAY: Duration = Duration::from_millis(200);
const LONGEST_RESTART_DELAY: Duration = Duration::from_secs(10);

/// How to start one.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// For messages.
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub log: PathBuf,
}

/// One that runs; stops with `Tasks`, and is restarted until then.
pub struct Running<T> {
    /// What it said when it was ready, again after each restart.
    pub ready: mpsc::Receiver<T>,
}

/// How a child of [`Recipe::keep_trying`] is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It runs and has not said that it is ready.
    Starting,
    Ready,
    /// It ended, or never started, and is started again after a while.
    Down {
        why: String,
    },
}

/// Said by a child that serves; see [`Running::ready`].
pub fn say_ready(what: &impl Serialize) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(what)?)?;
    out.flush()?;
    Ok(())
}

/// Called first by a child: ends with its parent, even when that is killed.
pub fn die_with_parent() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .context("cannot ask to be told of the parent's death")?;
    // The parent may have died before we asked.
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get() == 1) {
        bail!("the parent process is gone");
    }
    Ok(())
}

impl Recipe {
    /// Starts the child, waits until it is ready and keeps it running until `tasks` is stopped.
    pub async fn keep_running<T: DeserializeOwned + Send + 'static>(
        self,
        tasks: &Tasks,
    ) -> Result<(T, Running<T>)> {
        let (mut child, first) = self.start(READY_TIMEOUT).await?;
        let (tell, ready) = mpsc::channel(8);
        let stop = tasks.stopping();
        tasks.spawn_to_end(async move {
            let mut delay = RESTART_DELAY;
            loop {
                let status = tokio::select! {
                    status = child.wait() => status,
                    () = stop.cancelled() => {
                        end(&self.name, child).await;
                        return;
                    }
                };
                tracing::error!(child = %self.name, status = %describe(status), log = %self.log.display(), "died; starting it again");
                loop {
                    tokio::select! {
                        () = tokio::time::sleep(delay) => {}
                        () = stop.cancelled() => return,
                    }
                    delay = (delay * 2).min(LONGEST_RESTART_DELAY);
                    // Dropped when it is to stop meanwhile, which kills the child.
                    let started = tokio::select! {
                        started = self.start(READY_TIMEOUT) => started,
                        () = stop.cancelled() => return,
                    };
                    match started {
                        Ok((again, said)) => {
                            child = again;
                            delay = RESTART_DELAY;
                            // Whoever asked may no longer care where it is.
                            let _ = tell.try_send(said);
                            break;
                        }
                        Err(error) => tracing::error!(child = %self.name, "not started: {error:#}"),
                    }
                }
            }
        });
        Ok((first, Running { ready }))
    }

    /// Keeps the child running until `tasks` is stopped, whether or not it ever becomes ready; what it
    /// says is of no interest. One that is not ready within `patience` is started anew.
    pub fn keep_trying(self, patience: Duration, tasks: &Tasks) -> watch::Receiver<Health> {
        let (tell, health) = watch::channel(Health::Starting);
        let stop = tasks.stopping();
        tasks.spawn_to_end(async move {
            let mut delay = RESTART_DELAY;
            loop {
                tell.send_replace(Health::Starting);
                let started = tokio::select! {
                    started = self.start::<serde_json::Value>(patience) => started,
                    () = stop.cancelled() => return,
                };
                let why = match started {
                    Ok((mut child, _)) => {
                        delay = RESTART_DELAY;
                        tell.send_replace(Health::Ready);
                        tokio::select! {
                            status = child.wait() => format!("{}: {}", describe(status), self.last_words()),
                            () = stop.cancelled() => return end(&self.name, child).await,
                        }
                    }
                    Err(error) => format!("{error:#}"),
                };
                tracing::warn!(child = %self.name, %why, wait_ms = delay.as_millis() as u64, "down; starting it again");
                tell.send_replace(Health::Down { why });
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = stop.cancelled() => return,
                }
                delay = (delay * 2).min(LONGEST_RESTART_DELAY);
            }
        });
        health
    }

    async fn start<T: DeserializeOwned>(&self, patience: Duration) -> Result<(Child, T)> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C goes to the whole foreground group; children stop when they are told to, in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("{} has no output", self.name))?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(patience, lines.next_line()).await;
        let line = match line {
            Ok(Ok(Some(line))) => line,
            Ok(_) => {
                let status = child.wait().await;
                bail!("{} {}: {}", self.name, describe(status), self.last_words());
            }
            Err(_) => {
                end(&self.name, child).await;
                bail!("{} was not ready within {patience:?}; see {}", self.name, self.log.display());
            }
        };
        // Whatever else it prints is read and thrown away, or it would block once the pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let said = serde_json::from_str(&line)
            .with_context(|| format!("{} said {line:?} instead of where it serves", self.name))?;
        Ok((child, said))
    }

    /// The last line of its log: a child that fails says why there.
    fn last_words(&self) -> String {
        let log = tail(&self.log, LAST_WORDS_BYTES).unwrap_or_default();
        match log.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => line.strip_prefix("roadstead: ").unwrap_or(line).to_owned(),
            None => format!("see {}", self.log.display()),
        }
    }
}

/// The end of a file that may be large.
fn tail(path: &Path, bytes: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut end = Vec::new();
    file.take(bytes).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("ended with {status}"),
        Err(error) => format!("was lost: {error}"),
    }
}

async fn end(name: &str, mut child: Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have died this instant, which is what is wanted.
        let _ = kill(pid, Signal::SIGTERM);
    }
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        tracing::warn!(child = name, "did not stop within {STOP_TIMEOUT:?}; killing it");
        let _ = child.kill().await;
    }
}
