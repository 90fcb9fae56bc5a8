//! The real terraform and the real provider, against a manager in memory: what a person sees at each step,
//! and what is left when something dies in the middle.

mod fake;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dev_testkit::{Terraform, children_of, words_of};
use fake::{Fake, TOKEN};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const WEB: &str = r#"
resource "roadstead_cluster" "web" {
  name   = "web"
  labels = { team = "red" }
}
"#;

const POOL: &str = r#"
resource "roadstead_node_pool" "workers" {
  cluster = roadstead_cluster.web.id
  name    = "workers"
  size    = 2
  labels  = { tier = "front" }
  taints  = [{ key = "gpu", effect = "NoSchedule" }]
}
"#;

struct Stage {
    // Dropped first: the provider's last calls should find a manager.
    terraform: Terraform,
    fake: Fake,
    _runtime: tokio::runtime::Runtime,
}

fn stage() -> Result<Stage> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let fake = Fake::start(&runtime)?;
    let mut terraform = Terraform::new(Path::new(env!("CARGO_BIN_EXE_terraform-provider-roadstead")))?;
    for (name, value) in [
        ("ROADSTEAD_SERVER", fake.server.as_str()),
        ("ROADSTEAD_TOKEN", TOKEN),
        ("ROADSTEAD_CA_CERT", &fake.ca_pem),
        ("ROADSTEAD_ORG", "acme"),
    ] {
        terraform.set(name, value);
    }
    Ok(Stage { terraform, fake, _runtime: runtime })
}

fn written(configuration: &str) -> Result<Stage> {
    let stage = stage()?;
    stage.terraform.write(configuration)?;
    stage.terraform.init()?;
    Ok(stage)
}

#[test]
fn a_life_of_everything() -> Result<()> {
    let rest = r#"
resource "roadstead_join_token" "rack" {
  cluster     = roadstead_cluster.web.id
  description = "rack 7"
}
resource "roadstead_api_token" "ci" {
  description = "ci"
  role        = "developer"
}
resource "roadstead_kubeconfig" "web" {
  cluster = roadstead_cluster.web.id
}
data "roadstead_versions" "all" {}
data "roadstead_cluster" "web" {
  cluster = roadstead_cluster.web.id
}
output "kubeconfig" {
  value     = roadstead_kubeconfig.web.kubeconfig
  sensitive = true
}
output "version" {
  value = data.roadstead_versions.all.default
}
output "name" {
  value = data.roadstead_cluster.web.name
}
"#;
    let Stage { terraform, fake, _runtime } = written(&format!("{WEB}{POOL}{rest}"))?;
    terraform.ok(&["validate"])?;
    let planned = terraform.plan()?;
    ensure!(planned.contains(&"roadstead_node_pool.workers: create".to_owned()), "{planned:?}");
    terraform.apply()?;
    ensure!(terraform.plan()?.is_empty(), "second plan: {:?}", terraform.plan()?);
    assert_eq!(terraform.output("version")?, "v1.36.0");
    assert_eq!(terraform.output("name")?, "web");
    ensure!(terraform.output("kubeconfig")?.contains("client-key-data"));
    let id = terraform.attribute("roadstead_cluster.web", "id")?;
    assert_eq!(terraform.attribute("roadstead_node_pool.workers", "cluster_id")?, id);
    assert_eq!(fake.world().pools[0]["taints"], json!([{"key": "gpu", "value": "", "effect": "NoSchedule"}]));
    assert_eq!(terraform.attribute("roadstead_api_token.ci", "secret")?, "rs_secret1");
    // Secrets are not shown.
    let shown = terraform.ok(&["show", "-no-color"])?;
    ensure!(!shown.contains("rs_secret1") && !shown.contains("0123456789abcdef"), "{shown}");

    // In place: names, labels, sizes.
    let changed = format!("{WEB}{POOL}{rest}")
        .replace("name   = \"web\"", "name   = \"shop\"")
        .replace("team = \"red\"", "team = \"blue\"")
        .replace("size    = 2", "size    = 3");
    terraform.write(&changed)?;
    let planned = terraform.plan()?;
    assert_eq!(
        planned.iter().filter(|one| one.starts_with("roadstead")).collect::<Vec<_>>(),
        ["roadstead_cluster.web: update", "roadstead_node_pool.workers: update"]
    );
    terraform.apply()?;
    // `name` of the data source is read before the change is applied, and follows with the next apply.
    terraform.apply()?;
    ensure!(terraform.plan()?.is_empty(), "after a change in place: {:?}", terraform.plan()?);
    assert_eq!(terraform.attribute("roadstead_cluster.web", "id")?, id);
    assert_eq!(fake.world().clusters[0]["name"], "shop");
    assert_eq!(fake.world().pools[0]["size"], 3);

    // Replacing.
    terraform.write(&changed.replace("effect = \"NoSchedule\"", "effect = \"NoExecute\""))?;
    assert_eq!(terraform.plan()?, ["roadstead_node_pool.workers: delete+create"]);

    terraform.ok(&["destroy", "-auto-approve", "-no-color"])?;
    let world = fake.world();
    ensure!(world.clusters.is_empty() && world.pools.is_empty());
    ensure!(world.tokens.is_empty() && world.join_tokens.is_empty());
    Ok(())
}

