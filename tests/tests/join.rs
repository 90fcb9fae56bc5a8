//! Another machine joins, or is told in one line why it cannot.
//!
//! Needs root and Debian's packages (`cargo xtask packages`). The other machine is made of namespaces
//! (`dev_testkit::Machine`); it uses the command that `roadstead cluster join-command` prints.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use dev_testkit::{Fleet, Kubectl, Machine, Options, children_of, copy_for_others, is_root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(60);

/// An attempt that fails says so within this; it may look a few seconds for a token that was made just now.
const REFUSED_WITHIN: Duration = Duration::from_secs(40);

const NOBODY: u32 = 65534;

#[test]
fn a_second_machine_joins_or_is_told_why_not() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces and starts containers: run it as root");
    let fleet = Fleet::start(Options { nodes: 1, ..Options::default() })?;
    let kubectl = fleet.kubectl();
    kubectl.until("get nodes", " Ready ", SOON)?;
    let command = JoinCommand::print(&fleet)?;
    let machine = Machine::beside(command.gateway()?, "second")?;
    refusals(&fleet, &kubectl, &machine, &command).context("refusals")?;
    let joined = joins_with_a_damaged_image(&fleet, &kubectl, &machine, &command).context("join")?;
    a_folder_is_one_nodes(&fleet, &machine, &command).context("another name in the same folder")?;
    stops_and_comes_back(&fleet, &kubectl, &machine, &command, joined).context("stop and start")?;
    Ok(())
}

/// What `roadstead cluster join-command` prints, in parts.
#[derive(Debug, Clone)]
struct JoinCommand {
    words: Vec<String>,
}

impl JoinCommand {
    fn print(fleet: &Fleet) -> Result<JoinCommand> {
        let line = fleet.roadstead(&["cluster", "join-command", "demo"])?;
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ensure!(words.first().is_some_and(|word| word == "roadstead"), "{line}");
        Ok(JoinCommand { words })
    }

    fn value(&self, option: &str) -> Result<&str> {
        let at = self.words.iter().position(|word| word == option);
        let value = at.and_then(|at| self.words.get(at + 1));
        value.map(String::as_str).ok_or_else(|| anyhow!("no {option} in {:?}", self.words))
    }

    fn with(&self, option: &str, value: &str) -> Result<JoinCommand> {
        let mut changed = self.clone();
        let at = changed.words.iter().position(|word| word == option);
        *at.and_then(|at| changed.words.get_mut(at + 1)).ok_or_else(|| anyhow!("no {option}"))? =
            value.to_owned();
        Ok(changed)
    }

    /// The address by which other machines reach the fleet.
    fn gateway(&self) -> Result<Ipv4Addr> {
        let server = self.value("--server")?.trim_start_matches("https://");
        let address = server.rsplit_once(':').map(|(address, _)| address).unwrap_or(server);
        address.parse().with_context(|| format!("{server} is no address that another machine could reach"))
    }

