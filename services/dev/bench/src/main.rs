//! Measured figures of a real fleet, printed as a table.
//!
//! Each row says what was measured, over how many, and the aim it is held against. A figure that misses
//! its aim is printed, not hidden; nothing here passes or fails.

mod cell;
mod cloud;
mod console;
mod replicas;
mod rows;
mod server;
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
    #[arg(long, default_value_t = 200, value_parser = at_least_one)]
    clusters: usize,
    /// ConfigMaps to create
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one)]
    writes: usize,
    /// Cells to kill
    #[arg(long, default_value_t = 9, value_parser = at_least_one)]
    kills: usize,
    /// Pods to list
    #[arg(long, default_value_t = 10_000, value_parser = at_least_one)]
    pods: usize,
    /// ConfigMaps of one cluster to look through
    #[arg(long, default_value_t = 100_000, value_parser = at_least_one)]
    objects: usize,
    /// Watchers that all see the same events
    #[arg(long, default_value_t = 200, value_parser = at_least_one)]
    watchers: usize,
    /// Events they see
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one)]
    events: usize,
    /// The checkout, for figures of the console; needs its built pages, Node and Chromium
    #[arg(long)]
    sources: Option<PathBuf>,
}

/// A figure over nothing is none.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a whole number from 1".to_owned()),
        Ok(count) => Ok(count),
    }
}

/// Rows, and what could not be measured: it is said at the end, and takes no other figure with it.
#[derive(Default)]
struct Measured {
    rows: Vec<Row>,
    missing: Vec<anyhow::Error>,
}

impl Measured {
    fn take(&mut self, what: &'static str, found: Result<Vec<Row>>) {
        match found.context(what) {
            Ok(found) => self.rows.extend(found),
            Err(error) => self.missing.push(error),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut measured = Measured::default();
    let fleet = Fleet::start_binary(&arguments.binary, Options { demo: true, ..Options::default() })?;
    runtime.block_on(measure(&fleet, &arguments, &mut measured));
    if let Some(sources) = &arguments.sources {
        measured.take("console", console::figures(&fleet, sources));
    }
    drop(fleet);
    let options = Options { cells: 3, demo: false, ..Options::default() };
    let fleet = Fleet::start_binary(&arguments.binary, options)?;
    runtime.block_on(measure_replicas(&fleet, &arguments, &mut measured));
    drop(fleet);
    print(&measured.rows);
    match measured.missing.is_empty() {
        true => Ok(()),
        false => bail!(
            "not measured: {}",
            measured.missing.iter().map(|one| format!("{one:#}")).collect::<Vec<_>>().join("; ")
        ),
    }
}

/// One cell with many clusters; what comes later is measured beside all that came before.
async fn measure(fleet: &Fleet, arguments: &Arguments, measured: &mut Measured) {
    measured.take("clusters", rows::clusters(fleet, arguments.clusters).await);
    measured.take("writes", rows::writes(fleet, arguments.writes).await);
    measured.take("list", rows::list(fleet, arguments.pods).await);
    measured.take("objects", server::objects(fleet, arguments.objects).await);
    measured.take("watchers", server::watchers(fleet, arguments.watchers, arguments.events).await);
    measured.take("idle watches", server::idle_watches(fleet).await);
    measured.take("large lists", server::large_lists(fleet).await);
    if dev_testkit::is_root() {
        measured.take("load balancers", cloud::balancers(fleet).await);
        measured.take("machines", cloud::machines(fleet).await);
    }
}

async fn measure_replicas(fleet: &Fleet, arguments: &Arguments, measured: &mut Measured) {
    let (clusters, writes) = (arguments.clusters.min(50), arguments.writes.min(5_000));
    measured.take("replicas", replicas::one_and_three(fleet, clusters, writes).await);
    measured.take("killed cells", replicas::kill(fleet, arguments.kills).await);
}
