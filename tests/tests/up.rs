//! Starts of `up` on folders and databases that are not as they should be.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use dev_testkit::{ApiClient, Fleet, Kubeconfig, Options};
use fleet_model::{ClusterState, CreateCluster};

/// What `up` says when it does not come up on the fleet's folder.
fn refused(fleet: &Fleet, words: &[&str]) -> Result<String> {
    let output = fleet
        .bare_command("up")
        .args(["--no-demo", "--nodes", "0", "--data"])
        .arg(fleet.data())
        .args(["--gateway", &fleet.gateway.to_string(), "--manager", &fleet.manager.to_string()])
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{:?}: {said}", output.status);
    ensure!(!String::from_utf8_lossy(&output.stdout).contains("ready in"), "it came up");
    Ok(said)
}

fn sign_in(fleet: &Fleet) -> Result<()> {
    let ca = std::fs::read_to_string(fleet.data().join("fleet-ca.pem"))?;
    let password = std::fs::read_to_string(fleet.data().join("admin.password"))?;
    let server = format!("https://{}", fleet.manager);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let password = fleet_model::Hidden::new(password.trim());
    let session = fleet_client::Client::sign_in(&server, &ca, "admin@roadstead.local", password);
    runtime.block_on(session)?;
    Ok(())
}

#[test]
fn a_fleet_starts_on_its_own_database_alone() -> Result<()> {
    let mut fleet = Fleet::start(Options { demo: false, ..Options::default() })?;
    fleet.roadstead(&["org", "create", "acme"])?;
    fleet.roadstead(&["cluster", "create", "blue", "--org", "acme"])?;
    let password = std::fs::read(fleet.data().join("admin.password"))?;
    fleet.stop()?;

    let database = fleet.data().join("manager.db");
    let away = fleet.data().join("away.db");
    std::fs::rename(&database, &away)?;
    let whole = |said: &str, words: &[&str]| -> Result<()> {
        for word in words {
            ensure!(said.contains(word), "{word:?} is not in {said:?}");
        }
        Ok(())
    };
    let names = ["manager.db", "knows nothing of the fleet", "--adopt-database", "--database"];
    whole(&refused(&fleet, &[])?, &names)?;
    std::fs::write(&database, "")?;
    whole(&refused(&fleet, &[])?, &names)?;
    std::fs::remove_file(&database)?;

    // Another fleet's, which has cells of its own.
    let mut other = Fleet::start(Options { demo: false, ..Options::default() })?;
    other.stop()?;
    let theirs = format!("sqlite:{}", other.data().join("manager.db").display());
    let said = refused(&fleet, &["--database", &theirs])?;
    whole(&said, &["is the database of another fleet", &other.data().display().to_string()])?;
    // And one without a folder: the second fleet's database under a new one.
    std::fs::remove_file(other.data().join("fleet.json"))?;
    std::fs::remove_dir_all(other.data().join("cells"))?;
    whole(&refused(&other, &[])?, &["is the database of another fleet", "is not its folder"])?;

    ensure!(std::fs::read(fleet.data().join("admin.password"))? == password, "another password");
    std::fs::rename(&away, &database)?;
    fleet.start_again()?;
    sign_in(&fleet)?;
    ensure!(fleet.roadstead(&["cluster", "list", "--org", "acme"])?.contains("blue"));
    fleet.stop()?;

    // Whoever wants it so has it; what was written down stays true for both.
    let mut anew = Fleet::start(Options { demo: false, ..Options::default() })?;
    anew.stop()?;
    let password = std::fs::read(anew.data().join("admin.password"))?;
    std::fs::remove_file(anew.data().join("manager.db"))?;
    let mut child = anew
        .bare_command("up")
        .args(["--no-demo", "--nodes", "0", "--adopt-database", "--data"])
        .arg(anew.data())
        .args(["--gateway", &anew.gateway.to_string(), "--manager", &anew.manager.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().context("stdout")?));
    let came_up = lines.any(|line| line.is_ok_and(|line| line.starts_with("ready in ")));
    let signed_in = if came_up { sign_in(&anew) } else { Ok(()) };
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    // It may have ended, which the next lines tell.
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
    child.wait()?;
    ensure!(came_up, "--adopt-database does not help");
    signed_in?;
    ensure!(std::fs::read(anew.data().join("admin.password"))? == password, "another password");
    anew.start_again()?;
    sign_in(&anew)
}

#[test]
fn one_damaged_cluster_is_not_the_others() -> Result<()> {
    let mut fleet = Fleet::start(Options::default())?;
    let outcome = damage(&mut fleet);
    fleet.explain(outcome)
}

fn damage(fleet: &mut Fleet) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = fleet.client()?;
    let org: base_ids::Slug = "demo".parse()?;
    let demo = runtime.block_on(client.cluster(&org, &org))?;
    runtime.block_on(client.create_cluster(&org, &CreateCluster::named("fine".parse()?)))?;
    let ready = |fleet: &Fleet, name: &str| -> Result<bool> {
        let cluster = runtime.block_on(fleet.client()?.cluster(&org, &name.parse::<base_ids::Slug>()?))?;
        Ok(cluster.state == ClusterState::Ready)
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !ready(fleet, "fine")? {
        ensure!(std::time::Instant::now() < deadline, "no second cluster");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let serves = |fleet: &Fleet, name: &str| -> Result<()> {
        let text = fleet.roadstead(&["cluster", "kubeconfig", name, "--org", "demo"])?;
        let api = ApiClient::new(&Kubeconfig::parse(&text)?)?;
        runtime.block_on(api.get("/api/v1/namespaces/default"))?;
        Ok(())
    };
    serves(fleet, "demo")?;
    fleet.stop()?;

    // What the cell was told, the manager tells it again; a gateway's table as well.
    let cell = fleet.data().join("cells").join("cell-1");
    let assignment = cell.join("assignments").join(format!("{}.json", demo.id));
    for content in [Some("{"), None] {
        match content {
            Some(content) => std::fs::write(&assignment, content)?,
            None => std::fs::remove_file(&assignment)?,
        }
        std::fs::write(fleet.data().join("gateway").join("routes.json"), "{")?;
        fleet.start_again()?;
        serves(fleet, "demo").with_context(|| format!("assignment {content:?}"))?;
        serves(fleet, "fine")?;
        fleet.stop()?;
    }

    // Its data is another matter: nobody has it but the cell.
    let checkpoint = cell.join("store").join("checkpoints").join(format!("{}.checkpoint", demo.id));
    let kept = checkpoint.exists().then(|| std::fs::read(&checkpoint)).transpose()?;
    std::fs::write(&checkpoint, "x")?;
    fleet.start_again()?;
    let said = fleet.said.join("\n");
    for word in ["cluster demo of demo", &demo.id.to_string(), ".checkpoint", "from a backup"] {
        ensure!(said.contains(word), "{word:?} is not in {said}");
    }
    serves(fleet, "fine")?;
    let told = serves(fleet, "demo").map_err(|error| format!("{error:#}")).err().unwrap_or_default();
    ensure!(told.contains("damaged") && !told.contains(&cell.display().to_string()), "{told:?}");
    fleet.stop()?;
    match kept {
        Some(content) => std::fs::write(&checkpoint, content)?,
        None => std::fs::remove_file(&checkpoint)?,
    }
    fleet.start_again()?;
    serves(fleet, "demo")?;
    serves(fleet, "fine")
}
