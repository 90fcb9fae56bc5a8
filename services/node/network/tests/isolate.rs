//! A process that makes its namespaces its own: the test starts itself again inside fresh ones. Skipped,
//! and said so, without root.

use std::process::Command;

use node_network::node::{self, Masquerade};

const INSIDE: &str = "ROADSTEAD_TEST_INSIDE";

#[tokio::test]
async fn a_node_hides_nothing_from_the_machine_and_the_machine_nothing_it_needs() {
    if let Some(cache) = std::env::var_os(INSIDE) {
        return inside(cache.as_ref()).await;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let name = "a_node_hides_nothing_from_the_machine_and_the_machine_nothing_it_needs";
    let output = Command::new("unshare")
        .args(["--mount", "--uts", "--net", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, cache.path())
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    // None of it came out.
    assert!(!std::path::Path::new("/run/only-inside").exists());
    assert_ne!(rustix::system::uname().nodename().to_bytes(), b"node-of-a-test");
    assert!(cache.path().join("in-the-cache").exists(), "CNI's cache is the node's own");
}

async fn inside(cache: &std::path::Path) {
    node::isolate("node-of-a-test", cache).unwrap();
    assert_eq!(rustix::system::uname().nodename().to_bytes(), b"node-of-a-test");
    std::fs::write("/run/only-inside", "").unwrap();
    std::fs::write("/var/lib/cni/in-the-cache", "").unwrap();
    assert!(std::fs::read_dir("/sys/fs/cgroup").unwrap().count() > 0, "cgroups must stay in sight");
    node::prepare().await.unwrap();
    let wanted = Masquerade {
        pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        nodes: vec!["172.31.240.10".parse().unwrap()],
    };
    node::masquerade(&wanted).await.unwrap();
    node::masquerade(&Masquerade { nodes: Vec::new(), ..wanted }).await.unwrap();
    node::clean().await.unwrap();
    let tables = node_network::run("nft", &["list", "tables"], None).await.unwrap();
    assert_eq!(tables, "");
}
