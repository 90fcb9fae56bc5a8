//! Bytes between a client and a container: exec, attach and port-forward with more of them than any buffer on the
//! way holds, and with ends that do not read.
//!
//! Needs root and Debian's packages (`cargo xtask packages`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use dev_testkit::{Fleet, Kubectl, Options, is_root};

const SOON: Duration = Duration::from_secs(60);

/// Far more than sockets, windows and pipes on the way hold together.
const MUCH_BYTES: usize = 48 << 20;

/// For [`MUCH_BYTES`] there and back through a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

#[test]
fn what_goes_in_comes_out() -> Result<()> {
    ensure!(is_root(), "this test makes network namespaces and starts containers: run it as root");
    let fleet = Fleet::start(Options { nodes: 1, ..Options::default() })?;
    let kubectl = fleet.kubectl();
    let manifest = r#"
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: roadstead.local/demo:1
    command: [sh, -c, "exec nc -ll -p 9000 -e cat"]
"#;
    kubectl.ok_with(&["apply", "-f", "-"], manifest)?;
    kubectl.until("get pod box -o jsonpath={.status.phase}", "Running", SOON)?;
    for client in [Client::WebSocket, Client::Spdy] {
        through_cat(&kubectl, client).with_context(|| format!("cat, {client:?}"))?;
        an_end_that_comes_early(&kubectl, client).with_context(|| format!("early end, {client:?}"))?;
        much_and_then_a_code(&kubectl, client).with_context(|| format!("exit code, {client:?}"))?;
        forwarded_both_ways(&kubectl, client).with_context(|| format!("port-forward, {client:?}"))?;
    }
    those_who_do_not_read(&fleet, &kubectl).context("clients that do not read")?;
    Ok(())
}

/// What kubectl speaks; SPDY is what it spoke before 1.31, and what older clients still do.
#[derive(Debug, Clone, Copy)]
enum Client {
    WebSocket,
    Spdy,
}

fn start(kubectl: &Kubectl, client: Client, words: &[&str]) -> Result<Child> {
    let websockets = matches!(client, Client::WebSocket).to_string();
    Ok(kubectl
        .command(words)
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &websockets)
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &websockets)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?)
}

/// Bytes that no two places of a stream share by accident.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    });
    words.take(len.div_ceil(4)).flatten().take(len).collect()
}

/// `cat` reads no further while nobody takes what it wrote: both directions must move by themselves.
fn through_cat(kubectl: &Kubectl, client: Client) -> Result<()> {
    let sent = pattern(MUCH_BYTES);
    let mut child = start(kubectl, client, &["exec", "-i", "box", "--", "cat"])?;
    let started = Instant::now();
    let (back, status) = converse(&mut child, sent.clone(), PATIENCE)?;
    ensure!(status.success(), "{status}");
    ensure!(back.len() == sent.len(), "{} of {} bytes came back", back.len(), sent.len());
    ensure!(back == sent, "other bytes came back");
    let rate = MUCH_BYTES as f64 / f64::from(1 << 20) / started.elapsed().as_secs_f64();
    println!("cat, {client:?}: {rate:.0} MiB/s");
    Ok(())
}

/// The command ends without having read all; what it said, and how it ended, must arrive.
///
/// Not with more than pipes hold: containerd 1.6 keeps a reading end of the command's standard input, waits for
/// a write that nobody takes any more, and never tells how the command ended.
fn an_end_that_comes_early(kubectl: &Kubectl, client: Client) -> Result<()> {
    let sent = pattern(60_000);
    for _ in 0..5 {
        let words = ["exec", "-i", "box", "--", "sh", "-c", "head -c 1000; exit 7"];
        let mut child = start(kubectl, client, &words)?;
        let (back, status) = converse(&mut child, sent.clone(), PATIENCE)?;
        ensure!(back == sent[..1000], "{} of 1000 bytes came back", back.len());
        ensure!(status.code() == Some(7), "{status}");
    }
    Ok(())
}

fn much_and_then_a_code(kubectl: &Kubectl, client: Client) -> Result<()> {
    let words = ["exec", "box", "--", "sh", "-c", "head -c 20000000 /dev/zero; exit 3"];
    let mut child = start(kubectl, client, &words)?;
    let (back, status) = converse(&mut child, Vec::new(), PATIENCE)?;
    ensure!(back.len() == 20_000_000, "{} bytes came", back.len());
    ensure!(status.code() == Some(3), "{status}");
    Ok(())
}

