//! On the machine itself; skipped, and said so, without root.

use std::time::Duration;

use node_network::host::{DEFAULT_RANGE, HostNetwork};
use node_network::{RunId, launch, run};

#[tokio::test]
async fn nodes_get_namespaces_that_reach_each_other_and_nothing_stays_behind() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let run_id = RunId::of(data.path());
    let host = HostNetwork::create(&run_id, DEFAULT_RANGE.parse().unwrap()).await.unwrap();

    // A "node" that shows where it is and then lives until its standard input ends.
    let script = data.path().join("node.sh");
    let seen = data.path().join("seen");
    let text = format!(
        "#!/bin/sh\nip -4 -o addr show dev eth0 > {0}\nmount -t tmpfs tmpfs /mnt\ntouch /mnt/hidden\necho \"$@\" >> {0}\nexec cat\n",
        seen.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let log = data.path().join("log");
    let config = |_: &_| Ok(data.path().join("config.yaml"));
    let mut first = launch::spawn_node(&host, 0, &script, &log, config).await.unwrap();
    let second = host.add_node(1).await.unwrap();

    let (from, to) = (second.netns.clone(), first.network.address.to_string());
    run("nsenter", &[&format!("--net=/run/netns/{from}"), "ping", "-c1", "-W2", &to], None)
        .await
        .map(drop)
        .or_else(|error| if matches!(&error, node_network::CommandError::Failed { said, .. } if said.contains("No such file")) { Ok(()) } else { Err(error) })
        .unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let said = loop {
        let said = std::fs::read_to_string(&seen).unwrap_or_default();
        if said.contains("node run") {
            break said;
        }
        assert!(tokio::time::Instant::now() < deadline, "the node did not start: {said}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(said.contains(&to), "{said}");
    assert!(said.contains("node run --config"), "{said}");
    assert!(!std::path::Path::new("/mnt/hidden").exists(), "the node's mounts reached the machine");
    let waited = tokio::time::timeout(Duration::from_millis(300), first.wait()).await;
    assert!(waited.is_err(), "the node ended by itself");

    // A killed run: nobody stops the node, the next start sweeps it.
    drop(first);
    let again = HostNetwork::create(&run_id, DEFAULT_RANGE.parse().unwrap()).await.unwrap();
    assert_eq!(again.gateway(), host.gateway());
    let left = run("ip", &["netns", "list"], None).await.unwrap();
    assert!(!left.contains(run_id.as_str()), "{left}");
    again.remove().await.unwrap();
    let links = run("ip", &["link", "show"], None).await.unwrap();
    assert!(!links.contains(run_id.as_str()), "{links}");
    let rules = run("nft", &["list", "tables"], None).await.unwrap();
    assert!(!rules.contains(run_id.as_str()), "{rules}");
}