    /// Ready to be run on `machine`, as the person there would.
    fn on(&self, machine: &Machine, binary: &Path, data: &Path, before: &[&str]) -> Command {
        let mut words = before.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        words.push(binary.display().to_string());
        words.extend(self.words[1..].iter().cloned());
        words.extend(["--data".to_owned(), data.display().to_string()]);
        let mut command = machine.command(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command
    }
}

fn refusals(fleet: &Fleet, kubectl: &Kubectl, machine: &Machine, right: &JoinCommand) -> Result<()> {
    let requests = || -> Result<usize> { Ok(kubectl.ok("get csr -o name")?.lines().count()) };
    let before = requests()?;
    let expired = JoinCommand::print(fleet)?;
    let id = expired.value("--token")?.split('.').next().unwrap_or_default().to_owned();
    let patch = r#"{"stringData":{"expiration":"2020-01-01T00:00:00Z"}}"#;
    kubectl.ok(&format!("-n kube-system patch secret bootstrap-token-{id} --type=merge -p {patch}"))?;
    let ca = machine.folder("ca.crt");
    std::fs::write(&ca, fleet.kubeconfig()?.ca_pem)?;
    let ca = ca.display().to_string();
    let with_ca = |command: &JoinCommand| -> Result<JoinCommand> {
        let mut command = command.clone();
        command.words.extend(["--ca-file".to_owned(), ca.clone()]);
        Ok(command)
    };
    let mut of_node_1 = right.clone();
    of_node_1.words.extend(["--name".to_owned(), "node-1".to_owned()]);
    let unknown = right.with("--token", "zzzzzz.0123456789abcdef")?;
    let wrong_hash = format!("sha256:{}", "0".repeat(64));
    let gateway = right.gateway()?;
    let for_others = copy_for_others(fleet.binary(), &machine.folder("cni"))?;
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for (what, command, before, said) in [
        ("no token", right.with("--token", "secret")?, &[][..], "\"secret…\" is not a token"),
        ("unknown token", unknown.clone(), &[], "token zzzzzz is not known to the cluster"),
        ("unknown token, CA at hand", with_ca(&unknown)?, &[], "token zzzzzz is not known to the cluster"),
        ("expired token", expired.clone(), &[], "roadstead cluster join-command"),
        ("expired token, CA at hand", with_ca(&expired)?, &[], "is not known to the cluster: it expired"),
        (
            "wrong secret",
            right.with(
                "--token",
                &format!(
                    "{}.0123456789abcdef",
                    right.value("--token")?.split('.').next().unwrap_or_default()
                ),
            )?,
            &[],
            "the token was mistyped or replaced",
        ),
        (
            "wrong hash",
            right.with("--discovery-token-ca-cert-hash", &wrong_hash)?,
            &[],
            "wrong CA hash: the cluster's CA is sha256:",
        ),
        (
            "a short hash",
            right.with("--discovery-token-ca-cert-hash", "sha256:12")?,
            &[],
            "\"sha256:12\" is not a CA hash",
        ),
        ("taken name", of_node_1, &[], "two machines with one name; choose another with --name"),
        (
            "nobody there",
            right.with("--server", &format!("https://{gateway}:1"))?,
            &[],
            ":1 is not reachable",
        ),
        ("no address", right.with("--server", "demo")?, &[], "\"demo\" is not a server address"),
        (
            "no containerd",
            right.clone(),
            &["env", "PATH=/nowhere"],
            "containerd is not installed: `apt-get install containerd`",
        ),
        ("not root", right.clone(), &as_nobody, "a node needs root"),
    ] {
        let binary = if what == "not root" { &for_others } else { fleet.binary() };
        let data = machine.folder("refused");
        let (success, stderr) = run_to_end(command.on(machine, binary, &data, before))?;
        let told = format!("{what}: {stderr}");
        ensure!(!success, "{told}");
        ensure!(stderr.lines().count() == 1, "more than a line: {told}");
        ensure!(stderr.starts_with("roadstead: ") && stderr.contains(said), "not {said:?}: {told}");
        ensure!(!data.exists(), "a folder was left behind: {told}");
    }
    ensure!(requests()? == before, "certificate requests were left behind:\n{}", kubectl.ok("get csr")?);
    let nodes = kubectl.ok("get nodes -o name")?;
    ensure!(nodes.trim() == "node/node-1", "{nodes}");
    Ok(())
}

fn joins_with_a_damaged_image(
    fleet: &Fleet,
    kubectl: &Kubectl,
    machine: &Machine,
    command: &JoinCommand,
) -> Result<Joined> {
    let data = machine.folder("data");
    let images = data.join("images");
    std::fs::create_dir_all(&images)?;
    let good = std::fs::read(fleet.data().join("nodes/node-1/images/demo-1.tar"))?;
    std::fs::write(images.join("demo-1.tar"), &good)?;
    for (name, bytes) in
        [("empty.tar", &b""[..]), ("half.tar", &good[..good.len() / 2]), ("noise.tar", &[0x5a; 4096])]
    {
        std::fs::write(images.join(name), bytes)?;
    }
    let joined = Joined::start(command.on(machine, fleet.binary(), &data, &[]), &machine.folder("log"))?;
    kubectl.until("get node second", " Ready ", SOON)?;
    for name in ["empty.tar", "half.tar", "noise.tar"] {
        let lines: Vec<&str> = joined.log.lines().filter(|line| line.contains(name)).collect();
        ensure!(lines.len() == 1, "{name} is in {} lines of:\n{}", lines.len(), joined.log);
    }
    ensure!(!joined.log.contains("demo-1.tar"), "{}", joined.log);
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: there}
spec:
  nodeName: second
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "roadstead.local/demo:1"}]
"#;
    kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
    kubectl.until("get pod there -o jsonpath={.status.phase}", "Running", SOON)?;
    ensure!(kubectl.ok("exec there -- hostname")?.trim() == "there");
    Ok(joined)
}