/// The pod echoes: both directions of one connection are full at once.
fn forwarded_both_ways(kubectl: &Kubectl, client: Client) -> Result<()> {
    let mut forward = Forward::start(kubectl, client)?;
    let sent = pattern(MUCH_BYTES / 2);
    for round in 0..2 {
        let mut stream = TcpStream::connect(forward.address.as_str())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut writer = stream.try_clone()?;
        let bytes = sent.clone();
        let writing = std::thread::spawn(move || -> Result<()> {
            writer.write_all(&bytes)?;
            Ok(())
        });
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).with_context(|| format!("round {round}"))?;
        writing.join().map_err(|_| anyhow!("the writer panicked"))??;
        ensure!(back == sent, "other bytes came back in round {round}");
    }
    forward.child.kill()?;
    forward.child.wait()?;
    Ok(())
}

struct Forward {
    child: Child,
    address: String,
}

impl Forward {
    fn start(kubectl: &Kubectl, client: Client) -> Result<Forward> {
        let mut child = start(kubectl, client, &["port-forward", "pod/box", ":9000"])?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
        let (mut stdout, mut line) = (BufReader::new(stdout), String::new());
        stdout.read_line(&mut line)?;
        // It says more later, and would end if nobody listened.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        // Forwarding from 127.0.0.1:40000 -> 9000
        let address = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next());
        let address = address.ok_or_else(|| anyhow!("port-forward says {line:?}"))?.to_owned();
        Ok(Forward { child, address })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sessions whose client takes nothing stand still; everybody else's go on, and they end when it leaves.
fn those_who_do_not_read(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let mut stalled = Vec::new();
    for number in 0..8 {
        let name = format!("cat /dev/zero # {number}");
        let mut child = start(kubectl, Client::WebSocket, &["exec", "box", "--", "sh", "-c", &name])?;
        let stdout: ChildStdout = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
        stalled.push((child, stdout));
    }
    // All have started when each one has said something.
    for (_, stdout) in &mut stalled {
        stdout.read_exact(&mut [0; 1])?;
    }
    ensure!(sessions(fleet)? >= stalled.len(), "{} sessions are seen", sessions(fleet)?);
    let started = Instant::now();
    for _ in 0..5 {
        ensure!(kubectl.ok("exec box -- echo here")?.trim() == "here");
    }
    ensure!(started.elapsed() < Duration::from_secs(15), "others took {:?}", started.elapsed());
    through_cat(kubectl, Client::WebSocket).context("beside stalled ones")?;
    for (child, _) in &mut stalled {
        child.kill()?;
        child.wait()?;
    }
    drop(stalled);
    // The node lets go of them. (containerd keeps the processes, which wait for somebody to take their words.)
    let deadline = Instant::now() + SOON;
    while sessions(fleet)? > 0 {
        ensure!(Instant::now() < deadline, "{} sessions outlive their clients", sessions(fleet)?);
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Connections to the kubelet's port on the node.
fn sessions(fleet: &Fleet) -> Result<usize> {
    let node = fleet.children("node")?.first().copied().ok_or_else(|| anyhow!("no node runs"))?;
    let table = std::fs::read_to_string(format!("/proc/{node}/net/tcp"))?;
    // Local address, remote address, state 1: established.
    let is_session = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(":280A")) && fields.nth(1) == Some("01")
    };
    Ok(table.lines().filter(is_session).count())
}

/// Writes `sent` and ends it, reads to the end, waits for the end.
fn converse(
    child: &mut Child,
    sent: Vec<u8>,
    patience: Duration,
) -> Result<(Vec<u8>, std::process::ExitStatus)> {
    let mut stdin = child.stdin.take().ok_or_else(|| anyhow!("no input"))?;
    let mut stdout = child.stdout.take().ok_or_else(|| anyhow!("no output"))?;
    let mut stderr = child.stderr.take().ok_or_else(|| anyhow!("no errors"))?;
    // It may end before it has read everything; then what it says tells.
    std::thread::spawn(move || drop(stdin.write_all(&sent)));
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut back = Vec::new();
        let read = stdout.read_to_end(&mut back).map(|_| back);
        let _ = tell.send(read);
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let read = told.recv_timeout(patience);
    if read.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    let said = complaints.join().unwrap_or_default();
    let back = read.map_err(|_| anyhow!("nothing more came within {patience:?}: {said}"))??;
    if !status.success() && !said.contains("exit code") {
        return Err(anyhow!("kubectl: {said}"));
    }
    Ok((back, status))
}
