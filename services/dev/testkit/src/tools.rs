//! Programs that `cargo xtask test` fetched.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};

/// `target/tools/TOOL/bin/PROGRAM`, seen from `target/debug/deps/some_test-…`.
pub fn tool(tool: &str, program: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("where this test is")?;
    let target =
        test.ancestors().nth(3).ok_or_else(|| anyhow!("no target folder above {}", test.display()))?;
    let path = target.join("tools").join(tool).join("bin").join(program);
    if !path.exists() {
        bail!("{} is missing; `cargo xtask test` installs it", path.display());
    }
    Ok(path)
}
