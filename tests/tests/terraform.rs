//! The real terraform and the real provider against a real fleet: the quickstart's road, from nothing to
//! kubectl and back to nothing, with machines of a pool, and with either side killed on the way. What else
//! goes wrong is tried in `terraform/provider/tests`, where a manager in memory can be told to.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base_ids::Slug;
use dev_testkit::{Fleet, Kubectl, Options, Terraform, is_root};
use fleet_model::{Cluster, ClusterState, MachineState, NodePool};

/// A machine boots in seconds; a busy one gets some more.
const PATIENCE: Duration = Duration::from_secs(180);

fn configuration() -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../terraform/examples/quickstart/main.tf");
    std::fs::read_to_string(&file).with_context(|| file.display().to_string())
}

#[test]
fn the_quickstart_works() -> Result<()> {
    let fleet = Fleet::start(Options::default())?;
    let mut terraform = Terraform::new(&Terraform::provider()?)?;
    // As somebody who ran `up` and has no login: the data folder alone says where and who.
    terraform.set("ROADSTEAD_DATA", &fleet.data().display().to_string());
    terraform.set("HOME", &terraform.folder().display().to_string());
    // The example itself; machines of a pool are the cloud's own tests' matter, and need root.
    terraform.set("TF_VAR_machines", "0");
    let configuration = configuration()?;
    let main = terraform.folder().join("main.tf");
    std::fs::write(&main, &configuration)?;
    terraform.init()?;
    terraform.apply()?;
    ensure!(terraform.plan()?.is_empty(), "second plan: {:?}", terraform.plan()?);

    let kubeconfig = terraform.folder().join("kubeconfig");
    std::fs::write(&kubeconfig, terraform.output("kubeconfig")?)?;
    ensure!(Kubectl::new(&kubeconfig).ok("get namespaces")?.contains("kube-system"));

    // In place.
    let id = terraform.attribute("roadstead_cluster.quickstart", "id")?;
    let renamed = configuration.replace("\"quickstart\"\n  labels", "\"renamed\"\n  labels");
    ensure!(renamed != configuration);
    std::fs::write(&main, &renamed)?;
    ensure!(terraform.plan()?.contains(&"roadstead_cluster.quickstart: update".to_owned()));
    terraform.apply()?;
    assert_eq!(terraform.attribute("roadstead_cluster.quickstart", "id")?, id);
    ensure!(fleet.roadstead(&["cluster", "list", "--org", "demo"])?.contains("renamed"));
    ensure!(Kubectl::new(&kubeconfig).ok("get namespaces")?.contains("default"), "renamed and cut off");

    // Taken out and brought back.
    terraform.ok(&["state", "rm", "roadstead_node_pool.workers"])?;
    terraform.ok(&["state", "rm", "roadstead_cluster.quickstart"])?;
    terraform.ok(&["import", "-no-color", "roadstead_cluster.quickstart", "demo/renamed"])?;
    terraform.ok(&["import", "-no-color", "roadstead_node_pool.workers", "demo/renamed/workers"])?;
    ensure!(terraform.plan()?.is_empty(), "after import: {:?}", terraform.plan()?);

    // Gone behind Terraform's back.
    fleet.roadstead(&["cluster", "delete", "renamed", "--org", "demo", "--wait"])?;
    ensure!(terraform.plan()?.contains(&"roadstead_cluster.quickstart: create".to_owned()));
    terraform.apply()?;
    assert_ne!(terraform.attribute("roadstead_cluster.quickstart", "id")?, id);

    terraform.set("ROADSTEAD_TOKEN", "rs_wrong");
    let said = terraform.complaint(&["plan", "-no-color"])?;
    ensure!(said.contains("The token is wrong or has expired"), "{said}");
    terraform.set("ROADSTEAD_TOKEN", "");

    terraform.ok(&["destroy", "-auto-approve", "-no-color"])?;
    ensure!(!fleet.roadstead(&["cluster", "list", "--org", "demo"])?.contains("renamed"));
    Ok(())
}

/// What the provider knows without being told, each alone: the login that `roadstead login` keeps, and the
/// folder of `roadstead up` above the working directory.
#[test]
fn a_login_or_the_folder_of_up_is_enough() -> Result<()> {
    let fleet = Fleet::start(Options::default())?;
    let configuration = "provider \"roadstead\" {\n  organization = \"demo\"\n}\n\
                         resource \"roadstead_cluster\" \"it\" {\n  name = \"NAME\"\n}\n";
    for (name, prepare) in [("by-login", log_in as fn(&Fleet, &Path) -> Result<()>), ("by-folder", link_data)]
    {
        let mut terraform = Terraform::new(&Terraform::provider()?)?;
        let home = terraform.folder();
        terraform.set("HOME", &home.display().to_string());
        terraform.set("XDG_CONFIG_HOME", "");
        terraform.write(&configuration.replace("NAME", name))?;
        terraform.init()?;
        let said = terraform.complaint(&["plan", "-no-color"])?;
        ensure!(
            said.contains("No manager's address") && said.contains("`roadstead login`"),
            "{name}: {said}"
        );
        prepare(&fleet, &home).context(name)?;
        terraform.apply()?;
        ensure!(fleet.roadstead(&["cluster", "list", "--org", "demo"])?.contains(name), "{name}");
        ensure!(terraform.plan()?.is_empty(), "{name}: {:?}", terraform.plan()?);
        terraform.ok(&["destroy", "-auto-approve", "-no-color"])?;
    }
    Ok(())
}