/// The folder belongs to the node that joined with it.
fn a_folder_is_one_nodes(fleet: &Fleet, machine: &Machine, command: &JoinCommand) -> Result<()> {
    let mut other = command.clone();
    other.words.extend(["--name".to_owned(), "third".to_owned()]);
    let wrong_hash = format!("sha256:{}", "0".repeat(64));
    let elsewhere = command.with("--discovery-token-ca-cert-hash", &wrong_hash)?;
    for (command, said) in [
        (other, "holds the identity of node second, not of third"),
        (elsewhere, "holds the identity of a node of another cluster"),
    ] {
        let data = machine.folder("data");
        let (success, stderr) = run_to_end(command.on(machine, fleet.binary(), &data, &[]))?;
        ensure!(!success && stderr.contains(said) && stderr.lines().count() == 1, "{stderr}");
    }
    Ok(())
}

/// The agent goes, its pod runs on; the same command brings the agent back, without the token doing anything.
fn stops_and_comes_back(
    fleet: &Fleet,
    kubectl: &Kubectl,
    machine: &Machine,
    command: &JoinCommand,
    joined: Joined,
) -> Result<()> {
    joined.stop()?;
    let spent = command.with("--token", "zzzzzz.0123456789abcdef")?;
    let again = Joined::start(
        spent.on(machine, fleet.binary(), &machine.folder("data"), &[]),
        &machine.folder("log-2"),
    )?;
    ensure!(kubectl.ok("exec there -- hostname")?.trim() == "there");
    let restarts = kubectl.ok("get pod there -o jsonpath={.status.containerStatuses[0].restartCount}")?;
    ensure!(restarts == "0", "the pod was restarted with the agent");
    kubectl.ok("delete pod there --timeout=60s")?;
    again.stop()?;
    kubectl.ok("delete node second")?;
    Ok(())
}

/// A `node join` that runs.
struct Joined {
    child: Child,
    /// What it logged until it was ready.
    log: String,
}

impl Joined {
    fn start(mut command: Command, log: &Path) -> Result<Joined> {
        let file = std::fs::File::create(log)?;
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
        let (tell, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let said = ready.recv_timeout(SOON);
        let log = std::fs::read_to_string(log)?;
        match said {
            Ok(line) if line.contains("is ready") => Ok(Joined { child, log }),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                Err(anyhow!("the node does not come up ({other:?}):\n{log}"))
            }
        }
    }

    /// As Ctrl-C does.
    fn stop(mut self) -> Result<()> {
        // nsenter waits for what it started in another process namespace, and passes nothing on to it.
        let outer = i32::try_from(self.child.id())?;
        let inner = children_of(outer)?.first().copied().unwrap_or(outer);
        kill(Pid::from_raw(inner), Signal::SIGINT)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the node ended with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        Err(anyhow!("the node does not stop"))
    }
}

fn run_to_end(mut command: Command) -> Result<(bool, String)> {
    let started = Instant::now();
    let output = command.output()?;
    ensure!(started.elapsed() < REFUSED_WITHIN, "it took {:?}", started.elapsed());
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Without root there are no nodes, and everything else is there.
#[test]
fn a_fleet_without_root_says_so_and_serves() -> Result<()> {
    ensure!(is_root(), "this test becomes somebody else: run it as root");
    let fleet = Fleet::start(Options { nodes: 1, user: Some(NOBODY), ..Options::default() })?;
    let said = fleet.said.join("\n");
    ensure!(said.contains("not root: no worker nodes"), "{said}");
    let kubectl = fleet.kubectl();
    kubectl.ok("create configmap here --from-literal=a=b")?;
    ensure!(kubectl.ok("get nodes -o name")?.is_empty());
    Ok(())
}
