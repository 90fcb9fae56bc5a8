//! A pod's whole life on a real containerd, in network, mount and process namespaces of the test's own.
//!
//! The test starts itself again inside fresh namespaces, so that bridges, mounts, sockets and containers vanish with it.

mod api;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use api::FakeApi;
use base_net::pki::{Ca, Issued, Profile, YEAR};
use base_net::tasks::Tasks;
use dev_testkit::alone;
use futures::{SinkExt, StreamExt};
use node_kubelet::{Capacity, Config, Kubelet, Serving};
use node_runtime::{Containerd, ContainerdConfig, images, sweep};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;

const POD: &str = "/api/v1/namespaces/blue/pods/web";
const CGROUPS: &str = "/roadstead-test-kubelet";

#[test]
fn a_pod_lives_and_dies() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: namespaces and containerd need root");
        return;
    }
    let first = "ip link set lo up && mount -t tmpfs tmpfs /run && ";
    match alone("a_pod_lives_and_dies", &["--net"], first)
        .expect("setpriv and unshare are part of util-linux")
    {
        Some(status) => assert!(status.success()),
        None => {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(live());
        }
    }
}

async fn live() {
    let folder = tempfile::Builder::new().prefix("kubelet").tempdir().unwrap();
    let folder = folder.path();
    for archive in [images::pause().unwrap(), images::demo_of_this_machine(1).await.unwrap()] {
        archive.write_to(&folder.join("images")).unwrap();
    }
    network(&folder.join("cni"));
    let tasks = Tasks::new();
    let containerd = Containerd::start(runtime(folder), &tasks).await.unwrap();
    let outcome = tokio::spawn(story(folder.to_owned())).await;
    containerd.stop().await;
    sweep(containerd.socket(), &[&folder.join("state"), &folder.join("root"), &folder.join("kubelet")])
        .await
        .unwrap();
    node_kubelet::Cgroups::detect(CGROUPS).unwrap().remove_all().unwrap();
    outcome.unwrap();
}

