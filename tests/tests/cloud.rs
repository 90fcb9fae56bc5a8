//! Machines and balancers on a real fleet, with the provider `local`, and what is left of them when its
//! processes are killed.
//!
//! Needs root and Debian's packages (`cargo xtask packages`); nothing is pulled from anywhere.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dev_testkit::{Fleet, Kubectl, Options, is_root};
use fleet_client::Client;
use fleet_model::{CreateNodePool, MachineState, NodePool, NodePoolState, UpdateNodePool};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(60);
/// Drains wait for pods, and a machine that starts imports images.
const PATIENCE: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_gets_machines_and_balancers_and_gives_them_back() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces and starts containers: run it as root");
    let fleet = Fleet::start(Options { nodes: 1, ..Options::default() })?;
    let thread = Thread { kubectl: fleet.kubectl(), client: fleet.client()?, fleet: &fleet };
    let outcome = thread.all().await;
    fleet.explain(outcome)
}

struct Thread<'a> {
    fleet: &'a Fleet,
    kubectl: Kubectl,
    client: Client,
}

impl Thread<'_> {
    async fn all(&self) -> Result<()> {
        self.a_service_gets_an_address_that_answers().context("balancer")?;
        self.a_pool_gets_nodes().await.context("pool")?;
        self.its_nodes_run_pods_behind_the_balancer().context("pods of the pool")?;
        self.a_killed_provider_finds_everything_again().await.context("provider killed")?;
        self.a_killed_cell_makes_no_twins().await.context("cell killed")?;
        self.a_smaller_pool_lets_machines_go().await.context("resize")?;
        self.a_provider_that_hangs_is_said().await.context("provider hangs")?;
        self.a_service_may_change_its_mind().context("type change")?;
        self.a_deleted_cluster_leaves_a_receipt_and_nothing_else().await.context("delete")
    }

    fn a_service_gets_an_address_that_answers(&self) -> Result<()> {
        self.kubectl.ok("create deployment web --image=roadstead.local/demo:1 --replicas=2")?;
        self.kubectl.ok("rollout status deployment/web --timeout=90s")?;
        let started = Instant::now();
        self.kubectl.ok("expose deployment web --type=LoadBalancer --port=80 --target-port=8080")?;
        let address = self.address("web")?;
        println!("Service to address: {} ms", started.elapsed().as_millis());
        ensure!(address.starts_with("127.77."), "{address} is not from the pool");
        self.until_it_answers(&address, "web-")?;
        let service = self.kubectl.ok("get service web -o json")?;
        for wanted in ["service.kubernetes.io/load-balancer-cleanup", "\"ipMode\": \"VIP\""] {
            ensure!(service.contains(wanted), "{wanted} is not in {service}");
        }
        self.kubectl.until("get events", "EnsuredLoadBalancer", SOON)?;

        // Somebody else's class is somebody else's.
        self.kubectl.ok_with(
            &["apply", "-f", "-"],
            "apiVersion: v1\nkind: Service\nmetadata: {name: theirs}\nspec: {type: LoadBalancer, \
             loadBalancerClass: example.com/theirs, selector: {app: web}, ports: [{port: 80}]}\n",
        )?;

        // Only those who may connect.
        let only = |range: &str| format!(r#"{{"spec":{{"loadBalancerSourceRanges":["{range}"]}}}}"#);
        self.kubectl.ok(&format!("patch service web -p {}", only("10.0.0.0/8")))?;
        self.until("a stranger is refused", || Ok(ask(&address).is_err()))?;
        self.kubectl.ok(&format!("patch service web -p {}", only("127.0.0.0/8")))?;
        self.until_it_answers(&address, "web-")?;
        ensure!(self.kubectl.ok("get service theirs")?.contains("<pending>"));
        self.kubectl.ok("delete service theirs")?;
        Ok(())
    }

    async fn a_pool_gets_nodes(&self) -> Result<()> {
        let started = Instant::now();
        let request = CreateNodePool {
            name: "workers".parse()?,
            size: 2,
            machine_type: None,
            labels: [("team".to_owned(), "blue".to_owned())].into(),
            taints: vec!["dedicated=blue:NoSchedule".parse().map_err(anyhow::Error::msg)?],
            provider: None,
        };
        let demo = "demo".parse()?;
        self.client.create_node_pool(&demo, &demo, &request).await?;
        let pool = self.until_pool(2).await?;
        println!("pool of 2 to Ready: {} ms", started.elapsed().as_millis());
        ensure!(pool.provider == "local" || pool.provider.is_empty(), "{pool:?}");
        for machine in &pool.machines {
            let node = self.kubectl.ok(&format!("get node {} -o json", machine.name))?;
            for wanted in [
                format!("\"providerID\": \"local:///{}\"", machine.id),
                "\"team\": \"blue\"".to_owned(),
                "\"roadstead.dev/node-pool\": \"workers\"".to_owned(),
                "\"topology.kubernetes.io/zone\": \"local-1\"".to_owned(),
                "\"key\": \"dedicated\"".to_owned(),
            ] {
                ensure!(node.contains(&wanted), "{wanted} is not in {node}");
            }
        }
        Ok(())
    }

    fn its_nodes_run_pods_behind_the_balancer(&self) -> Result<()> {
        let manifest = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: blue}
spec:
  replicas: 2
  selector: {matchLabels: {app: blue}}
  template:
    metadata: {labels: {app: blue}}
    spec:
      nodeSelector: {team: blue}
      tolerations: [{key: dedicated, operator: Exists}]
      containers: [{name: demo, image: "roadstead.local/demo:1"}]
"#;
        self.kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
        self.kubectl.ok("rollout status deployment/blue --timeout=90s")?;
        let on = self.kubectl.ok("get pods -l app=blue -o jsonpath={.items[*].spec.nodeName}")?;
        ensure!(on.split(' ').all(|node| node.starts_with("workers-")), "{on}");
        self.kubectl.ok("expose deployment blue --type=LoadBalancer --port=80 --target-port=8080")?;
        self.until_it_answers(&self.address("blue")?, "blue-")
    }

    async fn a_killed_provider_finds_everything_again(&self) -> Result<()> {
        let before = self.pool().await?;
        let (web, blue) = (self.address("web")?, self.address("blue")?);
        for pid in self.fleet.children("cloud-local")? {
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        }
        self.until_it_answers(&web, "web-")?;
        let after = self.until_pool(2).await?;
        let who = |pool: &NodePool| -> Vec<(String, String)> {
            pool.machines.iter().map(|one| (one.id.clone(), one.name.clone())).collect()
        };
        ensure!(who(&before) == who(&after), "{before:?} became {after:?}");
        self.kubectl.ok("wait node --all --for=condition=Ready --timeout=90s")?;
        self.until_it_answers(&blue, "blue-")?;
        self.there_are_machines(2)
    }

    /// Killed at moments that fall between intent, call and outcome.
    async fn a_killed_cell_makes_no_twins(&self) -> Result<()> {
        for (size, wait_ms) in [(3, 0), (4, 30), (5, 120)] {
            self.resize(size).await?;
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            for pid in self.fleet.children("cell")? {
                kill(Pid::from_raw(pid), Signal::SIGKILL)?;
            }
            self.until_pool(size as usize).await.with_context(|| format!("killed after {wait_ms} ms"))?;
            self.there_are_machines(size as usize)?;
        }
        Ok(())
    }

    async fn a_smaller_pool_lets_machines_go(&self) -> Result<()> {
        self.resize(1).await?;
        self.until_pool(1).await?;
        self.until("one machine is left", || self.there_are_machines(1).map(|()| true).or(Ok(false)))?;
        let nodes = self.kubectl.ok("get nodes -o name")?;
        ensure!(nodes.matches("workers-").count() == 1, "{nodes}");
        // Its pods were asked to leave, and run where there is room.
        self.kubectl.ok("rollout status deployment/blue --timeout=90s")?;
        self.until_it_answers(&self.address("blue")?, "blue-")
    }

    async fn a_provider_that_hangs_is_said(&self) -> Result<()> {
        let pids = self.fleet.children("cloud-local")?;
        for pid in &pids {
            kill(Pid::from_raw(*pid), Signal::SIGSTOP)?;
        }
        let said = async {
            self.resize(2).await?;
            let deadline = Instant::now() + PATIENCE;
            loop {
                let pool = self.pool().await?;
                if pool.message.as_deref().is_some_and(|message| message.contains("not available")) {
                    return Ok(());
                }
                ensure!(Instant::now() < deadline, "nothing is said: {pool:?}");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let said: Result<()> = said.await;
        for pid in &pids {
            kill(Pid::from_raw(*pid), Signal::SIGCONT)?;
        }
        said?;
        let pool = self.until_pool(2).await?;
        ensure!(pool.state == NodePoolState::Ready, "{pool:?}");
        self.there_are_machines(2)
    }

    fn a_service_may_change_its_mind(&self) -> Result<()> {
        let address = self.address("web")?;
        self.kubectl
            .ok(r#"patch service web -p {"spec":{"type":"ClusterIP","loadBalancerSourceRanges":null}}"#)?;
        self.until("the finalizer goes", || {
            Ok(!self.kubectl.ok("get service web -o json")?.contains("load-balancer-cleanup"))
        })?;
        ensure!(ask(&address).is_err(), "{address} still answers");
        self.kubectl.ok("delete service web")?;
        self.kubectl.ok(r#"delete service blue --wait=true --timeout=30s"#)?;
        let left = std::fs::read_dir(self.fleet.data().join("cloud-local/balancers"))?.count();
        ensure!(left == 0, "{left} balancers are left");
        Ok(())
    }

    async fn a_deleted_cluster_leaves_a_receipt_and_nothing_else(&self) -> Result<()> {
        self.kubectl
            .ok("expose deployment web --name=last --type=LoadBalancer --port=80 --target-port=8080")?;
        let address = self.address("last")?;
        let demo = "demo".parse()?;
        let cluster = self.client.cluster(&demo, &demo).await?;
        let operation = self.client.delete_cluster(&demo, &demo).await?;
        self.client.finished(&demo, operation.id, PATIENCE, |_| ()).await?;
        ensure!(ask(&address).is_err(), "{address} still answers");
        self.there_are_machines(0)?;
        for folder in ["machines", "balancers"] {
            let left = std::fs::read_dir(self.fleet.data().join("cloud-local").join(folder))?.count();
            ensure!(left == 0, "{left} {folder} are left on disk");
        }
        let receipt = self.client.receipt(&demo, cluster.id).await?;
        let count = |kind: &str| receipt.resources.iter().filter(|one| one.kind == kind).count();
        // Two Services, and the last one; five machines at most at a time, one of them twice.
        ensure!(count("load-balancer") == 3 && count("machine") >= 6, "{receipt:?}");
        ensure!(receipt.resources.iter().all(|one| one.created_at <= one.deleted_at), "{receipt:?}");
        Ok(())
    }

    async fn resize(&self, size: u32) -> Result<()> {
        let demo = "demo".parse()?;
        let pool: fleet_model::NodePoolRef = "workers".parse().map_err(anyhow::Error::msg)?;
        let change = UpdateNodePool { size: Some(size), ..UpdateNodePool::default() };
        self.client.update_node_pool(&demo, &demo, pool, &change).await?;
        Ok(())
    }

    async fn pool(&self) -> Result<NodePool> {
        let demo = "demo".parse()?;
        let pool: fleet_model::NodePoolRef = "workers".parse().map_err(anyhow::Error::msg)?;
        Ok(self.client.node_pool(&demo, &demo, pool).await?)
    }

    /// So many machines, all of them Ready nodes.
    async fn until_pool(&self, size: usize) -> Result<NodePool> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pool = self.pool().await?;
            let joined = pool.machines.iter().filter(|one| one.state == MachineState::Joined).count();
            if joined == size && pool.machines.len() == size && pool.state == NodePoolState::Ready {
                return Ok(pool);
            }
            ensure!(Instant::now() < deadline, "not {size} Ready machines: {pool:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// In the kernel: namespaces beside the one of `node-1`.
    fn there_are_machines(&self, wanted: usize) -> Result<()> {
        let bridge = std::process::Command::new("ip").args(["-brief", "address", "show"]).output()?;
        let bridges = String::from_utf8_lossy(&bridge.stdout).into_owned();
        // The run's own bridge is the one that its gateway also listens on.
        let state = std::fs::read_to_string(self.fleet.data().join("cloud-local/config.json"))?;
        let state: serde_json::Value = serde_json::from_str(&state)?;
        let gateway = state["gateway"].as_str().and_then(|at| at.split(':').next()).unwrap_or_default();
        let line = bridges.lines().find(|line| line.contains(&format!(" {gateway}/")));
        let name = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
        let Some(prefix) = name.strip_suffix("br0") else { bail!("no bridge with {gateway} in\n{bridges}") };
        let listed = std::process::Command::new("ip").args(["netns", "list"]).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let own = format!("{prefix}n");
        let found = listed
            .lines()
            .filter_map(|line| line.split(' ').next()?.strip_prefix(own.as_str())?.parse::<u8>().ok())
            .filter(|number| *number >= 20)
            .count();
        ensure!(found == wanted, "{found} namespaces of machines, not {wanted}:\n{listed}");
        Ok(())
    }

    fn address(&self, service: &str) -> Result<String> {
        let path = "-o jsonpath={.status.loadBalancer.ingress[0].ip}";
        self.kubectl.until(&format!("get service {service} {path}"), "127.", SOON)
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + SOON;
        while !holds()? {
            ensure!(Instant::now() < deadline, "{what}: not within {SOON:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn until_it_answers(&self, address: &str, wanted: &str) -> Result<()> {
        self.until(&format!("{address} answers with {wanted}"), || {
            Ok(ask(address).is_ok_and(|answer| answer.contains(wanted)))
        })
    }
}

/// A GET of `/` on port 80.
fn ask(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&format!("{address}:80").parse()?, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains("200"), "{answer:?}");
    Ok(answer)
}
