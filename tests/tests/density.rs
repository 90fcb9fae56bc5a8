//! What an idle cluster costs the cell that hosts it.
//!
//! `cargo xtask bench` has the figure itself, from a release build (aim: under 1 MiB over 200 clusters). This
//! is the alarm: a bound that a debug build keeps as well, and that a doubling breaks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base_ids::Slug;
use dev_testkit::{Fleet, Options};
use fleet_model::CreateCluster;

const CLUSTERS: u64 = 40;
/// A group's Raft closes two seconds after its last write; what its rings held goes back within another.
const SETTLE: Duration = Duration::from_secs(8);
/// Twice the aim.
const MOST_KIB: u64 = 2048;

#[test]
fn an_idle_cluster_is_small() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fleet = Fleet::start(Options::default())?;
    runtime.block_on(async {
        let manager = fleet.client()?;
        let org: Slug = "dense".parse()?;
        manager.create_organization(&org).await?;
        let create = async |number: u64| -> Result<()> {
            let name: Slug = format!("c{number}").parse()?;
            manager.create_cluster(&org, &CreateCluster::named(name)).await?;
            Ok(())
        };
        // The first ones also load what all share.
        for number in 0..4 {
            create(number).await?;
        }
        tokio::time::sleep(SETTLE).await;
        let before = resident_kib(&fleet)?;
        for number in 4..4 + CLUSTERS {
            create(number).await?;
        }
        tokio::time::sleep(SETTLE).await;
        let each = resident_kib(&fleet)?.saturating_sub(before) / CLUSTERS;
        println!("an idle cluster: {each} KiB");
        ensure!(each > 0, "nothing was measured");
        ensure!(each < MOST_KIB, "{each} KiB");
        Ok(())
    })
}

fn resident_kib(fleet: &Fleet) -> Result<u64> {
    let cell = fleet.children("cell")?.first().copied().context("no cell runs")?;
    let status = std::fs::read_to_string(format!("/proc/{cell}/status"))?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).context("no RssAnon")?;
    Ok(line.split_whitespace().nth(1).context("no figure")?.parse()?)
}
