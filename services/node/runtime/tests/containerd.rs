//! A real containerd, from its start to the last trace of it: sandbox, container, exec, log, stop, sweep.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use base_net::tasks::Tasks;
use dev_testkit::alone;
use node_runtime::cri::{
    ContainerConfig, ContainerMetadata, ContainerState, ImageSpec, LinuxContainerConfig,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};
use node_runtime::{Containerd, ContainerdConfig, Cri, images, sweep};

/// Below it the sandboxes of this test; removed at its end from every hierarchy.
const CGROUP: &str = "/roadstead-test-runtime";

fn config(folder: &Path) -> ContainerdConfig {
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

/// Host namespaces, so that the test needs no pod network.
fn sandbox(folder: &Path) -> PodSandboxConfig {
    let options = NamespaceOption { network: NamespaceMode::Node.into(), ..NamespaceOption::default() };
    let security = LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".into(),
            uid: "11111111-2222-3333-4444-555555555555".into(),
            namespace: "blue".into(),
            attempt: 0,
        }),
        log_directory: folder.join("logs").display().to_string(),
        labels: HashMap::from([("pod".to_owned(), "web".to_owned())]),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: CGROUP.into(),
            security_context: Some(security),
            sysctls: HashMap::new(),
        }),
        ..PodSandboxConfig::default()
    }
}

fn container() -> ContainerConfig {
    let options = NamespaceOption { network: NamespaceMode::Node.into(), ..NamespaceOption::default() };
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(ImageSpec { image: "roadstead.local/demo:1".into(), ..ImageSpec::default() }),
        args: ["sh", "-c", "trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.05; done"]
            .map(str::to_owned)
            .into(),
        labels: HashMap::from([("pod".to_owned(), "web".to_owned())]),
        log_path: "main.log".into(),
        linux: Some(LinuxContainerConfig {
            resources: None,
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            }),
        }),
        ..ContainerConfig::default()
    }
}

#[test]
fn a_container_lives_and_dies_on_a_real_containerd() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: containerd needs root");
        return;
    }
    let name = "a_container_lives_and_dies_on_a_real_containerd";
    match alone(name, &[], "").expect("setpriv and unshare are part of util-linux") {
        Some(status) => assert!(status.success()),
        None => {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(on_containerd());
        }
    }
}

async fn on_containerd() {
    let folder = tempfile::Builder::new().prefix("rt").tempdir().unwrap();
    let folder = folder.path();
    images::pause().unwrap().write_to(&folder.join("images")).unwrap();
    images::demo_of_this_machine(1).await.unwrap().write_to(&folder.join("images")).unwrap();
    std::fs::write(folder.join("images/broken.tar"), b"this is no tar").unwrap();

    let tasks = Tasks::new();
    let containerd = Containerd::start(config(folder), &tasks).await.unwrap();
    let cri = Cri::connect(containerd.socket()).unwrap();
    let outcome = live(&cri, folder).await;
    containerd.stop().await;
    // What a killed agent leaves behind: the second sandbox, whose shim outlives its containerd.
    let swept = sweep(&folder.join("containerd.sock"), &[&folder.join("state"), &folder.join("root")]).await;
    remove_cgroups();
    outcome.unwrap();
    assert!(swept.unwrap() >= 2, "the shim and the sandbox's pause process");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder.display().to_string()), "no mount is left behind");
    assert!(tasks.stop(Duration::from_secs(5)).await);
}

fn remove_cgroups() {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().filter_map(Result::ok);
    let roots = hierarchies.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]);
    for root in roots.map(|path| path.join(CGROUP.trim_start_matches('/'))) {
        for container in std::fs::read_dir(&root).into_iter().flatten().filter_map(Result::ok) {
            // Files are refused and stay; they go with their folder.
            let _ = std::fs::remove_dir(container.path());
        }
        let _ = std::fs::remove_dir(&root);
    }
}

async fn live(cri: &Cri, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    assert_eq!(cri.version().await?.runtime_name, "containerd");
    assert!(cri.image_status("roadstead.local/demo:1").await?.is_some());
    assert!(cri.image_status("roadstead.local/absent:1").await?.is_none());

    let first = cri.run_pod_sandbox(sandbox(folder)).await?;
    let id = cri.create_container(&first, container(), sandbox(folder)).await?;
    cri.start_container(&id).await?;
    assert_eq!(cri.container_status(&id).await?.state(), ContainerState::ContainerRunning);

    let said = cri.exec_sync(
        &id,
        ["sh", "-c", "cat /etc/demo-version; exit 7"].map(str::to_owned).into(),
        Duration::from_secs(5),
    );
    let said = said.await?;
    assert_eq!((said.stdout.as_slice(), said.exit_code), (b"1\n".as_slice(), 7));

    cri.stop_container(&id, 10).await?;
    let status = cri.container_status(&id).await?;
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 3), "SIGTERM was heard");
    let log = std::fs::read_to_string(folder.join("logs/main.log"))?;
    let lines: Vec<&str> = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).collect();
    assert_eq!(lines, ["hello", "bye"]);

    let labels = HashMap::from([("pod".to_owned(), "web".to_owned())]);
    assert_eq!(cri.list_containers(labels.clone()).await?.len(), 1);
    cri.stop_pod_sandbox(&first).await?;
    cri.remove_pod_sandbox(&first).await?;
    assert!(cri.list_containers(labels.clone()).await?.is_empty(), "a sandbox takes its containers with it");
    assert!(cri.container_status(&id).await.is_err_and(|error| error.is_not_found()));
    cri.remove_pod_sandbox(&first).await?;

    let mut second = sandbox(folder);
    second.metadata.get_or_insert_default().attempt = 1;
    cri.run_pod_sandbox(second).await?;
    Ok(())
}
