//! What runs goes on running when the manager is away.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dev_testkit::{ApiClient, Fleet, Options, bound};
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::json;

/// A child that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn cell_and_gateway_serve_without_a_manager() -> Result<()> {
    let mut fleet = Fleet::start(Options::default())?;
    fleet.kubectl().ok("create configmap before")?;
    fleet.stop()?;
    // The same two processes as `up` starts, and nothing else.
    let _cell = start(&fleet, "cell", "cells/cell-1/config.json")?;
    let _gateway = start(&fleet, "gateway", "gateway/config.json")?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let api = ApiClient::new(&fleet.kubeconfig()?)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        let path = "/api/v1/namespaces/default/configmaps";
        while api.call(Method::GET, &format!("{path}/before"), None).await.map_or(0, |(code, _)| code) != 200
        {
            ensure!(Instant::now() < deadline, "no answer without a manager");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        api.create(path, &json!({"metadata": {"name": "without-a-manager"}})).await?;
        Ok(())
    })?;
    Ok(())
}

fn start(fleet: &Fleet, verb: &str, config: &str) -> Result<Running> {
    let program = fleet.bare_command(verb).get_program().to_owned();
    let mut command = bound(program, Signal::SIGTERM);
    command.args([verb, "--config"]).arg(fleet.data().join(config)).stdout(Stdio::piped());
    let mut child = dev_testkit::start(command).with_context(|| format!("{verb} does not start"))?;
    let stdout = child.stdout.take().context("no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let running = Running(child);
    ensure!(line.starts_with('{'), "{verb} said {line:?} instead of being ready");
    Ok(running)
}
