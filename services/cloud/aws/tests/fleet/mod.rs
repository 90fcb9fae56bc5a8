//! The provider in a real fleet: `roadstead up --cloud aws=…`, this crate's program, moto behind it, and what
//! is left of things when processes are killed between a call and its record.
//!
//! Moto's instances do not boot, so no machine ever joins: what is shown is that they are asked for, counted,
//! told how to join, and given back.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dev_testkit::{Fleet, Kubectl, Options, bound, free_port};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Answer, Moto, Tagged};

/// A busy machine, and back-offs after a process was killed.
const PATIENCE: Duration = Duration::from_secs(90);

/// Where instances find the fleet, as its operator says: nobody listens there.
const GATEWAY: &str = "203.0.113.9:6443";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_gets_machines_and_balancers_from_aws_and_gives_them_back() -> Result<()> {
    let moto = Moto::start().await.map_err(|error| anyhow::anyhow!("moto: {error}"))?;
    let address = free_port()?;
    let words = vec!["--cloud".to_owned(), format!("aws={address}")];
    let fleet = Fleet::start(Options { demo: false, words, ..Options::default() })?;
    let folder = fleet.data().join("clouds/aws");
    let story = Story {
        provider: Provider {
            config: folder.join("config.json"),
            log: fleet.data().join("logs/cloud-aws.log"),
        },
        kubectl: Kubectl::new(&fleet.data().join("blue.kubeconfig")),
        moto: &moto,
        fleet: &fleet,
        address,
    };
    let outcome = story.all().await;
    outcome.map_err(|error| error.context(fleet.logs()))
}

/// How to start `roadstead-cloud-aws`, as a person does.
struct Provider {
    config: PathBuf,
    log: PathBuf,
}

/// One that runs; killed, without a chance to say goodbye, when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Provider {
    fn start(&self) -> Result<Running> {
        let log = std::fs::File::options().create(true).append(true).open(&self.log)?;
        let mut command = bound(env!("CARGO_BIN_EXE_roadstead-cloud-aws"), Signal::SIGKILL);
        command.arg("--config").arg(&self.config);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut running = Running(dev_testkit::start(command)?);
        let stdout = running.0.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.starts_with("provider aws ready on "), "it said {line:?} instead");
        Ok(running)
    }
}

struct Story<'a> {
    fleet: &'a Fleet,
    moto: &'a Moto,
    provider: Provider,
    kubectl: Kubectl,
    address: SocketAddr,
}

