//! Real `kubectl`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Ran {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    pub fn new(kubeconfig: &Path) -> Kubectl {
        Kubectl { kubeconfig: kubeconfig.to_owned() }
    }

    /// Runs `kubectl` with these words, whatever comes of it.
    pub fn run(&self, words: &str) -> Result<Ran> {
        self.run_with(&words.split_whitespace().collect::<Vec<_>>(), "")
    }

    pub fn run_with(&self, words: &[&str], stdin: &str) -> Result<Ran> {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            // It may not read what it was given; that shows in its answer.
            let _ = pipe.write_all(stdin.as_bytes());
        }
        let output = child.wait_with_output()?;
        Ok(Ran {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// `kubectl` with these words, yet to be run.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(words)
            .env("KUBECONFIG", &self.kubeconfig)
            // A cache of its own: discovery of one test's cluster must not answer for another's.
            .env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"));
        command
    }

    /// Standard output of a run that must succeed.
    pub fn ok(&self, words: &str) -> Result<String> {
        self.ok_with(&words.split_whitespace().collect::<Vec<_>>(), "")
    }

    pub fn ok_with(&self, words: &[&str], stdin: &str) -> Result<String> {
        let ran = self.run_with(words, stdin)?;
        if !ran.success {
            bail!("`kubectl {}` failed:\n{}{}", words.join(" "), ran.stderr, ran.stdout);
        }
        Ok(ran.stdout)
    }

    /// Repeats a run until its output has `wanted` in it.
    pub fn until(&self, words: &str, wanted: &str, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            let ran = self.run(words)?;
            if ran.success && ran.stdout.contains(wanted) {
                return Ok(ran.stdout);
            }
            if Instant::now() > deadline {
                bail!(
                    "`kubectl {words}` never showed {wanted:?} within {patience:?}; last:\n{}{}",
                    ran.stdout,
                    ran.stderr
                );
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
