//! Programs of tenants against the real binary: what `tests/clients` does with the official clients for Python and
//! JavaScript, unchanged and from their registries.
//!
//! Needs what `cargo xtask test` installs. As root the cluster has a node, and the scripts also run commands in a
//! pod of it.
//!
//! Not here: kubectl, which most other tests use; what the server answers in detail (`custom_resources`, `streams`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dev_testkit::{Fleet, Options, bound, is_root, output_of, tool};
use nix::sys::signal::Signal;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: roadstead.local/demo:1
    command: [sh, -c, "echo ready; exec sleep 3600"]
"#;

#[test]
fn official_clients_notice_nothing() -> Result<()> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let packages = scripts.join("node/node_modules/@kubernetes/client-node");
    ensure!(packages.exists(), "{} is missing; run `cargo xtask packages`", packages.display());
    let python = tool("kubernetes", "python")?;
    let fleet = Fleet::start(Options { nodes: u8::from(is_root()), ..Options::default() })?;
    let pod = pod(&fleet)?;
    let outcome = [(python, "python/journey.py"), (PathBuf::from("node"), "node/journey.mjs")]
        .into_iter()
        .try_for_each(|(program, script)| {
            let mut journey = bound(program, Signal::SIGKILL);
            journey.arg(scripts.join(script)).args(pod).env("KUBECONFIG", fleet.demo_kubeconfig());
            walk(journey).with_context(|| script.to_owned())
        });
    fleet.explain(outcome)
}

/// One that a command can be run in, where there can be one.
fn pod(fleet: &Fleet) -> Result<Option<&'static OsStr>> {
    if !is_root() {
        eprintln!("SKIPPED: commands in a pod, which need a node, which needs root");
        return Ok(None);
    }
    let kubectl = fleet.kubectl();
    kubectl.ok_with(&["apply", "-f", "-"], POD)?;
    kubectl.until("logs box", "ready", Duration::from_secs(60))?;
    Ok(Some(OsStr::new("box")))
}

/// Every step says so, and the last one is `done`: a script that ends early has not passed.
fn walk(journey: Command) -> Result<()> {
    let walked = output_of(journey).context("cannot start")?;
    let said = String::from_utf8_lossy(&walked.stdout);
    println!("{said}");
    ensure!(
        walked.status.success() && said.lines().last() == Some("done"),
        "{said}{}",
        String::from_utf8_lossy(&walked.stderr)
    );
    Ok(())
}