impl Story<'_> {
    async fn all(&self) -> Result<()> {
        self.what_is_no_provider_is_refused().context("bad words")?;
        self.a_cluster_names_its_provider().context("cluster")?;
        self.a_provider_that_is_not_there_is_said().await.context("provider not there")?;
        let provider = self.provider.start()?;
        self.a_pool_gets_instances().await.context("pool")?;
        self.a_wrong_pool_is_refused_at_once().await.context("wrong pool")?;
        self.a_service_gets_a_name().await.context("balancer")?;
        let provider = self.killed_after_an_instance_was_made(provider).await.context("provider killed")?;
        self.a_cell_killed_after_an_instance_was_made().await.context("cell killed")?;
        let _provider = self.killed_after_a_balancer_was_made(provider).await.context("balancer, killed")?;
        self.a_smaller_pool_gives_instances_back().await.context("resize")?;
        self.a_machine_that_does_not_join_is_said().await.context("not joined")?;
        self.what_is_deleted_is_gone().await.context("delete")?;
        self.a_deleted_cluster_leaves_a_receipt_and_nothing_else().await.context("delete cluster")
    }

    fn what_is_no_provider_is_refused(&self) -> Result<()> {
        for (given, wanted) in [
            (&["--cloud", "local=127.0.0.1:1"][..], "local is the provider of this machine"),
            (&["--cloud", "a=127.0.0.1:1", "--cloud", "a=127.0.0.1:2"], "there are two providers named a"),
            (&["--cloud", "a=127.0.0.1:1", "--cloud", "b=127.0.0.1:1"], "a and b are both at 127.0.0.1:1"),
            (&["--cloud", "A=127.0.0.1:1"], "the name \"A\" is not"),
            (&["--cloud", "a=there:1"], "\"there:1\" is not IP:PORT"),
        ] {
            let output =
                self.fleet.bare_command("up").args(given).arg("--data").arg("/nonexistent/x").output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.code() == Some(2) && said.contains(wanted), "{given:?}: {said}");
        }
        Ok(())
    }

    fn a_cluster_names_its_provider(&self) -> Result<()> {
        self.fleet.roadstead(&["org", "create", "acme"])?;
        let cluster = self.json(&["cluster", "create", "blue", "--provider", "aws"])?;
        ensure!(cluster["provider"] == "aws", "{cluster}");
        let kubeconfig = self.roadstead(&["cluster", "kubeconfig", "blue"])?;
        std::fs::write(self.fleet.data().join("blue.kubeconfig"), kubeconfig)?;
        // One that names none has the machine's own.
        let other = self.json(&["cluster", "create", "plain"])?;
        ensure!(["local", ""].contains(&other["provider"].as_str().unwrap_or("none")), "{other}");
        self.roadstead(&["cluster", "delete", "plain"])?;
        Ok(())
    }

    async fn a_provider_that_is_not_there_is_said(&self) -> Result<()> {
        let said = self.fleet.said.join("\n");
        let identity = self.provider.config.with_file_name("identity.json");
        for wanted in
            [format!("provider aws is looked for at {}", self.address), identity.display().to_string()]
        {
            ensure!(said.contains(&wanted), "{wanted} is not in {said}");
        }
        self.roadstead(&[
            "nodepool",
            "create",
            "workers",
            "--cluster",
            "blue",
            "--size",
            "2",
            "--wait=false",
        ])?;
        let pool = self.until_pool("it says why", |pool| {
            pool["message"].as_str().is_some_and(|why| why.contains("the provider is not available"))
        });
        let pool = pool.await?;
        ensure!(pool["provider"] == "aws" && pool["state"] == "provisioning", "{pool}");

        // A person writes the rest beside what `up` wrote.
        self.moto.write_config(&self.provider.config, GATEWAY)?;
        Ok(())
    }

    async fn a_pool_gets_instances(&self) -> Result<()> {
        let pool = self.until_running(2).await?;
        // It does not say that they are nodes, because they are not.
        ensure!(pool["state"] == "provisioning" && pool["ready"] == 0, "{pool}");
        let operations = self.json(&["operation", "list", "--state", "running"])?;
        let message = operations["items"][0]["message"].as_str().unwrap_or_default();
        ensure!(message.starts_with("0 of 2 machines joined"), "{operations}");
        ensure!(self.kubectl.ok("get nodes -o name")?.is_empty());

        let cluster = self.json(&["cluster", "get", "blue"])?;
        let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
        let (cluster_id, server_name) = (text(&cluster, "id"), text(&cluster, "server_name"));
        let mut tokens = Vec::new();
        for machine in pool["machines"].as_array().context("machines")? {
            let (id, name) = (text(machine, "id"), text(machine, "name"));
            let instance = self.moto.instance(&id).await;
            for (key, wanted) in
                [("roadstead:cluster", &cluster_id), ("Name", &name), ("roadstead-pool", &text(&pool, "id"))]
            {
                ensure!(instance.tag(key).as_ref() == Some(wanted), "{id}: {key} is {:?}", instance.tag(key));
            }
            tokens.extend(instance.tag("roadstead:client-token"));
            let script = self.moto.user_data(&id).await;
            for wanted in [
                format!("roadstead node join --server https://{GATEWAY} "),
                format!("--tls-server-name '{server_name}'"),
                format!("--name '{name}'"),
                "--discovery-token-ca-cert-hash 'sha256:".to_owned(),
            ] {
                ensure!(script.contains(&wanted), "{wanted} is missing in\n{script}");
            }
            // The token it joins with is one of the cluster's.
            let token = script.split("--token '").nth(1).and_then(|rest| rest.split('.').next());
            let known = self.json(&["cluster", "join-tokens", "blue"])?.to_string();
            ensure!(token.is_some_and(|token| known.contains(token)), "{token:?} is not in {known}");
        }
        tokens.dedup();
        ensure!(tokens.len() == 2, "{tokens:?}");
        Ok(())
    }

    async fn a_wrong_pool_is_refused_at_once(&self) -> Result<()> {
        // What a provider offers arrives with the cell's next report, after its instances may have.
        self.until_offered("t3.medium").await?;
        let create = ["nodepool", "create", "x", "--cluster", "blue", "--size", "1"];
        for (more, wanted) in [
            (["--provider", "gcp"], "/provider: \"gcp\" is not there; there is: local, aws"),
            (["--machine-type", "small"], "/machine_type: \"small\" is not offered by aws"),
        ] {
            let said = match self.roadstead(&[&create[..], &more[..]].concat()) {
                Ok(said) => bail!("{more:?} went well: {said}"),
                Err(error) => error.to_string(),
            };
            ensure!(said.contains(wanted), "{said}");
        }
        Ok(())
    }

    async fn a_service_gets_a_name(&self) -> Result<()> {
        let started = Instant::now();
        self.kubectl.ok("create service loadbalancer web --tcp=80:8080")?;
        let host = self.hostname("web")?;
        println!("Service to the name of its NLB: {} ms", started.elapsed().as_millis());
        let balancers = self.moto.balancers().await;
        let [(name, dns)] = &balancers[..] else { bail!("{balancers:?}") };
        ensure!(*dns == host, "{host} is not {dns}");
        let shown = self.moto.balancer(name).await;
        ensure!(shown == "80/TCP -> ; admits tcp/80 0.0.0.0/0", "{shown}");
        self.kubectl.until("get events", "UnAvailableLoadBalancer", PATIENCE)?;
        self.everything("instances 2, balancers 1, target groups 1, listeners 1, security groups 1").await
    }

    async fn killed_after_an_instance_was_made(&self, provider: Running) -> Result<Running> {
        self.moto.fail("RunInstances", Answer::Hold, 1);
        self.resize(3)?;
        self.held().await?;
        drop(provider);
        ensure!(self.moto.alive().await.len() == 3, "moto has done it");
        self.moto.heal();
        let provider = self.provider.start()?;
        let pool = self.until_running(3).await?;
        self.no_twins(&pool).await?;
        Ok(provider)
    }

    async fn a_cell_killed_after_an_instance_was_made(&self) -> Result<()> {
        self.moto.fail("RunInstances", Answer::Hold, 1);
        self.resize(4)?;
        self.held().await?;
        for pid in self.fleet.children("cell")? {
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        }
        self.moto.release();
        let pool = self.until_running(4).await?;
        self.no_twins(&pool).await
    }

    async fn killed_after_a_balancer_was_made(&self, provider: Running) -> Result<Running> {
        self.moto.fail("CreateLoadBalancer", Answer::Hold, 1);
        self.kubectl.ok("create service loadbalancer api --tcp=443:8443")?;
        self.held().await?;
        drop(provider);
        ensure!(self.moto.balancers().await.len() == 2, "moto has done it");
        self.moto.heal();
        let provider = self.provider.start()?;
        self.hostname("api")?;
        self.everything("instances 4, balancers 2, target groups 2, listeners 2, security groups 2").await?;
        Ok(provider)
    }

    async fn a_smaller_pool_gives_instances_back(&self) -> Result<()> {
        self.resize(1)?;
        let pool = self.until_running(1).await?;
        self.no_twins(&pool).await
    }

    async fn a_machine_that_does_not_join_is_said(&self) -> Result<()> {
        let pool = self.until_pool("it says that the machine has not joined", |pool| {
            pool["message"].as_str().is_some_and(|why| why.contains("it runs and has not joined"))
        });
        let pool = pool.await?;
        ensure!(pool["state"] == "provisioning" && pool["ready"] == 0, "{pool}");
        let shown = self.roadstead(&["nodepool", "get", "workers", "--cluster", "blue"])?;
        ensure!(shown.contains("0/1") && shown.contains("it runs and has not joined"), "{shown}");
        Ok(())
    }

    async fn what_is_deleted_is_gone(&self) -> Result<()> {
        self.kubectl.ok("delete service api --wait=true --timeout=60s")?;
        self.roadstead(&["nodepool", "delete", "workers", "--cluster", "blue", "--timeout", "2m"])?;
        self.everything("instances 0, balancers 1, target groups 1, listeners 1, security groups 1").await
    }

    async fn a_deleted_cluster_leaves_a_receipt_and_nothing_else(&self) -> Result<()> {
        // As a pool of its own says, too.
        let create = ["nodepool", "create", "workers", "--cluster", "blue", "--size", "1", "--wait=false"];
        self.roadstead(&[&create[..], &["--provider", "aws"]].concat())?;
        let pool = self.until_running(1).await?;
        let last = pool["machines"][0]["id"].as_str().context("an id")?.to_owned();
        let cluster = self.json(&["cluster", "get", "blue"])?;
        self.roadstead(&["cluster", "delete", "blue", "--timeout", "2m"])?;
        self.everything("instances 0, balancers 0, target groups 0, listeners 0, security groups 0").await?;
        let id = cluster["id"].as_str().context("an id")?;
        let receipt = self.json(&["cluster", "receipts", id])?;
        let resources = receipt["resources"].as_array().context("resources")?;
        let count = |kind: &str| resources.iter().filter(|one| one["kind"] == kind).count();
        ensure!(count("machine") == 5 && count("load-balancer") == 2, "{receipt}");
        ensure!(resources.iter().any(|one| one["id"] == last.as_str()), "{last} is not in {receipt}");
        let of_aws =
            |one: &&Value| ["machine", "load-balancer"].contains(&one["kind"].as_str().unwrap_or(""));
        ensure!(resources.iter().filter(of_aws).all(|one| one["provider"] == "aws"), "{receipt}");
        ensure!(resources.iter().any(|one| one["name"] == "default/web"), "{receipt}");
        Ok(())
    }

    fn resize(&self, size: u32) -> Result<()> {
        let size = size.to_string();
        self.roadstead(&[
            "nodepool",
            "resize",
            "workers",
            "--cluster",
            "blue",
            "--size",
            &size,
            "--wait=false",
        ])?;
        Ok(())
    }

    async fn held(&self) -> Result<()> {
        tokio::time::timeout(PATIENCE, self.moto.held()).await.context("nobody asked moto")
    }

    /// The pool's machines and the account's instances are the same ones.
    async fn no_twins(&self, pool: &Value) -> Result<()> {
        let mut known: Vec<String> = pool["machines"]
            .as_array()
            .context("machines")?
            .iter()
            .filter_map(|one| one["id"].as_str().map(str::to_owned))
            .collect();
        known.sort();
        let instances: Vec<(String, Tagged)> = self.moto.alive().await;
        let there: Vec<String> = instances.into_iter().map(|(id, _)| id).collect();
        ensure!(known == there, "the pool has {known:?}, the account {there:?}");
        Ok(())
    }

    /// So many machines, each with its instance.
    async fn until_running(&self, size: usize) -> Result<Value> {
        self.until_pool(&format!("{size} machines run"), |pool| {
            let machines = pool["machines"].as_array().map(Vec::as_slice).unwrap_or_default();
            let runs = |one: &Value| {
                one["state"] == "running" && one["id"].as_str().is_some_and(|id| !id.is_empty())
            };
            machines.len() == size && machines.iter().all(runs)
        })
        .await
    }

    async fn until_pool(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pool = self.json(&["nodepool", "get", "workers", "--cluster", "blue"])?;
            if holds(&pool) {
                return Ok(pool);
            }
            ensure!(pool["state"] != "failed", "{what}: it failed: {pool:#}");
            ensure!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}: {pool:#}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn until_offered(&self, machine_type: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let types = self.json(&["nodepool", "machine-types"])?;
            let items = types["items"].as_array().context("items")?;
            if items.iter().any(|one| one["name"] == machine_type && one["provider"] == "aws") {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{machine_type}: not offered within {PATIENCE:?}: {types}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What the account holds of ours.
    async fn everything(&self, wanted: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.moto.leftovers().await;
            if found == wanted {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "there are {found}, not {wanted}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn hostname(&self, service: &str) -> Result<String> {
        let path = "-o jsonpath={.status.loadBalancer.ingress[0].hostname}";
        self.kubectl.until(&format!("get service {service} {path}"), ".amazonaws.com", PATIENCE)
    }

    fn roadstead(&self, words: &[&str]) -> Result<String> {
        self.fleet.roadstead(&[words, &["--org", "acme"]].concat())
    }

    fn json(&self, words: &[&str]) -> Result<Value> {
        // Machine types and versions are the fleet's, not an organisation's.
        let is_fleets = words.contains(&"machine-types");
        let of: &[&str] = if is_fleets { &[] } else { &["--org", "acme"] };
        let said = self.fleet.roadstead(&[words, of, &["-o", "json"]].concat())?;
        serde_json::from_str(&said).with_context(|| said)
    }
}