/// As a person does at their own shell, with their own home.
fn log_in(fleet: &Fleet, home: &Path) -> Result<()> {
    let mut login = fleet.bare_command("login");
    login
        .arg(format!("https://{}", fleet.manager))
        .args(["--email", "admin@roadstead.local", "--password-stdin", "--ca-file"])
        .arg(fleet.data().join("fleet-ca.pem"))
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("ROADSTEAD_CONFIG")
        .stdin(Stdio::piped());
    let mut child = login.spawn()?;
    let password = std::fs::read(fleet.data().join("admin.password"))?;
    child.stdin.take().context("no input")?.write_all(&password)?;
    ensure!(child.wait()?.success(), "not signed in");
    Ok(())
}

/// As if `up` had been run in this folder.
fn link_data(fleet: &Fleet, home: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(fleet.data(), home.join(".roadstead"))?)
}

/// When an apply is killed, by what the manager has by then.
#[derive(Debug, Clone, Copy)]
enum Moment {
    Cluster,
    Pool,
    /// One of two.
    Machine,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Terraform,
    /// With its cells, gateway and provider, which do not outlive `up`.
    Manager,
}

#[test]
fn a_killed_apply_converges_and_leaves_nothing_twice() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces and starts containers: run it as root");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut fleet = Fleet::start(Options::default())?;
    for (victim, moment) in [
        (Victim::Terraform, Moment::Cluster),
        (Victim::Terraform, Moment::Pool),
        (Victim::Terraform, Moment::Machine),
        (Victim::Manager, Moment::Cluster),
        (Victim::Manager, Moment::Pool),
        (Victim::Manager, Moment::Machine),
    ] {
        let tried = killed(&mut fleet, &runtime, victim, moment);
        fleet.explain(tried.with_context(|| format!("{victim:?} killed at {moment:?}")))?;
    }
    Ok(())
}

fn killed(
    fleet: &mut Fleet,
    runtime: &tokio::runtime::Runtime,
    victim: Victim,
    moment: Moment,
) -> Result<()> {
    let mut terraform = Terraform::new(&Terraform::provider()?)?;
    terraform.set("ROADSTEAD_DATA", &fleet.data().display().to_string());
    terraform.set("HOME", &terraform.folder().display().to_string());
    terraform.set("TF_VAR_machines", "2");
    std::fs::write(terraform.folder().join("main.tf"), configuration()?)?;
    terraform.init()?;

    let mut apply = terraform.start_apply()?;
    let deadline = Instant::now() + PATIENCE;
    let (clusters_before, pools_before) = loop {
        let (clusters, pools) = runtime.block_on(look(fleet))?;
        let machines: Vec<_> = pools.iter().flat_map(|pool| &pool.machines).collect();
        let reached = match moment {
            Moment::Cluster => !clusters.is_empty(),
            Moment::Pool => !pools.is_empty(),
            Moment::Machine => machines.iter().any(|one| one.state != MachineState::Pending),
        };
        if reached {
            break (clusters, pools);
        }
        ensure!(Instant::now() < deadline, "never came so far: {clusters:?} {pools:?}");
        std::thread::sleep(Duration::from_millis(2));
    };
    match victim {
        Victim::Terraform => apply.kill()?,
        Victim::Manager => {
            fleet.kill()?;
            fleet.start_again()?;
        }
    }
    // Where the manager was killed the apply may have waited for it, and come to its end, or not.
    apply.wait()?;
    terraform.apply()?;

    let (clusters, pools) = runtime.block_on(look(fleet))?;
    ensure!(clusters.len() == 1 && pools.len() == 1, "{clusters:?} {pools:?}");
    // What was there has been gone on with, not made anew.
    ensure!(clusters_before.iter().all(|one| one.id == clusters[0].id), "{clusters_before:?} {clusters:?}");
    ensure!(pools_before.iter().all(|one| one.id == pools[0].id), "{pools_before:?} {pools:?}");
    assert_eq!(terraform.attribute("roadstead_cluster.quickstart", "id")?, clusters[0].id.to_string());
    assert_eq!(terraform.attribute("roadstead_node_pool.workers", "id")?, pools[0].id.to_string());
    let joined = pools[0].machines.iter().filter(|one| one.state == MachineState::Joined).count();
    ensure!(joined == 2 && pools[0].machines.len() == 2, "{pools:?}");
    ensure!(terraform.plan()?.is_empty(), "{:?}", terraform.plan()?);
    let kubeconfig = terraform.folder().join("kubeconfig");
    std::fs::write(&kubeconfig, terraform.output("kubeconfig")?)?;
    let nodes = Kubectl::new(&kubeconfig).ok("get nodes --no-headers")?;
    ensure!(nodes.lines().count() == 2 && !nodes.contains("NotReady"), "{nodes}");

    terraform.ok(&["destroy", "-auto-approve", "-no-color"])?;
    let (clusters, _) = runtime.block_on(look(fleet))?;
    ensure!(clusters.is_empty(), "{clusters:?}");
    let left = std::fs::read_dir(fleet.data().join("cloud-local/machines"))?.count();
    ensure!(left == 0, "{left} machines are left on disk");
    Ok(())
}

/// The quickstart's clusters and pools, as the manager has them.
async fn look(fleet: &Fleet) -> Result<(Vec<Cluster>, Vec<NodePool>)> {
    let client = fleet.client()?;
    let demo: Slug = "demo".parse()?;
    let mut clusters = client.clusters(&demo).await?;
    clusters.retain(|one| one.name.as_str() != "demo" && one.state != ClusterState::Deleting);
    let mut pools = Vec::new();
    for cluster in &clusters {
        pools.extend(client.node_pools(&demo, cluster.id).await?);
    }
    Ok((clusters, pools))
}
