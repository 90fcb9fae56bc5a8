//! The console in Debian's Chromium against the real binary: what `tests/console/journey.mjs` does.
//!
//! Needs Chromium, Node and the packages that `cargo xtask packages` installs. As root, the cluster has a
//! node and its pods' logs are followed; otherwise the same pages are shown without one. Screenshots are
//! kept in `screenshots` below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dev_testkit::{Fleet, Options, is_root};

#[test]
fn a_person_gets_by_with_the_console_alone() -> Result<()> {
    let scripts = scripts()?;
    let fleet = Fleet::start(Options { nodes: u8::from(is_root()), ..Options::default() })?;
    let url = format!("https://{}", fleet.manager);
    let password = std::fs::read_to_string(fleet.data().join("admin.password"))
        .context("the password of the first account")?;
    let pictures = pictures()?;
    let journey = Command::new("node")
        .arg(scripts.join("journey.mjs"))
        .env("CONSOLE_URL", &url)
        .env("CONSOLE_EMAIL", "admin@roadstead.local")
        .env("CONSOLE_PASSWORD", password.trim())
        .env("CONSOLE_KUBECONFIG", fleet.demo_kubeconfig())
        .env("CONSOLE_PICTURES", &pictures)
        .env("CONSOLE_NODES", if is_root() { "1" } else { "0" })
        .output()
        .context("cannot start node")?;
    let said = String::from_utf8_lossy(&journey.stdout);
    println!("{said}");
    ensure!(
        journey.status.success(),
        "{said}{}\nscreenshots: {}\n{}",
        String::from_utf8_lossy(&journey.stderr),
        pictures.display(),
        fleet.logs()
    );
    first_paint(&scripts, &url)
}

/// A page that takes seconds on this machine takes too long on every machine.
fn first_paint(scripts: &Path, url: &str) -> Result<()> {
    let measured =
        Command::new("node").arg(scripts.join("first-paint.mjs")).env("CONSOLE_URL", url).output()?;
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
    for (needed, what) in [
        (folder.join("node_modules/playwright-core"), "the browser tests' own packages"),
        (PathBuf::from("/usr/bin/chromium"), "Chromium"),
    ] {
        ensure!(needed.exists(), "{what}: {} is missing; run `cargo xtask packages`", needed.display());
    }
    Ok(folder)
}

/// An empty folder for this run's screenshots.
fn pictures() -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("no target folder")?;
    let folder = target.join("screenshots");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
