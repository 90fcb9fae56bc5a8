//! The real terraform and the real provider against a real fleet: the quickstart's road, from nothing to
//! kubectl and back to nothing. What goes wrong on the way is tried in `terraform/provider/tests`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use dev_testkit::{Fleet, Kubectl, Options, Terraform};

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
