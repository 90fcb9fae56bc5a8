//! Running other programs.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

/// The cargo that runs this task.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs to the end; says what failed and how.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    eprintln!("xtask: {shown}");
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Becomes the program, so that Ctrl-C and exit codes are its own. Returns only if that fails.
pub fn replace_self(command: &mut Command) -> anyhow::Error {
    let shown = show(command);
    anyhow!(command.exec()).context(format!("cannot start `{shown}`"))
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}