#[test]
fn what_changes_outside_is_planned_back() -> Result<()> {
    let Stage { terraform, fake, _runtime } = written(&format!("{WEB}{POOL}"))?;
    terraform.apply()?;
    fake.world().clusters[0]["labels"] = json!({"team": "green", "hand": "made"});
    fake.world().pools[0]["size"] = 7.into();
    assert_eq!(terraform.plan()?, ["roadstead_cluster.web: update", "roadstead_node_pool.workers: update"]);
    terraform.apply()?;
    assert_eq!(fake.world().clusters[0]["labels"], json!({"team": "red"}));
    assert_eq!(fake.world().pools[0]["size"], 2);

    fake.world().pools.clear();
    assert_eq!(terraform.plan()?, ["roadstead_node_pool.workers: create"]);
    fake.world().clusters.clear();
    assert_eq!(terraform.plan()?, ["roadstead_cluster.web: create", "roadstead_node_pool.workers: create"]);
    terraform.apply()?;
    assert_eq!(fake.world().clusters.len(), 1);
    ensure!(terraform.plan()?.is_empty());
    Ok(())
}

#[test]
fn what_exists_is_imported() -> Result<()> {
    let Stage { terraform, fake, _runtime } = written(&format!("{WEB}{POOL}"))?;
    terraform.apply()?;
    for address in ["roadstead_node_pool.workers", "roadstead_cluster.web"] {
        terraform.ok(&["state", "rm", address])?;
    }
    terraform.ok(&["import", "-no-color", "roadstead_cluster.web", "acme/web"])?;
    terraform.ok(&["import", "-no-color", "roadstead_node_pool.workers", "acme/web/workers"])?;
    ensure!(terraform.plan()?.is_empty(), "{:?}", terraform.plan()?);
    assert_eq!(fake.world().changes.len(), 2, "an import changes nothing: {:?}", fake.world().changes);
    for (address, id, wanted) in [
        ("roadstead_cluster.two", "web", "is not ORGANIZATION/CLUSTER"),
        ("roadstead_cluster.two", "acme/none", "no such cluster"),
        ("roadstead_cluster.two", "other/web", "no such organization"),
    ] {
        terraform.write(&format!(
            "{WEB}{POOL}resource \"roadstead_cluster\" \"two\" {{\n  name = \"two\"\n}}\n"
        ))?;
        let said = terraform.complaint(&["import", "-no-color", address, id])?;
        ensure!(said.contains(wanted), "{id}: {said}");
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_said_where_it_is() -> Result<()> {
    let Stage { terraform, fake, _runtime } = written("")?;
    let cluster = |rest: &str| format!("resource \"roadstead_cluster\" \"x\" {{\n{rest}\n}}\n");
    let pool = |rest: &str| {
        format!(
            "resource \"roadstead_node_pool\" \"x\" {{\n  cluster = \"web\"\n  name = \"p\"\n{rest}\n}}\n"
        )
    };
    for (configuration, wanted) in [
        (cluster("name = \"../x\""), "with roadstead_cluster.x, on main.tf line 7"),
        (cluster("name = \"../x\""), "\"../x\" is no name"),
        (cluster("name = \"x\"\nreplicas = 2"), "A cluster has 1 replica or 3, not 2."),
        (cluster("name = \"x\"\nlabels = { \"-\" = \"y\" }"), "Invalid labels"),
        (cluster("name = \"x\"\ntimeouts = { create = \"soon\" }"), "is no length of time"),
        (pool("size = -1"), "-1 is not a whole number of machines from 0 to 1000."),
        (pool("size = 1.5"), "1.5 is not a whole number"),
        (pool("size = 1\ntaints = [{ key = \"a\", effect = \"Never\" }]"), "\"Never\" is no effect"),
        (
            "resource \"roadstead_api_token\" \"x\" {\n  description = \"x\"\n  role = \"provider\"\n}"
                .to_owned(),
            "is no role of an organisation",
        ),
        (
            "provider \"roadstead\" {\n  server = \"http://x\"\n}\n".to_owned() + WEB,
            "is no address of a manager",
        ),
        ("provider \"roadstead\" {\n  token_file = \"none\"\n}\n".to_owned() + WEB, "Cannot read token_file"),
        (
            "provider \"roadstead\" {\n  token = \"rs_wrong\"\n}\n".to_owned() + &pool("size = 1"),
            "The token is wrong",
        ),
        (pool("size = 1\norganization = \"other\""), "no such organization"),
        (
            "data \"roadstead_cluster\" \"x\" {\n  cluster = \"none\"\n}\n".to_owned(),
            "no such cluster. Either it does not exist, or this token does not see it",
        ),
    ] {
        terraform.write(&configuration)?;
        let said = terraform.complaint(&["apply", "-auto-approve", "-no-color"])?;
        ensure!(said.contains(wanted), "{configuration}\n{said}");
    }
    ensure!(fake.world().clusters.is_empty() && fake.world().pools.is_empty());

    // The manager says no, or is not there.
    terraform.write(WEB)?;
    for (status, wanted) in [(403, "role does not allow it"), (500, "The manager's log says more")] {
        fake.world().refuse = Some(status);
        let said = terraform.complaint(&["apply", "-auto-approve", "-no-color"])?;
        ensure!(said.contains("not today") && said.contains(wanted), "{status}: {said}");
    }
    fake.world().refuse = None;
    fake.world().clusters.push(json!({
        "id": "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d10", "organization": "acme", "name": "web", "state": "ready",
        "kubernetes_version": "v1.36.0", "server_name": "x", "created_at": "2026-01-01T00:00:00Z",
    }));
    let said = terraform.complaint(&["apply", "-auto-approve", "-no-color"])?;
    ensure!(said.contains("terraform import"), "{said}");
    Ok(())
}

#[test]
fn a_version_is_not_changed_by_losing_the_cluster() -> Result<()> {
    let Stage { terraform, fake, _runtime } = written(WEB)?;
    terraform.apply()?;
    terraform.write(&WEB.replace("name ", "kubernetes_version = \"v1.35.0\"\n  name "))?;
    let said = terraform.complaint(&["plan", "-no-color"])?;
    ensure!(said.contains("cannot change from v1.36.0 to v1.35.0") && said.contains("taint"), "{said}");
    assert_eq!(fake.world().clusters.len(), 1);
    Ok(())
}

#[test]
fn a_provider_configured_by_what_is_not_made_yet_is_tolerated() -> Result<()> {
    // The organisation is known only after the apply of something else.
    let configuration = format!(
        "resource \"terraform_data\" \"org\" {{\n  input = \"acme\"\n}}\n\
         provider \"roadstead\" {{\n  organization = terraform_data.org.output\n}}\n{WEB}"
    );
    let Stage { terraform, fake, _runtime } = written(&configuration)?;
    let planned = terraform.plan()?;
    ensure!(planned.contains(&"roadstead_cluster.web: create".to_owned()), "{planned:?}");
    terraform.apply()?;
    assert_eq!(fake.world().clusters[0]["organization"], "acme");
    ensure!(terraform.plan()?.is_empty());
    Ok(())
}

#[test]
fn waiting_ends_and_leaves_nothing_unknown() -> Result<()> {
    let pool = POOL.replace("size    = 2", "size = 2\n  timeouts = { create = \"2s\", update = \"2s\" }");
    let Stage { terraform, fake, _runtime } = written(&format!("{WEB}{pool}"))?;
    fake.world().pool_state = Some(("provisioning", "no room at the inn"));
    let said = terraform.complaint(&["apply", "-auto-approve", "-no-color"])?;
    ensure!(said.contains("0 of 2 nodes are Ready no room at the inn"), "{said}");
    ensure!(said.contains("terraform untaint"), "{said}");
    // It is in the state, and can be kept.
    terraform.ok(&["untaint", "roadstead_node_pool.workers"])?;
    fake.world().pool_state = None;
    fake.world().pools[0]["state"] = "ready".into();
    fake.world().pools[0]["ready"] = 2.into();
    terraform.apply()?;
    assert_eq!(fake.world().pools.len(), 1);
    ensure!(terraform.plan()?.is_empty(), "{:?}", terraform.plan()?);
    Ok(())
}

/// The apply is killed when the manager has made the things and Terraform does not know; then it is run again.
#[test]
fn a_killed_apply_makes_no_twins() -> Result<()> {
    let tokens = r#"
resource "roadstead_api_token" "one" {
  description = "twin"
  role        = "viewer"
}
resource "roadstead_api_token" "two" {
  description = "twin"
  role        = "viewer"
}
"#;
    for who in ["provider", "terraform and provider"] {
        let Stage { terraform, fake, _runtime } = written(&format!("{WEB}{tokens}"))?;
        fake.world().silent = true;
        let mut apply = terraform.start_apply()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while fake.world().clusters.is_empty() || fake.world().tokens.len() < 2 {
            ensure!(Instant::now() < deadline, "nothing was made: {:?}", fake.world().changes);
            std::thread::sleep(Duration::from_millis(10));
        }
        let parent = i32::try_from(apply.id())?;
        let provider = children_of(parent)?
            .into_iter()
            .find(|pid| words_of(*pid)[0].contains("terraform-provider-roadstead"))
            .context("no provider runs")?;
        if who != "provider" {
            apply.kill()?;
        }
        kill(Pid::from_raw(provider), Signal::SIGKILL)?;
        ensure!(!apply.wait()?.success());
        ensure!(terraform.state()?.is_empty(), "{:?}", terraform.state()?);

        fake.world().silent = false;
        let made = fake.world().clusters[0]["id"].clone();
        terraform.apply()?;
        let world = fake.world();
        assert_eq!(world.clusters.len(), 1, "{who}: {:?}", world.changes);
        assert_eq!(world.tokens.len(), 2, "{who}: {:?}", world.changes);
        drop(world);
        assert_eq!(made, *terraform.attribute("roadstead_cluster.web", "id")?);
        assert_ne!(
            terraform.attribute("roadstead_api_token.one", "id")?,
            terraform.attribute("roadstead_api_token.two", "id")?
        );
        ensure!(terraform.plan()?.is_empty());

        // A note that is left does not bring back what was deleted since.
        fake.world().clusters.clear();
        terraform.apply()?;
        assert_ne!(made, *terraform.attribute("roadstead_cluster.web", "id")?);
    }
    Ok(())
}

/// A manager that died in the middle of a creation and is back says for some seconds that it is at it still. That
/// is no refusal: taken for one, the next apply would find the name taken, by what this one had made.
#[test]
fn a_creation_that_goes_on_is_waited_for() -> Result<()> {
    let Stage { terraform, fake, _runtime } = written(WEB)?;
    fake.world().still_running = 8;
    terraform.apply()?;
    assert_eq!(fake.world().changes, ["POST /api/v1/organizations/acme/clusters"]);
    assert_eq!(fake.world().still_running, 0);
    ensure!(terraform.plan()?.is_empty(), "{:?}", terraform.plan()?);
    Ok(())
}

#[test]
fn a_provider_alone_says_what_it_is() -> Result<()> {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_terraform-provider-roadstead")).output()?;
    ensure!(!output.status.success());
    let said = String::from_utf8(output.stderr)?;
    ensure!(said.contains("Terraform starts it by itself"), "{said}");
    Ok(())
}

/// A provider whose Terraform was killed goes too, and takes its socket along.
#[test]
fn nothing_stays_behind_a_killed_terraform() -> Result<()> {
    let Stage { mut terraform, fake, _runtime } = written(WEB)?;
    let sockets = terraform.folder().join("sockets");
    std::fs::create_dir(&sockets)?;
    terraform.set("TMPDIR", &sockets.display().to_string());
    fake.world().silent = true;
    let mut apply = terraform.start_apply()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while fake.world().clusters.is_empty() {
        ensure!(Instant::now() < deadline, "nothing was made");
        std::thread::sleep(Duration::from_millis(10));
    }
    let providers: Vec<i32> = children_of(i32::try_from(apply.id())?)?
        .into_iter()
        .filter(|pid| words_of(*pid)[0].contains("terraform-provider-roadstead"))
        .collect();
    ensure!(!providers.is_empty());
    apply.kill()?;
    apply.wait()?;
    let ended = |pid: &i32| !words_of(*pid)[0].contains("terraform-provider");
    let left = || std::fs::read_dir(&sockets).map(|found| found.count()).unwrap_or_default();
    while !providers.iter().all(ended) || left() > 0 {
        ensure!(Instant::now() < deadline, "still there: {providers:?}, {} sockets", left());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
