//! The provider on this machine: the promises of every provider, and traffic through its balancers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use base_clock::SystemClock;
use base_ids::TenantId;
use base_net::tasks::Tasks;
use cloud_interface::suite::{self, Bench};
use cloud_interface::{
    Balancer, BalancerSpec, Cloud, CloudError, HealthCheck, Listener, Machine, MachineSpec, MachineState,
    Protocol, Target,
};
use cloud_local::{Config, Local};
use node_network::host::{DEFAULT_RANGE, HostNetwork};
use node_network::{RunId, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

const SOON: Duration = Duration::from_secs(10);

fn config(data: &Path, pool: &str) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        any_port_if_taken: true,
        data_dir: data.to_owned(),
        ca_pem: String::new(),
        cert_pem: String::new(),
        key_pem: String::new(),
        bridge_of: None,
        gateway: "127.0.0.1:1".parse().unwrap(),
        machines_max: 4,
        machine_types: cloud_local::default_machine_types(),
        balancer_pool: pool.parse().unwrap(),
    }
}

async fn start(config: &Config, binary: &Path, tasks: &Tasks) -> Local {
    Local::start(config, binary.to_owned(), SystemClock::shared(), tasks).await.unwrap()
}

async fn balancers_only(data: &Path, pool: &str, tasks: &Tasks) -> Local {
    start(&config(data, pool), Path::new("/bin/false"), tasks).await
}

/// Answers every connection with its own address, and what it received, once the client stops sending.
async fn server(address: &str) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let at = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut heard = String::new();
                stream.read_to_string(&mut heard).await.unwrap();
                let _ = stream.write_all(format!("{} {heard}", at.ip()).as_bytes()).await;
            });
        }
    });
    (at, task)
}

