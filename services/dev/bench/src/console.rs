//! Figures of the web console: how soon it shows something, and how much is sent for it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dev_testkit::Fleet;

use crate::table::Row;

/// Measured in Chromium by `tests/console/first-paint.mjs`, sizes from what was built.
pub fn figures(fleet: &Fleet, sources: &Path) -> Result<Vec<Row>> {
    let measured = Command::new("node")
        .arg(sources.join("tests/console/first-paint.mjs"))
        .env("CONSOLE_URL", format!("https://{}", fleet.manager))
        .output()
        .context("cannot start node")?;
    ensure!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    let seen: serde_json::Value = serde_json::from_slice(&measured.stdout)?;
    let figure = |name: &str| seen[name].as_u64().with_context(|| format!("no {name} in {seen}"));
    let dist = sources.join("services/fleet/console/web/dist/assets");
    let (plain, gzip, brotli) = (total(&dist, "")?, total(&dist, ".gz")?, total(&dist, ".br")?);
    let kib = |bytes: u64| format!("{} KiB", bytes / 1024);
    Ok(vec![
        Row::new(
            "console: first paint, nothing cached, median",
            format!("{} ms", figure("first_paint_ms")?),
            "500 ms",
        ),
        Row::new("console: sent for the first page", kib(figure("transferred_bytes")?), "150 KiB"),
        Row::new(
            "console: all of it, plain / gzip / brotli",
            format!("{} / {} / {}", kib(plain), kib(gzip), kib(brotli)),
            "250 KiB in brotli",
        ),
    ])
}

/// Bytes of all scripts and styles in the form that ends in `suffix`.
fn total(folder: &Path, suffix: &str) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_wanted = [".js", ".css"].iter().any(|kind| name.ends_with(&format!("{kind}{suffix}")));
        // Pages of a few hundred bytes have no smaller form, and are sent as they are.
        let has_none = !suffix.is_empty()
            && [".js", ".css"].iter().any(|kind| name.ends_with(kind))
            && !folder.join(format!("{name}{suffix}")).exists();
        if is_wanted || has_none {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}
