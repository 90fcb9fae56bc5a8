//! The console in Debian's Chromium against the real binary: what `tests/console/journey.mjs` and
//! `machines.mjs` do.
//!
//! Needs Chromium, Node and the packages that `cargo xtask packages` installs. As root, the cluster has a
//! node and its pods' logs are followed; otherwise the same pages are shown without one. Screenshots are
//! kept in `screenshots` below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dev_testkit::{Fleet, Options, bound, is_root, output_of};
use nix::sys::signal::Signal;

#[test]
fn a_person_gets_by_with_the_console_alone() -> Result<()> {
    let scripts = scripts()?;
    let fleet = Fleet::start(Options { nodes: u8::from(is_root()), ..Options::default() })?;
    walk(&scripts, "journey.mjs", &fleet, |journey| {
        journey
            .env("CONSOLE_KUBECONFIG", fleet.demo_kubeconfig())
            .env("CONSOLE_NODES", if is_root() { "1" } else { "0" });
    })?;
    first_paint(&scripts, &format!("https://{}", fleet.manager))
}

/// What takes more than one cell, and what takes machines.
#[test]
fn a_cluster_of_three_and_its_machines_are_at_hand() -> Result<()> {
    let scripts = scripts()?;
    let fleet = Fleet::start(Options { cells: 3, demo: false, ..Options::default() })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let demo = "demo".parse().context("name")?;
    runtime.block_on(async { fleet.client()?.create_organization(&demo).await.context("demo") })?;
    walk(&scripts, "machines.mjs", &fleet, |machines| {
        machines.env("CONSOLE_MACHINES", if is_root() { "1" } else { "0" });
    })
}

/// Without what it needs, the browser tests say what is missing and what brings it.
#[test]
fn what_is_missing_is_named() -> Result<()> {
    for (needs, word) in [
        (["/nowhere/node_modules", "/"], "the browser tests' own packages"),
        (["/", "/nowhere/chromium"], "Chromium"),
    ] {
        let said = match check(needs.map(PathBuf::from)) {
            Ok(()) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        ensure!(said.starts_with(word) && said.contains("cargo xtask packages"), "{said}");
    }
    Ok(())
}

/// Runs one of the scripts in the browser, as the operator.
fn walk(scripts: &Path, script: &str, fleet: &Fleet, more: impl FnOnce(&mut Command)) -> Result<()> {
    let password = std::fs::read_to_string(fleet.data().join("admin.password"))
        .context("the password of the first account")?;
    let pictures = pictures(script)?;
    // Chromium ends with the pipe to it.
    let mut command = bound("node", Signal::SIGKILL);
    command
        .arg(scripts.join(script))
        .env("CONSOLE_URL", format!("https://{}", fleet.manager))
        .env("CONSOLE_EMAIL", "admin@roadstead.local")
        .env("CONSOLE_PASSWORD", password.trim())
        .env("CONSOLE_PICTURES", &pictures);
    more(&mut command);
    let walked = output_of(command).context("cannot start node")?;
    let said = String::from_utf8_lossy(&walked.stdout);
    println!("{said}");
    ensure!(
        walked.status.success(),
        "{said}{}\nscreenshots: {}\n{}",
        String::from_utf8_lossy(&walked.stderr),
        pictures.display(),
        fleet.logs()
    );
    Ok(())
}

/// A page that takes seconds on this machine takes too long on every machine.
fn first_paint(scripts: &Path, url: &str) -> Result<()> {
    let mut script = bound("node", Signal::SIGKILL);
    script.arg(scripts.join("first-paint.mjs")).env("CONSOLE_URL", url);
    let measured = output_of(script)?;
    ensure!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout)?;
    println!("console: {figures}");
    let paint_ms = figures["first_paint_ms"].as_u64().context("no first paint")?;
    ensure!(paint_ms < 3000, "the first paint took {paint_ms} ms");
    // Precompressed, and split: what signs in does not load what shows clusters.
    let bytes = figures["transferred_bytes"].as_u64().context("no size")?;
    ensure!((10_000..250_000).contains(&bytes), "the first page took {bytes} bytes");
    Ok(())
}

/// The folder of the scripts, with what they need.
fn scripts() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
    check([folder.join("node_modules/playwright-core"), PathBuf::from("/usr/bin/chromium")])?;
    Ok(folder)
}

/// Whether the packages and the browser are there.
fn check([packages, chromium]: [PathBuf; 2]) -> Result<()> {
    for (needed, what) in [(packages, "the browser tests' own packages"), (chromium, "Chromium")] {
        ensure!(needed.exists(), "{what}: {} is missing; run `cargo xtask packages`", needed.display());
    }
    Ok(())
}

/// An empty folder for the screenshots of this run of `script`.
fn pictures(script: &str) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("no target folder")?;
    let folder = target.join("screenshots").join(script.trim_end_matches(".mjs"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
