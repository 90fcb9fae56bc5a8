//! Packets through the kernel: a node's namespace and three pods routed to it. Skipped, and said so,
//! without root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sched::{CloneFlags, setns, unshare};
use node_proxy::model::Protocol;
use node_proxy::{LocalService, NodeFacts, Proxy};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Runs `work` on a thread of its own in the namespace `name`.
fn inside<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let path = format!("/run/netns/{name}");
    let thread = std::thread::spawn(move || {
        setns(std::fs::File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        work()
    });
    thread.join().unwrap()
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Names the pod and says who asked.
fn serve(name: &str, pod: &'static str, port: u16) {
    inside(name, move || {
        let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let peer = stream.peer_addr().unwrap().ip();
                let _ = write!(stream, "{pod} {peer}");
            }
        });
        let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(pod.as_bytes(), from);
            }
        });
    });
}

fn ask(address: SocketAddr) -> String {
    let mut said = String::new();
    match TcpStream::connect_timeout(&address, Duration::from_millis(700)) {
        Ok(mut stream) => {
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            stream.read_to_string(&mut said).unwrap();
            said
        }
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn tcp(from: &str, to: &str) -> String {
    let to = to.parse().unwrap();
    inside(from, move || ask(to))
}

fn udp(from: &str, to: &str) -> String {
    let to: SocketAddr = to.parse().unwrap();
    inside(from, move || {
        let socket = UdpSocket::bind("0.0.0.0:5353").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        socket.connect(to).unwrap();
        socket.send(b"?").unwrap();
        let mut buffer = [0; 64];
        match socket.recv(&mut buffer) {
            Ok(len) => String::from_utf8_lossy(&buffer[..len]).into_owned(),
            Err(error) => format!("{:?}", error.kind()),
        }
    })
}

fn service(name: &str, ip: &str, extra: serde_json::Value) -> Service {
    let mut spec = json!({"clusterIP": ip, "ports": [
        {"name": "t", "port": 80, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"},
    ]});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": name}, "spec": spec})).unwrap()
}

fn slice(service: &str, addresses: &[&str]) -> EndpointSlice {
    let endpoints: Vec<_> =
        addresses.iter().map(|ip| json!({"addresses": [ip], "nodeName": "here"})).collect();
    serde_json::from_value(json!({
        "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"namespace": "ns", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "t", "port": 8080, "protocol": "TCP"}, {"name": "u", "port": 8080, "protocol": "UDP"}],
    }))
    .unwrap()
}

struct Names(Vec<String>);
impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

#[test]
fn services_work_between_real_namespaces() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let base = format!("rsproxy{}", std::process::id());
    let names = Names((0..4).map(|at| format!("{base}-{at}")).collect());
    for name in &names.0 {
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
    }
    let [node, a, b, outside] = &names.0[..] else { panic!() };
    // Pods as `ptp` connects them: everything is routed by the node. The outsider has no route to pods.
    for (at, (pod, address)) in
        [(a, "10.244.1.2"), (b, "10.244.1.3"), (outside, "192.0.2.9")].into_iter().enumerate()
    {
        ip(&format!("-n {node} link add v{at} type veth peer name eth0 netns {pod}"));
        let gateway = if at == 2 { "192.0.2.1" } else { "10.244.1.1" };
        ip(&format!("-n {node} addr add {gateway}/32 dev v{at}"));
        ip(&format!("-n {node} link set v{at} up"));
        ip(&format!("-n {node} route add {address}/32 dev v{at}"));
        ip(&format!("-n {pod} addr add {address}/32 dev eth0"));
        ip(&format!("-n {pod} link set eth0 up"));
        ip(&format!("-n {pod} route add {gateway}/32 dev eth0"));
        match at {
            2 => ip(&format!("-n {pod} route add 10.96.0.0/16 via {gateway} dev eth0")),
            _ => ip(&format!("-n {pod} route add default via {gateway} dev eth0")),
        }
    }
    ip(&format!("-n {node} route add default via 192.0.2.9 dev v2"));
    inside(node, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    serve(a, "a", 8080);
    serve(b, "b", 8080);
    serve(node, "node", 7443);

    let facts = NodeFacts { pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()] };
    let own = LocalService {
        address: "10.96.0.1".parse().unwrap(),
        port: 443,
        protocol: Protocol::Tcp,
        to: "10.244.1.1:7443".parse().unwrap(),
    };
    let proxy = Proxy::new("roadstead-test", "here", facts, vec![own]);
    let stop = CancellationToken::new();
    let runner = {
        let (proxy, stop, path) = (proxy.clone(), stop.clone(), format!("/run/netns/{node}"));
        std::thread::spawn(move || {
            setns(std::fs::File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(proxy.run(stop));
        })
    };
    let mut applied = proxy.applied();
    let mut step = |change: &dyn Fn()| {
        let before = *applied.borrow_and_update();
        change();
        let deadline = Instant::now() + Duration::from_secs(10);
        while *applied.borrow_and_update() == before {
            assert!(Instant::now() < deadline, "the rules were not applied");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    step(&|| {
        proxy.service(&service("web", "10.96.0.50", json!({})));
        proxy.service(&service("none", "10.96.0.51", json!({})));
        proxy.service(&service("sticky", "10.96.0.52", json!({"sessionAffinity": "ClientIP"})));
        let port = json!([{"name": "t", "port": 80, "nodePort": 30080}]);
        proxy.service(&service("port", "10.96.0.53", json!({"type": "NodePort", "ports": port})));
        proxy.slice(&slice("web", &["10.244.1.2"]));
        proxy.slice(&slice("sticky", &["10.244.1.2", "10.244.1.3"]));
        proxy.slice(&slice("port", &["10.244.1.3"]));
        let all = ["web", "none", "sticky", "port"].map(|name| ("ns".to_owned(), name.to_owned()));
        proxy.services_complete(&all.clone().into_iter().collect());
        proxy.slices_complete(&all.map(|(ns, name)| (ns, format!("{name}-1"))).into_iter().collect());
    });
    for (from, to, said) in [
        (b, "10.96.0.50:80", "a 10.244.1.3"),
        // A pod reaches itself, masqueraded, else it would answer itself past the node.
        (a, "10.96.0.50:80", "a 10.244.1.1"),
        (outside, "10.96.0.50:80", "a 10.244.1.1"),
        (b, "10.96.0.51:80", "ConnectionRefused"),
        (b, "10.96.0.50:81", "ConnectionRefused"),
        (b, "10.96.0.1:443", "node 10.244.1.3"),
        (node, "10.96.0.1:443", "node 10.244.1.1"),
        (a, "10.244.1.1:30080", "b 10.244.1.1"),
    ] {
        let got = tcp(from, to);
        // The node's own address differs by interface; what matters is that it is not the client's.
        let same = got == said
            || (said.ends_with("10.244.1.1")
                && got.split(' ').next() == said.split(' ').next()
                && !got.ends_with("192.0.2.9"));
        assert!(same, "{from} to {to}: {got}, not {said}");
    }
    let firsts: Vec<String> = (0..8).map(|_| tcp(b, "10.96.0.52:80").chars().take(1).collect()).collect();
    assert!(firsts.windows(2).all(|pair| pair[0] == pair[1]), "affinity: {firsts:?}");

    // One client socket, so connection tracking would hold on to the old endpoint.
    assert_eq!(udp(b, "10.96.0.50:53"), "a");
    step(&|| proxy.slice(&slice("web", &["10.244.1.3"])));
    assert_eq!(tcp(a, "10.96.0.50:80"), "b 10.244.1.2");
    assert_eq!(udp(b, "10.96.0.50:53"), "b");
    step(&|| proxy.slice_gone(&slice("web", &[])));
    assert_eq!(tcp(a, "10.96.0.50:80"), "ConnectionRefused");
    step(&|| proxy.service_gone("ns", "web"));

    stop.cancel();
    runner.join().unwrap();
    let tables = inside(node, || Command::new("nft").args(["list", "tables"]).output().unwrap());
    assert_eq!(String::from_utf8_lossy(&tables.stdout), "", "the table stayed behind");
}

#[test]
fn thousands_of_services_load_and_one_endpoint_flips_quickly() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let count = 10_000;
            let proxy = Proxy::new("roadstead-test", "here", NodeFacts::default(), Vec::new());
            let stop = CancellationToken::new();
            let mut applied = proxy.applied();
            let mut present = (std::collections::HashSet::new(), std::collections::HashSet::new());
            for at in 0..count {
                let name = format!("s{at}");
                proxy.service(&service(&name, &format!("10.96.{}.{}", at / 250, at % 250 + 1), json!({})));
                proxy.slice(&slice(&name, &["10.244.1.2", "10.244.1.3"]));
                present.0.insert(("ns".to_owned(), name.clone()));
                present.1.insert(("ns".to_owned(), format!("{name}-1")));
            }
            proxy.services_complete(&present.0);
            proxy.slices_complete(&present.1);
            let started = Instant::now();
            let running = {
                let (proxy, stop) = (proxy.clone(), stop.clone());
                tokio::spawn(async move { proxy.run(stop).await })
            };
            tokio::time::timeout(Duration::from_secs(60), applied.changed()).await.unwrap().unwrap();
            let load = started.elapsed();
            let started = Instant::now();
            proxy.slice(&slice("s7", &["10.244.1.2"]));
            tokio::time::timeout(Duration::from_secs(10), applied.changed()).await.unwrap().unwrap();
            let first = started.elapsed();
            let mut flips = Vec::new();
            for round in 0..20 {
                let started = Instant::now();
                let addresses: &[&str] = if round % 2 == 0 { &["10.244.1.9"] } else { &["10.244.1.2"] };
                proxy.slice(&slice("s8", addresses));
                tokio::time::timeout(Duration::from_secs(10), applied.changed()).await.unwrap().unwrap();
                flips.push(started.elapsed());
            }
            flips.sort();
            println!("{count} services: loaded in {load:?}, first flip {first:?}, then p50 {:?}", flips[10]);
            // Far above the aim: the machine of a test may be busy.
            assert!(flips[10] < Duration::from_secs(1), "a flip took {:?}", flips[10]);
            stop.cancel();
            running.await.unwrap();
        });
    })
    .join()
    .unwrap();
}
