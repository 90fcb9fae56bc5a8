//! A real node: containerd in a network namespace of its own, and the session of the README on it.
//!
//! Needs root and Debian's packages (`cargo xtask packages`); nothing is pulled from anywhere.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dev_testkit::{Fleet, Kubectl, Options, is_root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(60);

/// From an API server that serves again to a stream through the node's new tunnel.
const RECONNECTED_WITHIN: Duration = Duration::from_secs(15);
/// One every ten seconds; a busy machine gets as much again.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(25);
/// The status is looked at every ten seconds.
const STATUS_WITHIN: Duration = Duration::from_secs(35);

#[test]
fn kubectl_runs_a_real_deployment_on_a_real_node() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces and starts containers: run it as root");
    let mut fleet = Fleet::start(Options { nodes: 1, ..Options::default() })?;
    let kubectl = fleet.kubectl();
    fleet.explain(session(&fleet, &kubectl))?;
    pods_survive_a_restart(&mut fleet).context("restart")?;
    Ok(())
}

fn session(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    nodes_are_ready(kubectl).context("nodes")?;
    a_deployment_rolls_out(kubectl).context("deployment")?;
    a_pod_reaches_the_service_by_name(kubectl).context("service")?;
    logs_and_exec(kubectl).context("logs and exec")?;
    pods_reach_the_api(kubectl).context("API from a pod")?;
    configuration_arrives(kubectl).context("volumes and environment")?;
    failures_are_told(kubectl).context("failures")?;
    rollback_and_scale(kubectl).context("rollback and scale")?;
    a_node_outlives_its_api_server(fleet, kubectl).context("API server killed")?;
    Ok(())
}

fn nodes_are_ready(kubectl: &Kubectl) -> Result<()> {
    let nodes = kubectl.until("get nodes", " Ready ", SOON)?;
    ensure!(nodes.contains("v1.36.0"), "{nodes}");
    kubectl.ok("-n kube-node-lease get lease -o name")?;
    Ok(())
}

fn a_deployment_rolls_out(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("create deployment web --image=roadstead.local/demo:1 --replicas=3")?;
    kubectl.ok("rollout status deployment/web --timeout=90s")?;
    let pods = kubectl.ok("get pods -l app=web -o wide")?;
    ensure!(pods.matches("Running").count() == 3, "{pods}");
    ensure!(pods.matches("1/1").count() == 3, "{pods}");
    Ok(())
}

fn a_pod_reaches_the_service_by_name(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("expose deployment web --port=80 --target-port=8080")?;
    kubectl.until("get endpointslices -l kubernetes.io/service-name=web", "10.244.", SOON)?;
    let words: Vec<&str> =
        "run probe --rm -i --restart=Never --image=roadstead.local/demo:1 -- wget -qO- http://web"
            .split(' ')
            .collect();
    let answer = kubectl.ok_with(&words, "")?;
    ensure!(answer.contains("web-"), "the Service did not answer with a pod's name: {answer}");
    Ok(())
}

fn logs_and_exec(kubectl: &Kubectl) -> Result<()> {
    let pod = kubectl.ok("get pods -l app=web -o jsonpath={.items[0].metadata.name}")?;
    kubectl.ok("logs deploy/web")?;
    ensure!(kubectl.ok(&format!("exec {pod} -- hostname"))?.trim() == pod);
    let echoed = kubectl.ok_with(&["exec", "-i", &pod, "--", "cat"], "through and back")?;
    ensure!(echoed == "through and back", "{echoed}");
    let failed = kubectl.run_with(&["exec", &pod, "--", "sh", "-c", "exit 3"], "")?;
    ensure!(!failed.success && failed.stderr.contains("exit code 3"), "{failed:?}");
    kubectl
        .ok("run talker --image=roadstead.local/demo:1 --restart=Never --command -- sh -c echo${IFS}hello")?;
    kubectl.until("get pod talker", "Completed", SOON)?;
    ensure!(kubectl.ok("logs talker")?.trim() == "hello");
    kubectl.ok("delete pod talker")?;
    Ok(())
}

/// A pod asks the Service `kubernetes` who it is, with its own token and CA: through the ClusterIP, the node's
/// tunnel and TLS that nobody on the way can read. busybox speaks no ECDSA, so the machine's curl is borrowed.
fn pods_reach_the_api(kubectl: &Kubectl) -> Result<()> {
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: asking}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: roadstead.local/demo:1
    command:
    - sh
    - -ec
    - |
      echo "$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"
      nslookup kubernetes.default.svc.cluster.local
      cd /var/run/secrets/kubernetes.io/serviceaccount
      cat namespace
      chroot /machine curl -sS --cacert /dev/stdin -H "Authorization: Bearer $(cat token)" \
        https://10.96.0.1/api/v1/namespaces/default/secrets < ca.crt
    volumeMounts: [{name: machine, mountPath: /machine, readOnly: true}]
  volumes: [{name: machine, hostPath: {path: /}}]
