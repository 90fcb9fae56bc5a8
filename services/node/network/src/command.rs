//! Runs a small tool and turns its failure into one clear line.

use std::io;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{program} is not installed (Debian package {package})")]
    Missing { program: String, package: &'static str },
    #[error("{program} did not start")]
    Start {
        program: String,
        #[source]
        cause: io::Error,
    },
    /// The tool ran and said no.
    #[error("`{command}` failed: {said}")]
    Failed { command: String, said: String },
}

impl CommandError {
    /// Whether what the tool said contains `words`.
    pub fn said(&self, words: &str) -> bool {
        matches!(self, CommandError::Failed { said, .. } if said.contains(words))
    }
}

/// Runs `program` with `input` on its standard input; what it printed, if it succeeded.
pub async fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, CommandError> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        // /usr/sbin is not on every PATH, and ours may be minimal.
        .env("PATH", search_path())
        .env("LC_ALL", "C")
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let start = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => {
            CommandError::Missing { program: program.to_owned(), package: package_of(program) }
        }
        _ => CommandError::Start { program: program.to_owned(), cause },
    };
    let mut child = command.spawn().map_err(start)?;
    if let (Some(mut stdin), Some(text)) = (child.stdin.take(), input) {
        // A tool that stops reading has something to say on stderr; that is the better message.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said =
        said.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect::<Vec<_>>().join("; ");
    let said = if said.is_empty() { output.status.to_string() } else { said };
    Err(CommandError::Failed { command: format!("{program} {}", arguments.join(" ")), said })
}

/// Where programs are looked for: the caller's PATH, with the folders of system tools behind it.
pub fn search_path() -> String {
    match std::env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"),
        // An empty part would be the current folder.
        _ => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
    }
}

fn package_of(program: &str) -> &'static str {
    match program {
        "ip" => "iproute2",
        "nft" => "nftables",
        "conntrack" => "conntrack",
        _ => "util-linux",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_say_what_to_do() {
        assert_eq!(run("cat", &[], Some("hello")).await.unwrap(), "hello");
        let missing = run("roadstead-no-such-tool", &[], None).await.unwrap_err();
        assert!(matches!(missing, CommandError::Missing { .. }), "{missing}");
        let failed = run("ls", &["/no/such/folder"], None).await.unwrap_err();
        assert!(failed.said("No such file"), "{failed}");
    }
}
