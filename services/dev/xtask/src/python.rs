//! Tools that come from PyPI, each in an environment of its own below the target folder.
//!
//! `python/NAME.txt` beside this crate's sources pins a tool and everything it needs. What is installed
//! already is not installed again: a stamp names the pins it was made from. Tests find a tool as
//! `target/tools/NAME/bin/…` (`dev_testkit::tool`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::run;
use crate::packages;

/// The folder with the tool's programs, installed when it is missing or pinned otherwise.
pub fn tool(target: &Path, name: &str, pins: &str) -> Result<PathBuf> {
    let place = target.join("tools").join(name);
    let programs = place.join("bin");
    let stamp = place.join(".pins");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == pins) {
        return Ok(programs);
    }
    packages::install_for_python()?;
    // A half made one would be in the way, should the last try have been interrupted.
    if place.exists() {
        std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&place))
        .with_context(|| format!("{name} needs a Python with venv; install python3-venv"))?;
    let requirements = place.join("pins.txt");
    std::fs::write(&requirements, pins)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    run(Command::new(programs.join("pip"))
        .args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement"])
        .arg(&requirements))
    .with_context(|| format!("cannot install {name}; is PyPI reachable?"))?;
    std::fs::write(&stamp, pins).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(programs)
}

/// A stand-in for AWS: EC2 and ELBv2 over HTTP.
pub fn moto(target: &Path) -> Result<PathBuf> {
    tool(target, "moto", include_str!("../python/moto.txt"))
}

/// Asks a REST API everything its description allows, and much that it doesn't.
pub fn schemathesis(target: &Path) -> Result<PathBuf> {
    tool(target, "schemathesis", include_str!("../python/schemathesis.txt"))
}

/// The official Python client, as programs of tenants use it.
pub fn kubernetes(target: &Path) -> Result<PathBuf> {
    tool(target, "kubernetes", include_str!("../python/kubernetes.txt"))
}