"#;
    kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
    let ended = kubectl.until("get pod asking -o jsonpath={.status.phase}", "Succeeded", SOON);
    let log = kubectl.ok("logs asking")?;
    ended.with_context(|| log.clone())?;
    for wanted in ["10.96.0.1:443", "Address: 10.96.0.1", "default", "system:serviceaccount:default:default"]
    {
        ensure!(log.contains(wanted), "{wanted:?} is not in {log}");
    }
    kubectl.ok("delete pod asking")?;
    Ok(())
}

fn configuration_arrives(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("create configmap settings --from-literal=colour=blue")?;
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: configured, labels: {who: me}}
spec:
  restartPolicy: Never
  initContainers:
  - {name: first, image: "roadstead.local/demo:1", command: [sh, -c, "echo made-by-init > /scratch/file"], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  containers:
  - name: main
    image: roadstead.local/demo:1
    command: [sh, -c, "cat /etc/settings/colour /scratch/file /etc/me/labels; echo; echo $COLOUR $MY_IP"]
    env:
    - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: colour}}}
    - {name: MY_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    volumeMounts:
    - {name: settings, mountPath: /etc/settings}
    - {name: scratch, mountPath: /scratch}
    - {name: me, mountPath: /etc/me}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: scratch, emptyDir: {}}
  - {name: me, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
"#;
    kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
    kubectl.until("get pod configured", "Completed", SOON)?;
    let log = kubectl.ok("logs configured")?;
    for wanted in ["blue", "made-by-init", "who=\"me\"", "blue 10.244."] {
        ensure!(log.contains(wanted), "{wanted:?} is not in {log}");
    }
    kubectl.ok("delete pod/configured configmap/settings")?;
    Ok(())
}

fn failures_are_told(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("run crashing --image=roadstead.local/demo:1 --command -- false")?;
    kubectl.until("get pod crashing", "CrashLoopBackOff", SOON)?;
    kubectl.ok("run absent --image=roadstead.local/none:1 --image-pull-policy=Never")?;
    kubectl.until("get pod absent", "ErrImageNeverPull", SOON)?;
    kubectl.ok("delete pod crashing absent --grace-period=1")?;
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: roadstead.local/demo:1
    command: [sh, -c, "touch /tmp/alive; sleep 5; rm /tmp/alive; sleep 600"]
    livenessProbe: {exec: {command: [cat, /tmp/alive]}, periodSeconds: 1, failureThreshold: 1}
"#;
    kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
    kubectl.until("get pod probed -o jsonpath={.status.containerStatuses[0].restartCount}", "1", SOON)?;
    ensure!(kubectl.ok("describe pod probed")?.contains("Liveness probe failed"));
    kubectl.ok("delete pod probed")?;
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: early}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "roadstead.local/demo:1", volumeMounts: [{name: words, mountPath: /words}]}
  volumes:
  - {name: words, configMap: {name: later}}
  - {name: file, hostPath: {path: /etc/passwd, type: Directory}}
---
apiVersion: v1
kind: Pod
metadata: {name: hooked}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: roadstead.local/demo:1
    lifecycle: {postStart: {exec: {command: [sh, -c, "echo a secret; exit 1"]}}}
"#;
    kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
    // Each volume is told by itself, in upstream's words.
    let events = "get events --field-selector involvedObject.name=early,reason=FailedMount -o jsonpath={.items[*].message}";
    kubectl.until(
        events,
        "MountVolume.SetUp failed for volume \"words\" : configmap \"later\" not found",
        SOON,
    )?;
    let type_check = "MountVolume.SetUp failed for volume \"file\" : hostPath type check failed: /etc/passwd is not a directory";
    kubectl.until(events, type_check, SOON)?;
    let reason = "get pod hooked -o jsonpath={.status.containerStatuses[0].state.waiting}";
    kubectl.until(reason, "PostStartHookError", SOON)?;
    let events = kubectl
        .ok("get events --field-selector involvedObject.name=hooked -o jsonpath={.items[*].message}")?;
    ensure!(events.contains("PostStartHook failed") && !events.contains("a secret"), "{events}");
    kubectl.ok("delete pod early hooked")?;
    Ok(())
}

fn rollback_and_scale(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok("set image deployment/web demo=roadstead.local/demo:2")?;
    kubectl.ok("rollout status deployment/web --timeout=90s")?;
    let images = "get pods -l app=web -o jsonpath={.items[*].spec.containers[0].image}";
    kubectl.until(images, "demo:2", SOON)?;
    kubectl.ok("rollout undo deployment/web")?;
    kubectl.ok("rollout status deployment/web --timeout=90s")?;
    kubectl.ok("scale deployment web --replicas=1")?;
    let deadline = Instant::now() + SOON;
    while kubectl.ok("get pods -l app=web -o name")?.lines().count() != 1 {
        ensure!(Instant::now() < deadline, "pods did not go");
        std::thread::sleep(Duration::from_millis(200));
    }
    ensure!(kubectl.ok(images)?.contains("demo:1"));
    Ok(())
}