async fn say(to: SocketAddr, words: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(words.as_bytes()).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn target(address: IpAddr) -> Target {
    Target { name: format!("node-{address}"), address, machine_id: None }
}

fn spec(cluster: TenantId, listener: Listener, targets: Vec<Target>) -> BalancerSpec {
    BalancerSpec {
        cluster,
        client_token: "web".parse().unwrap(),
        name: "default/web".to_owned(),
        listeners: vec![listener],
        targets,
        source_ranges: Vec::new(),
        health_check: HealthCheck {
            port: listener.node_port,
            http_path: None,
            interval_ms: 100,
            timeout_ms: 100,
            unhealthy_after: 1,
            healthy_after: 1,
        },
        tags: [].into(),
        wanted_address: None,
    }
}

fn tcp(port: u16, node_port: u16) -> Listener {
    Listener { port, protocol: Protocol::Tcp, node_port }
}

fn address(balancer: &Balancer, port: u16) -> SocketAddr {
    SocketAddr::new(balancer.addresses[0], port)
}

#[tokio::test]
async fn balancers_keep_the_promises() {
    let (data, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let local = balancers_only(data.path(), "127.78.1.0/24", &tasks).await;
    let bench = Bench::new(std::sync::Arc::new(local));
    suite::balancers(&bench).await;
}

#[tokio::test]
async fn connections_are_shared_out_and_survive_changes() {
    let (data, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let local = balancers_only(data.path(), "127.78.2.0/24", &tasks).await;
    let (first, first_task) = server("127.78.2.201:0").await;
    let (second, _task) = server(&format!("127.78.2.202:{}", first.port())).await;
    let cluster = TenantId::generate();
    let mut wanted = spec(cluster, tcp(8080, first.port()), vec![target(first.ip()), target(second.ip())]);
    let balancer = local.ensure_balancer(&wanted).await.unwrap();
    let web = address(&balancer, 8080);

    let mut heard: Vec<String> = Vec::new();
    for _ in 0..4 {
        heard.push(say(web, "hello").await.unwrap());
    }
    for one in [first.ip(), second.ip()] {
        assert_eq!(heard.iter().filter(|answer| **answer == format!("{one} hello")).count(), 2, "{heard:?}");
    }

    // A connection that is open stays so while the rest changes around it.
    let mut open = TcpStream::connect(web).await.unwrap();
    open.write_all(b"still ").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    wanted.listeners = vec![tcp(8081, first.port())];
    let changed = local.ensure_balancer(&wanted).await.unwrap();
    assert_eq!(changed.addresses, balancer.addresses);
    assert!(TcpStream::connect(web).await.is_err(), "the old port is closed");
    open.write_all(b"here").await.unwrap();
    open.shutdown().await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("still here"), "{answer:?}");

    // A target that dies is left out, at once for those who connect, and by the check for good.
    first_task.abort();
    let web = address(&balancer, 8081);
    for _ in 0..6 {
        assert_eq!(say(web, "x").await.unwrap(), format!("{} x", second.ip()));
    }

    // Only those who may.
    wanted.source_ranges = vec!["10.0.0.0/8".to_owned()];
    local.ensure_balancer(&wanted).await.unwrap();
    assert!(!say(web, "x").await.is_ok_and(|answer| !answer.is_empty()), "127.0.0.1 is not in 10.0.0.0/8");
    wanted.source_ranges.push("127.0.0.0/8".to_owned());
    local.ensure_balancer(&wanted).await.unwrap();
    assert_eq!(say(web, "x").await.unwrap(), format!("{} x", second.ip()));

    // No target at all: connections end, and the next one with a target works.
    wanted.targets.clear();
    local.ensure_balancer(&wanted).await.unwrap();
    assert_eq!(say(web, "").await.unwrap_or_default(), "");

    local.delete_balancer(cluster, &balancer.id).await.unwrap();
    assert!(TcpStream::connect(web).await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn a_restart_keeps_addresses_and_ports() {
    let data = tempfile::tempdir().unwrap();
    let (server_at, _task) = server("127.78.3.201:0").await;
    let cluster = TenantId::generate();
    let mut wanted = spec(cluster, tcp(8080, server_at.port()), vec![target(server_at.ip())]);
    let mut places = Vec::new();
    for run in 0..2 {
        let tasks = Tasks::new();
        let local = balancers_only(data.path(), "127.78.3.0/24", &tasks).await;
        if run == 0 {
            for token in ["one", "two", "web"] {
                wanted.client_token = token.parse().unwrap();
                local.ensure_balancer(&wanted).await.unwrap();
            }
        }
        let mut found = local.list_balancers(cluster).await.unwrap();
        found.sort_by_key(|one| one.client_token.clone());
        for one in &found {
            assert_eq!(say(address(one, 8080), "x").await.unwrap(), format!("{} x", server_at.ip()));
        }
        places.push(found.iter().map(|one| (one.id.clone(), one.addresses.clone())).collect::<Vec<_>>());
        local.stop().await;
        tasks.stop(SOON).await;
    }
    assert_eq!(places[0].len(), 3);
    assert_eq!(places[0], places[1]);
    let mut addresses: Vec<_> = places[0].iter().map(|(_, addresses)| addresses[0]).collect();
    addresses.dedup();
    assert_eq!(addresses.len(), 3, "each has its own");
}

#[tokio::test]
async fn addresses_are_given_out_once_and_from_the_pool_alone() {
    let (data, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let local = balancers_only(data.path(), "127.78.4.0/30", &tasks).await;
    let mut wanted = spec(TenantId::generate(), tcp(8080, 1), Vec::new());
    let mut ask = async |token: &str, address: Option<&str>| {
        wanted.client_token = token.parse().unwrap();
        wanted.wanted_address = address.map(|text| text.parse().unwrap());
        local.ensure_balancer(&wanted).await.map(|one| one.addresses[0].to_string())
    };
    assert_eq!(ask("a", Some("127.78.4.2")).await.as_deref(), Ok("127.78.4.2"));
    assert!(matches!(ask("b", Some("127.78.4.2")).await, Err(CloudError::Exhausted(_))));
    assert!(matches!(ask("b", Some("10.0.0.1")).await, Err(CloudError::Invalid(_))));
    assert_eq!(ask("b", None).await.as_deref(), Ok("127.78.4.1"));
    assert_eq!(ask("c", None).await.as_deref(), Ok("127.78.4.3"));
    assert!(matches!(ask("d", None).await, Err(CloudError::Exhausted(_))));
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_and_served_once_it_is_free() {
    let (data, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let local = balancers_only(data.path(), "127.78.5.0/24", &tasks).await;
    let squatter = TcpListener::bind("127.78.5.1:8080").await.unwrap();
    let cluster = TenantId::generate();
    let wanted = spec(cluster, tcp(8080, 1), Vec::new());
    let error = local.ensure_balancer(&wanted).await.unwrap_err();
    assert!(error.to_string().contains("127.78.5.1:8080"), "{error}");
    let listed = local.list_balancers(cluster).await.unwrap();
    assert_eq!(listed.len(), 1, "it is on the books, to be deleted or tried again: {listed:?}");
    drop(squatter);
    assert_eq!(local.ensure_balancer(&wanted).await.unwrap().id, listed[0].id);
}

#[tokio::test]
async fn datagrams_go_there_and_back() {
    let (data, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let local = balancers_only(data.path(), "127.78.6.0/24", &tasks).await;
    let echo = UdpSocket::bind("127.78.6.201:0").await.unwrap();
    let node_port = echo.local_addr().unwrap().port();
    let echo_at = echo.local_addr().unwrap().ip();
    tokio::spawn(async move {
        let mut buffer = [0; 2000];
        loop {
            let (length, peer) = echo.recv_from(&mut buffer).await.unwrap();
            echo.send_to(&buffer[..length], peer).await.unwrap();
        }
    });
    // One port may be both.
    let udp = Listener { port: 5353, protocol: Protocol::Udp, node_port };
    let mut wanted = spec(TenantId::generate(), udp, vec![target(echo_at)]);
    wanted.listeners.push(tcp(5353, node_port));
    let balancer = local.ensure_balancer(&wanted).await.unwrap();
    let (one, two) = tokio::join!(UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
    for (client, words) in [(one.unwrap(), "one"), (two.unwrap(), "two")] {
        client.connect(address(&balancer, 5353)).await.unwrap();
        let mut buffer = [0; 100];
        for turn in 0..3 {
            let words = format!("{words} {turn}");
            client.send(words.as_bytes()).await.unwrap();
            let received = tokio::time::timeout(SOON, client.recv(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(&buffer[..received], words.as_bytes());
        }
    }
}

#[tokio::test]
async fn a_target_whose_check_fails_gets_nothing() {
    let (data, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let local = balancers_only(data.path(), "127.78.7.0/24", &tasks).await;
    // externalTrafficPolicy Local: every node listens, only those with a pod say 200.
    let (first, _one) = server("127.78.7.201:0").await;
    let (second, _two) = server(&format!("127.78.7.202:{}", first.port())).await;
    let health = TcpListener::bind("127.78.7.201:0").await.unwrap();
    let health_port = health.local_addr().unwrap().port();
    let refusing = TcpListener::bind(("127.78.7.202", health_port)).await.unwrap();
    for (listener, status) in [(health, "200 OK"), (refusing, "503 Service Unavailable")] {
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 1000];
                let length = stream.read(&mut buffer).await.unwrap();
                assert!(buffer[..length].starts_with(b"GET /healthz HTTP/1.1\r\nHost: "));
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }
    let mut wanted =
        spec(TenantId::generate(), tcp(8080, first.port()), vec![target(first.ip()), target(second.ip())]);
    wanted.health_check.port = health_port;
    wanted.health_check.http_path = Some("/healthz".to_owned());
    let web = address(&local.ensure_balancer(&wanted).await.unwrap(), 8080);
    let deadline = Instant::now() + SOON;
    let mut in_a_row = 0;
    while in_a_row < 10 {
        let answer = say(web, "x").await.unwrap();
        in_a_row = if answer == format!("{} x", first.ip()) { in_a_row + 1 } else { 0 };
        assert!(Instant::now() < deadline, "the second still gets connections");
    }
}

/// Machines that run a script in the node agent's place: what they are made of is real.
#[tokio::test]
async fn machines_keep_the_promises_and_leave_nothing() {
    assert!(rustix_is_root(), "this test makes network namespaces: run it as root");
    let data = tempfile::tempdir().unwrap();
    let bridge = HostNetwork::create(&RunId::of(data.path()), DEFAULT_RANGE.parse().unwrap()).await.unwrap();
    let script = data.path().join("machine");
    std::fs::write(&script, "#!/bin/sh\necho '{}'\nsleep 1000 & wait\n").unwrap();
    run("chmod", &["755", script.to_str().unwrap()], None).await.unwrap();
    let mut config = config(&data.path().join("cloud"), "127.78.8.0/24");
    config.bridge_of = Some(data.path().to_owned());
    let name = format!("rs{}n", bridge.run_id());

    let tasks = Tasks::new();
    let local = start(&config, &script, &tasks).await;
    let bench = Bench { patience: Duration::from_secs(30), ..Bench::new(std::sync::Arc::new(local.clone())) };
    suite::machines(&bench).await;
    assert_eq!(namespaces(&name).await, 0, "after the suite");

    // A provider that is killed finds its machines again; the number it may have is its own.
    let cluster = TenantId::generate();
    let ask = |token: &str| MachineSpec {
        cluster,
        client_token: token.parse().unwrap(),
        name: format!("pool-{token}"),
        machine_type: "medium".to_owned(),
        join: Default::default(),
        tags: [("pool".to_owned(), "p".to_owned())].into(),
    };
    let (kept, gone) = (ask("kept"), ask("gone"));
    let before = local.create_machine(&kept).await.unwrap();
    let to_go = local.create_machine(&gone).await.unwrap();
    until_running(&local, cluster, 2).await;
    assert_eq!(namespaces(&name).await, 2);
    // As after kill -9: no task of it runs on, nothing was taken away; and a deletion was half-way.
    let record = config.data_dir.join("machines").join(&to_go.id).join("machine.json");
    let text = std::fs::read_to_string(&record).unwrap().replace("\"deleting\":false", "\"deleting\":true");
    std::fs::write(&record, text).unwrap();
    std::mem::forget(local);
    std::mem::forget(tasks);

    let tasks = Tasks::new();
    let local = start(&config, &script, &tasks).await;
    let after = until_running(&local, cluster, 1).await;
    assert_eq!(
        (&after[0].id, &after[0].addresses, &after[0].tags, after[0].created_at),
        (&before.id, &before.addresses, &before.tags, before.created_at)
    );
    assert_eq!(local.create_machine(&kept).await.unwrap().id, before.id);
    for number in 0..3 {
        local.create_machine(&ask(&format!("more-{number}"))).await.unwrap();
    }
    let refused = local.create_machine(&ask("too-many")).await;
    assert!(matches!(refused, Err(CloudError::Exhausted(_))), "{refused:?}");
    for machine in local.list_machines(cluster).await.unwrap() {
        local.delete_machine(cluster, &machine.id).await.unwrap();
    }
    until_running(&local, cluster, 0).await;
    assert_eq!(namespaces(&name).await, 0, "after deletion");
    assert_eq!(std::fs::read_dir(config.data_dir.join("machines")).unwrap().count(), 0, "no folder is left");
    local.stop().await;
    bridge.remove().await.unwrap();
}

fn rustix_is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

async fn namespaces(prefix: &str) -> usize {
    run("ip", &["netns", "list"], None).await.unwrap().lines().filter(|line| line.starts_with(prefix)).count()
}

async fn until_running(local: &Local, cluster: TenantId, count: usize) -> Vec<Machine> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let machines = local.list_machines(cluster).await.unwrap();
        let running = machines.iter().all(|one| one.state == MachineState::Running);
        if machines.len() == count && running {
            return machines;
        }
        assert!(Instant::now() < deadline, "{machines:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
