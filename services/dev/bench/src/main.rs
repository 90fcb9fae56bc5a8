//! Measured figures of a real fleet, printed as a table.
//!
//! Each row says what was measured, over how many, and the aim it is held against. A figure that misses
//! its aim is printed, not hidden; nothing here passes or fails.

mod cloud;
mod console;
mod replicas;
mod rows;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use dev_testkit::{Fleet, Options};

use crate::table::{Row, print};

#[derive(Debug, Parser)]
#[command(name = "bench", about = "Measures a fleet that it starts from a release build")]
struct Arguments {
    /// The binary to measure
    #[arg(long)]
    binary: PathBuf,
    /// Clusters to create
    #[arg(long, default_value_t = 200)]
    clusters: usize,
    /// ConfigMaps to create
    #[arg(long, default_value_t = 20_000)]
    writes: usize,
    /// Cells to kill
    #[arg(long, default_value_t = 9)]
    kills: usize,
    /// Pods to list
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// The checkout, for figures of the console; needs its built pages, Node and Chromium
    #[arg(long)]
    sources: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fleet = Fleet::start_binary(&arguments.binary, Options { demo: true, ..Options::default() })?;
    let mut rows = runtime.block_on(measure(&fleet, &arguments))?;
    // What cannot be measured is said, and takes no other figure with it.
    let mut missing = Vec::new();
    let mut take = |found: Result<Vec<Row>>| match found {
        Ok(found) => rows.extend(found),
        Err(error) => missing.push(error),
    };
    if dev_testkit::is_root() {
        take(runtime.block_on(cloud::figures(&fleet)).context("cloud"));
    }
    if let Some(sources) = &arguments.sources {
        take(console::figures(&fleet, sources).context("console"));
    }
    drop(fleet);
    let options = Options { cells: 3, demo: false, ..Options::default() };
    let fleet = Fleet::start_binary(&arguments.binary, options)?;
    rows.extend(runtime.block_on(measure_replicas(&fleet, &arguments))?);
    print(&rows);
    match missing.is_empty() {
        true => Ok(()),
        false => bail!(
            "not measured: {}",
            missing.iter().map(|one| format!("{one:#}")).collect::<Vec<_>>().join("; ")
        ),
    }
}

async fn measure(fleet: &Fleet, arguments: &Arguments) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    rows.extend(rows::clusters(fleet, arguments.clusters).await.context("clusters")?);
    rows.extend(rows::writes(fleet, arguments.writes).await.context("writes")?);
    rows.extend(rows::list(fleet, arguments.pods).await.context("list")?);
    Ok(rows)
}

async fn measure_replicas(fleet: &Fleet, arguments: &Arguments) -> Result<Vec<Row>> {
    let (clusters, writes) = (arguments.clusters.min(50), arguments.writes.min(5_000));
    let mut rows = replicas::one_and_three(fleet, clusters, writes).await.context("replicas")?;
    rows.extend(replicas::kill(fleet, arguments.kills).await.context("killed cells")?);
    Ok(rows)
}
