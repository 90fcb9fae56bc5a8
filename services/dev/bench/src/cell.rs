//! The process that is measured: the fleet's first cell, as `/proc` shows it.

use anyhow::{Context, Result};
use dev_testkit::Fleet;

/// What it holds in memory now.
pub fn resident_bytes(fleet: &Fleet) -> Result<u64> {
    status(fleet, "VmRSS:")
}

/// The most it has held since [`forget_peak`].
pub fn peak_bytes(fleet: &Fleet) -> Result<u64> {
    status(fleet, "VmHWM:")
}

/// `/proc/PID/clear_refs`, 5 (proc(5)).
pub fn forget_peak(fleet: &Fleet) -> Result<()> {
    Ok(std::fs::write(format!("/proc/{}/clear_refs", pid(fleet)?), "5")?)
}

/// Hundredths of a second of CPU that it has used (`USER_HZ` is 100 on Linux), so per second: percent.
pub fn cpu_ticks(fleet: &Fleet) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid(fleet)?))?;
    let (_, rest) = stat.rsplit_once(") ").context("no stat")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

fn status(fleet: &Fleet, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid(fleet)?))?;
    let line = status.lines().find(|line| line.starts_with(field)).context("no such field")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kib * 1024)
}

fn pid(fleet: &Fleet) -> Result<i32> {
    fleet.children("cell")?.first().copied().context("no cell runs")
}