async fn story(folder: std::path::PathBuf) {
    let cluster = FakeApi::new();
    let ca = Ca::generate("test-ca").unwrap();
    let config = config(&folder, &cluster, &ca);
    let words = json!({ "metadata": { "name": "words", "namespace": "blue" }, "data": { "greeting": "hi" } });
    cluster.put("/api/v1/namespaces/blue/configmaps/words", words).await;
    let kubernetes = json!({ "metadata": { "name": "kubernetes", "namespace": "default" },
        "spec": { "clusterIP": "10.96.0.1", "ports": [{ "name": "https", "port": 443, "protocol": "TCP" }] } });
    cluster.put("/api/v1/namespaces/default/services/kubernetes", kubernetes).await;

    let kubelet = Kubelet::run(config.clone(), &Tasks::new()).await.unwrap();
    let mut ready = kubelet.ready();
    tokio::time::timeout(Duration::from_secs(10), ready.wait_for(|ready| *ready)).await.unwrap().unwrap();
    let node = cluster.get("/api/v1/nodes/n1").await.unwrap();
    assert_eq!(node.pointer("/status/nodeInfo/kubeletVersion"), Some(&json!("v1.36.0")));
    assert!(cluster.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1").await.is_some());

    let started = Instant::now();
    cluster.put(POD, pod()).await;
    let running =
        until(&cluster, "running", |pod| pod.pointer("/status/phase") == Some(&json!("Running"))).await;
    println!("create to Running: {} ms", started.elapsed().as_millis());
    let running = if is_ready(&running) { running } else { until(&cluster, "ready", is_ready).await };
    println!("create to Ready: {} ms", started.elapsed().as_millis());
    let ip = running.pointer("/status/podIP").unwrap().as_str().unwrap().to_owned();
    let id = container_id(&running);
    assert_eq!(running.pointer("/status/qosClass"), Some(&json!("Burstable")));

    // The container serves, and saw its volumes and variables.
    assert!(http_get(&ip, 8080).await.ends_with("web\n"));
    let (out, status) = exec(&kubelet, &ca, &["sh", "-c", "cat /words/greeting; cat /var/run/secrets/tokens/token; echo $KUBERNETES_SERVICE_HOST $WHO $LIMIT"], None).await;
    assert_eq!(out, "hia-token10.96.0.1 web 64\n");
    assert_eq!(status["status"], "Success");
    let (_, status) = exec(&kubelet, &ca, &["sh", "-c", "exit 7"], None).await;
    assert_eq!(
        (&status["reason"], &status["details"]["causes"][0]["message"]),
        (&json!("NonZeroExitCode"), &json!("7"))
    );
    let (out, status) = exec(&kubelet, &ca, &["cat"], Some("half-closed")).await;
    assert_eq!(
        (out.as_str(), &status["status"]),
        ("half-closed", &json!("Success")),
        "cat ends when stdin does"
    );
    let (out, _) =
        exec(&kubelet, &ca, &["cat", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/etc/hosts"], None)
            .await;
    assert!(out.contains(&format!("{ip}\tweb")), "{out}");
    let log = https_get(
        &kubelet,
        &ca,
        "kube-apiserver-kubelet-client",
        "/containerLogs/blue/web/main?tailLines=100",
    )
    .await;
    assert!(log.contains("demo 1 on web listens on :8080"), "{log}");
    let stranger = https_get(&kubelet, &ca, "somebody", "/pods").await;
    assert!(stranger.starts_with("HTTP/1.1 403"), "{stranger}");

    // A kubelet that comes back finds its pod and leaves it alone.
    kubelet.stop(Duration::from_secs(5)).await;
    let kubelet = Kubelet::run(config, &Tasks::new()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let adopted = cluster.get(POD).await.unwrap();
    assert_eq!((container_id(&adopted), is_ready(&adopted)), (id.clone(), true));

    // A container that ends is started again, and the log of the first stays readable.
    let (_, _) = exec(&kubelet, &ca, &["sh", "-c", "kill -TERM 1"], None).await;
    let again = until(&cluster, "restarted", |pod| {
        pod.pointer("/status/containerStatuses/0/restartCount") == Some(&json!(1)) && is_ready(pod)
    })
    .await;
    assert_eq!(again.pointer("/status/containerStatuses/0/lastState/terminated/exitCode"), Some(&json!(0)));
    let log = https_get(
        &kubelet,
        &ca,
        "kube-apiserver-kubelet-client",
        "/containerLogs/blue/web/main?previous=true",
    )
    .await;
    assert!(log.contains("demo 1 on web"), "{log}");

    // A deleted pod ends gracefully and leaves nothing.
    let mut deleted = cluster.get(POD).await.unwrap();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-30T22:00:00Z");
    deleted["metadata"]["deletionGracePeriodSeconds"] = json!(5);
    let ending = Instant::now();
    cluster.put(POD, deleted).await;
    for _ in 0..200 {
        if cluster.get(POD).await.is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(cluster.get(POD).await.is_none(), "the deletion was confirmed");
    println!("delete to gone: {} ms", ending.elapsed().as_millis());
    let uid = pod()["metadata"]["uid"].as_str().unwrap().to_owned();
    let pod_folder = folder.join("kubelet/pods").join(&uid);
    for _ in 0..100 {
        if !pod_folder.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(!pod_folder.exists());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&uid), "no mount is left: {mounts}");
    let events = cluster.events().await;
    for reason in ["Pulled", "Created", "Started", "Killing", "NodeReady"] {
        assert!(events.iter().any(|event| event == reason), "{reason} in {events:?}");
    }
    kubelet.stop_pods(Duration::from_secs(2)).await.unwrap();
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": "blue", "uid": "6a5b3c1e-0001-4000-8000-000000000001", "generation": 1,
                      "creationTimestamp": "2026-11-30T21:00:00Z" },
        "spec": {
            "nodeName": "n1", "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default",
            "serviceAccountName": "default",
            "containers": [{
                "name": "main", "image": "roadstead.local/demo:1", "imagePullPolicy": "IfNotPresent",
                "env": [
                    { "name": "WHO", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    { "name": "LIMIT", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory", "divisor": "1Mi" } } },
                ],
                "resources": { "limits": { "memory": "64Mi" } },
                "readinessProbe": { "httpGet": { "path": "/", "port": 8080 }, "periodSeconds": 1 },
                "volumeMounts": [
                    { "name": "words", "mountPath": "/words" },
                    { "name": "tokens", "mountPath": "/var/run/secrets/tokens", "readOnly": true },
                ],
            }],
            "volumes": [
                { "name": "words", "configMap": { "name": "words" } },
                { "name": "tokens", "projected": { "sources": [{ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } }] } },
            ],
        },
    })
}

async fn until(cluster: &FakeApi, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..3000 {
        last = cluster.get(POD).await.unwrap_or_default();
        if enough(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the pod is not {what} within 30 s: {:#}", last["status"]);
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

fn container_id(pod: &Value) -> String {
    pod.pointer("/status/containerStatuses/0/containerID")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// A bridge with addresses for pods, by the plug-ins that every node has.
fn network(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let config = json!({ "cniVersion": "0.4.0", "name": "pods", "plugins": [
        { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
          "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.244.7.0/24" }]], "dataDir": folder.join("addresses") } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
    ] });
    std::fs::write(folder.join("10-pods.conflist"), config.to_string()).unwrap();
}

fn runtime(folder: &Path) -> ContainerdConfig {
    ContainerdConfig {
        root: folder.join("root"),
        state: folder.join("state"),
        socket: folder.join("containerd.sock"),
        config_file: folder.join("config.toml"),
        log_file: folder.join("containerd.log"),
        cni_conf_dir: folder.join("cni"),
        cni_bin_dir: "/usr/lib/cni".into(),
        images_dir: folder.join("images"),
        search_path: "/usr/sbin:/usr/bin:/sbin:/bin".into(),
    }
}

fn config(folder: &Path, cluster: &FakeApi, ca: &Ca) -> Config {
    let profile = Profile {
        common_name: "system:node:n1".into(),
        dns_names: vec!["n1".into()],
        server: true,
        lifetime: YEAR,
        ..Profile::default()
    };
    let (identity_to, identity) = watch::channel(Some(ca.issue(&profile).unwrap()));
    // The agent renews it for as long as the node lives.
    std::mem::forget(identity_to);
    Config {
        node_name: "n1".into(),
        root_dir: folder.join("kubelet"),
        client: cluster.client(),
        cri_socket: folder.join("containerd.sock"),
        cgroup_root: CGROUPS.into(),
        node_ips: vec!["127.0.0.1".parse().unwrap()],
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".into(),
        resolv_conf: "/etc/resolv.conf".into(),
        capacity: Capacity {
            cpu_millis: 2000,
            memory_bytes: 1 << 30,
            ephemeral_storage_bytes: 1 << 30,
            pods: 110,
        },
        labels: BTreeMap::new(),
        taints: Vec::new(),
        serving: Serving {
            listen: "127.0.0.1:0".parse().unwrap(),
            identity,
            client_ca_pem: ca.cert_pem().to_owned(),
        },
        clock: base_clock::SystemClock::shared(),
    }
}

async fn http_get(ip: &str, port: u16) -> String {
    let mut stream = TcpStream::connect((ip, port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn dial(kubelet: &Kubelet, ca: &Ca, common_name: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
    let profile =
        Profile { common_name: common_name.into(), client: true, lifetime: YEAR, ..Profile::default() };
    let identity: Issued = ca.issue(&profile).unwrap();
    let tls = base_net::tls::client(ca.cert_pem(), Some(&identity), &["http/1.1"]).unwrap();
    let stream = TcpStream::connect(kubelet.address()).await.unwrap();
    tokio_rustls::TlsConnector::from(tls).connect("n1".try_into().unwrap(), stream).await.unwrap()
}

async fn https_get(kubelet: &Kubelet, ca: &Ca, who: &str, path: &str) -> String {
    let mut stream = dial(kubelet, ca, who).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // The server may end without TLS's goodbye.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a command in the pod as kubectl does; gives its output and the final status.
async fn exec(kubelet: &Kubelet, ca: &Ca, command: &[&str], stdin: Option<&str>) -> (String, Value) {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let stream = dial(kubelet, ca, "kube-apiserver-kubelet-client").await;
    let encode = |word: &str| word.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let words: Vec<String> = command.iter().map(|word| format!("command={}", encode(word))).collect();
    let input = if stdin.is_some() { "&input=1" } else { "" };
    let url = format!("wss://n1/exec/blue/web/main?{}&output=1&error=1{input}", words.join("&"));
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    if let Some(stdin) = stdin {
        let mut message = vec![0];
        message.extend_from_slice(stdin.as_bytes());
        socket.send(Message::Binary(message.into())).await.unwrap();
        socket.send(Message::Binary(vec![255, 0].into())).await.unwrap();
    }
    let (mut out, mut status) = (Vec::new(), Value::Null);
    let exchange = async {
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(message) = message else { continue };
            match message.split_first() {
                Some((1 | 2, data)) => out.extend_from_slice(data),
                Some((3, data)) if !data.is_empty() => status = serde_json::from_slice(data).unwrap(),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), exchange).await.expect("the session ends");
    (String::from_utf8_lossy(&out).into_owned(), status)
}