/// The cell is killed and comes back: the node's watches, tunnel, Lease and status go on by themselves.
///
/// The status is made to change twice. A kubelet that blocks on telling somebody of the first change would
/// never tell the second, which in life comes five minutes later.
fn a_node_outlives_its_api_server(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let renewed = "-n kube-node-lease get lease node-1 -o jsonpath={.spec.renewTime}";
    let pod = kubectl.ok("get pods -l app=web -o jsonpath={.items[0].metadata.name}")?;
    for round in 1..=2 {
        let cells = fleet.children("cell")?;
        ensure!(!cells.is_empty(), "no cell runs");
        for cell in cells {
            kill(Pid::from_raw(cell), Signal::SIGKILL)?;
        }
        let killed = Instant::now();
        kubectl.until("get --raw /readyz", "ok", SOON)?;
        let before = kubectl.ok(renewed)?;
        // Through a tunnel that was dialed anew.
        until(RECONNECTED_WITHIN, "the tunnel is not back", || {
            Ok(kubectl.run(&format!("exec {pod} -- hostname"))?.stdout.trim() == pod)
        })?;
        println!("round {round}: tunnel back {:.1} s after the kill", killed.elapsed().as_secs_f64());
        until(HEARTBEAT_WITHIN, "no heartbeat", || Ok(kubectl.ok(renewed)? != before))?;
        let image = format!("roadstead.local/round:{round}");
        tag_image(fleet, "roadstead.local/demo:1", &image)?;
        kubectl.until("get node node-1 -o jsonpath={.status.images[*].names}", &image, STATUS_WITHIN)?;
    }
    ensure!(kubectl.ok("get nodes")?.contains(" Ready "));
    Ok(())
}

fn until(patience: Duration, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what} within {patience:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Gives an image of node-1 one more name.
fn tag_image(fleet: &Fleet, from: &str, to: &str) -> Result<()> {
    let node = fleet.children("node")?.first().copied().context("no node runs")?;
    let configuration = std::fs::read_to_string(fleet.data().join("nodes/node-1/containerd.toml"))?;
    let socket =
        configuration.lines().find_map(|line| line.trim().strip_prefix("address = \"")?.strip_suffix('"'));
    let tagged = std::process::Command::new("nsenter")
        .args(["--target", &node.to_string(), "--mount", "--", "ctr", "--address"])
        .arg(socket.context("containerd has no address")?)
        .args(["--namespace", "k8s.io", "images", "tag", from, to])
        .output()?;
    ensure!(tagged.status.success(), "{}", String::from_utf8_lossy(&tagged.stderr));
    Ok(())
}

fn pods_survive_a_restart(fleet: &mut Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    kubectl.ok(
        "run once --restart=Never --image=roadstead.local/demo:1 --command -- sh -c echo${IFS}ran;sleep${IFS}600",
    )?;
    kubectl.until("get pod once", "Running", SOON)?;
    kubectl.until("logs once", "ran", SOON)?;
    let web = "get pods -l app=web -o jsonpath={.items[0].metadata.name}";
    let web = kubectl.ok(web)?.trim().to_owned();
    let restarts = |kubectl: &Kubectl| -> Result<i64> {
        let of = format!("get pod {web} -o jsonpath={{.status.containerStatuses[0].restartCount}}");
        Ok(kubectl.ok(&of)?.trim().parse()?)
    };
    let before = restarts(&kubectl)?;
    fleet.stop()?;
    let left = std::process::Command::new("ip").args(["netns", "list"]).output()?;
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    fleet.start_again()?;
    let kubectl = fleet.kubectl();
    kubectl.until("get nodes", " Ready ", SOON)?;
    kubectl.ok("rollout status deployment/web --timeout=120s")?;
    ensure!(!left.contains("rs-"), "namespaces left behind after Ctrl-C: {left}");
    // What may run once has run once; what runs always counts on and remembers.
    kubectl.until("get pod once -o jsonpath={.status.phase}", "Failed", SOON)?;
    ensure!(kubectl.ok("logs once")?.trim() == "ran", "a pod that may run once ran twice");
    ensure!(restarts(&kubectl)? == before + 1, "restarts are counted anew");
    let last = format!("get pod {web} -o jsonpath={{.status.containerStatuses[0].lastState.terminated}}");
    ensure!(kubectl.ok(&last)?.contains("exitCode"), "the last state is forgotten");
    kubectl.ok(&format!("logs {web} --previous"))?;
    kubectl.ok("delete pod once --wait=false")?;
    kubectl.ok("delete deployment/web service/web")?;
    Ok(())
}
