//! Probes and hooks: questions that a node asks a container.
//!
//! [`ask`] asks once. [`run`] keeps asking as a probe says, and reports each change of its verdict. What follows
//! from a verdict is the plan's business.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, ExecAction, GRPCAction, HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use node_runtime::Cri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// How much of an answer is read; upstream's limit for probes.
const BODY_BYTES: usize = 10 << 10;

/// Redirects within the same host that are followed.
const REDIRECTS: usize = 10;

/// One of the ways to ask.
#[derive(Debug, Clone)]
pub enum Question {
    Exec(ExecAction),
    Http(HTTPGetAction),
    Tcp(TCPSocketAction),
    Grpc(GRPCAction),
    Sleep(Duration),
}

impl Question {
    pub fn of_probe(probe: &Probe) -> Option<Question> {
        if let Some(exec) = &probe.exec {
            Some(Question::Exec(exec.clone()))
        } else if let Some(http) = &probe.http_get {
            Some(Question::Http(http.clone()))
        } else if let Some(tcp) = &probe.tcp_socket {
            Some(Question::Tcp(tcp.clone()))
        } else {
            probe.grpc.clone().map(Question::Grpc)
        }
    }

    pub fn of_hook(hook: &k8s_openapi::api::core::v1::LifecycleHandler) -> Option<Question> {
        if let Some(exec) = &hook.exec {
            Some(Question::Exec(exec.clone()))
        } else if let Some(http) = &hook.http_get {
            Some(Question::Http(http.clone()))
        } else if let Some(sleep) = &hook.sleep {
            Some(Question::Sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())))
        } else {
            hook.tcp_socket.clone().map(Question::Tcp)
        }
    }
}

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct Whom {
    pub cri: Cri,
    pub container_id: String,
    pub container: Container,
    /// The pod's address, for questions that name no host.
    pub ip: String,
}

/// Asks once. `Err` says why the answer is no, in upstream's words where they are known to be read.
pub async fn ask(whom: &Whom, question: &Question, timeout: Duration) -> Result<(), String> {
    match question {
        Question::Exec(exec) => ask_exec(whom, exec, timeout).await,
        Question::Http(http) => within(timeout, ask_http(whom, http)).await,
        Question::Tcp(tcp) => within(timeout, ask_tcp(whom, tcp)).await,
        Question::Grpc(grpc) => within(timeout, ask_grpc(whom, grpc, timeout)).await,
        Question::Sleep(pause) => {
            tokio::time::sleep(*pause).await;
            Ok(())
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub fn name(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
        }
    }
}

/// Counts answers up to the thresholds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    last: Option<bool>,
    row: u32,
}

impl Tally {
    /// Takes one answer; gives the verdict once there have been enough of its kind in a row.
    pub fn count(&mut self, fine: bool, successes: u32, failures: u32) -> Option<bool> {
        self.row = if self.last == Some(fine) { self.row.saturating_add(1) } else { 1 };
        self.last = Some(fine);
        let enough = if fine { successes.max(1) } else { failures.max(1) };
        (self.row >= enough).then_some(fine)
    }
}

/// Asks as often as `probe` says, for ever; `tell` hears every verdict that changed, `fail` every single failure.
pub async fn run(
    whom: Whom,
    kind: ProbeKind,
    probe: Probe,
    tell: impl Fn(bool) + Send,
    fail: impl Fn(&str) + Send,
) {
    let Some(question) = Question::of_probe(&probe) else { return };
    let seconds = |value: Option<i32>, default: u64| {
        value.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0).unwrap_or(default)
    };
    let timeout = Duration::from_secs(seconds(probe.timeout_seconds, 1));
    let period = Duration::from_secs(seconds(probe.period_seconds, 10));
    let threshold = |value: Option<i32>, default: u32| {
        value.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
    };
    let (successes, failures) =
        (threshold(probe.success_threshold, 1), threshold(probe.failure_threshold, 3));
    tokio::time::sleep(Duration::from_secs(seconds(probe.initial_delay_seconds, 0))).await;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tally = Tally::default();
    let mut told = None;
    loop {
        ticks.tick().await;
        let answer = ask(&whom, &question, timeout).await;
        if let Err(reason) = &answer {
            fail(reason);
        }
        let verdict = tally.count(answer.is_ok(), successes, failures);
        if verdict.is_some() && verdict != told {
            told = verdict;
            verdict.into_iter().for_each(&tell);
        }
        // A container that failed is about to be replaced, one that started needs no more asking.
        match (kind, verdict) {
            (ProbeKind::Startup, Some(_)) | (ProbeKind::Liveness, Some(false)) => return,
            _ => {}
        }
    }
}

async fn within(timeout: Duration, question: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    match tokio::time::timeout(timeout, question).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("context deadline exceeded: no answer within {} s", timeout.as_secs())),
    }
}

async fn ask_exec(whom: &Whom, exec: &ExecAction, timeout: Duration) -> Result<(), String> {
    let command = exec.command.clone().unwrap_or_default();
    match whom.cri.exec_sync(&whom.container_id, command, timeout).await {
        Ok(answer) if answer.exit_code == 0 => Ok(()),
        Ok(answer) => {
            let said = [answer.stdout, answer.stderr].concat();
            Err(String::from_utf8_lossy(&said[..said.len().min(BODY_BYTES)]).into_owned())
        }
        Err(error) => Err(format!("command timed out or failed: {}", error.message)),
    }
}

async fn ask_tcp(whom: &Whom, tcp: &TCPSocketAction) -> Result<(), String> {
    let host = tcp.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(&whom.ip);
    let port = port(&tcp.port, &whom.container)?;
    dial(host, port).await.map(drop)
}

async fn ask_http(whom: &Whom, http: &HTTPGetAction) -> Result<(), String> {
    let host = http.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(&whom.ip).to_owned();
    let port = port(&http.port, &whom.container)?;
    let https = http.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
    let mut path = http.path.clone().unwrap_or_default();
    for _ in 0..=REDIRECTS {
        if !path.starts_with('/') {
            path.insert(0, '/');
        }
        let url = format!("{}://{host}:{port}{path}", if https { "https" } else { "http" });
        let failed = |reason: String| format!("Get \"{url}\": {reason}");
        let (status, location) = get(&host, port, https, &path, http).await.map_err(failed)?;
        match (status.as_u16(), location) {
            // A redirect elsewhere counts as an answer: the node asks nobody but the pod.
            (300..=399, Some(location)) => match local_path(&location, &host) {
                Some(next) => path = next,
                None => return Ok(()),
            },
            (200..=399, _) => return Ok(()),
            (code, _) => return Err(format!("HTTP probe failed with statuscode: {code}")),
        }
    }
    Err(format!("stopped after {REDIRECTS} redirects"))
}

/// The path of a redirect that stays on the same host.
fn local_path(location: &str, host: &str) -> Option<String> {
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(location.to_owned());
    }
    let uri: http::Uri = location.parse().ok()?;
    (uri.host()? == host).then(|| uri.path_and_query().map_or("/".to_owned(), ToString::to_string))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn get(
    host: &str,
    port: u16,
    https: bool,
    path: &str,
    wanted: &HTTPGetAction,
) -> Result<(http::StatusCode, Option<String>), String> {
    let tcp = dial(host, port).await?;
    let stream: Box<dyn Stream> =
        if https { Box::new(untrusting_tls(tcp, host).await?) } else { Box::new(tcp) };
    let text = |error: &dyn std::error::Error| crate::container::chain(error);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    let connection = tokio::spawn(connection);
    let abort = AbortOnDrop(connection.abort_handle());
    let mut request = http::Request::get(path)
        .header("host", format!("{host}:{port}"))
        .header("accept", "*/*")
        .header("connection", "close")
        .header("user-agent", "kube-probe/1.36");
    if let Some(headers) = request.headers_mut() {
        for header in wanted.http_headers.iter().flatten() {
            let name = http::HeaderName::try_from(&header.name).map_err(|error| text(&error))?;
            let value = http::HeaderValue::try_from(&header.value).map_err(|error| text(&error))?;
            headers.insert(name, value);
        }
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|error| text(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
    let status = answer.status();
    let location = answer.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_owned);
    // Read, not judged: a body that never ends is cut, and the status already decided.
    let _ = Limited::new(answer.into_body(), BODY_BYTES).collect().await;
    drop(abort);
    Ok((status, location))
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let stream = match host.parse() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await,
        Err(_) => TcpStream::connect((host, port)).await,
    };
    stream.map_err(|error| format!("dial tcp {host}:{port}: connect: {error}"))
}

async fn untrusting_tls(
    tcp: TcpStream,
    host: &str,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, String> {
    base_net::tls::install_crypto_provider();
    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, tcp).await.map_err(|error| crate::container::chain(&error))
}

/// Probes ask whether somebody answers, not who: a pod's certificate is signed by nobody we know.
#[derive(Debug)]
struct AnyCertificate;

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// `grpc.health.v1`, by hand: two messages of one field each.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}
const SERVING: i32 = 1;

async fn ask_grpc(whom: &Whom, grpc: &GRPCAction, timeout: Duration) -> Result<(), String> {
    let host = if whom.ip.contains(':') { format!("[{}]", whom.ip) } else { whom.ip.clone() };
    let text = |error: &dyn std::error::Error| crate::container::chain(error);
    let endpoint = tonic::transport::Endpoint::try_from(format!("http://{host}:{}", grpc.port));
    let channel = endpoint.map_err(|error| text(&error))?.connect_timeout(timeout).connect().await;
    let channel = channel.map_err(|error| format!("timeout: failed to connect service: {}", text(&error)))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| text(&error))?;
    let request = HealthCheckRequest { service: grpc.service.clone().unwrap_or_default() };
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let answer = client.unary(tonic::Request::new(request), path, codec).await;
    match answer.map(|answer| answer.into_inner().status) {
        Ok(SERVING) => Ok(()),
        Ok(other) => Err(format!("service unhealthy (responded with {other})")),
        Err(status) => Err(format!("error: health rpc failed: {}", status.message())),
    }
}

/// A port by number or by the name that the container gave it.
fn port(wanted: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match wanted {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            named.map(|port| port.container_port).or_else(|| name.parse().ok())
        }
    };
    let number = number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0);
    number.ok_or_else(|| "couldn't find port of the probe".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_enough_answers_in_a_row() {
        for (successes, failures, answers, verdicts) in [
            (1, 3, "fff", "--f"),
            (1, 3, "ffsff", "--s--"),
            (2, 1, "sfss", "-f-s"),
            (1, 1, "sf", "sf"),
            (0, 0, "fs", "fs"),
        ] {
            let mut tally = Tally::default();
            let found: String = answers
                .chars()
                .map(|answer| match tally.count(answer == 's', successes, failures) {
                    Some(true) => 's',
                    Some(false) => 'f',
                    None => '-',
                })
                .collect();
            assert_eq!(found, verdicts, "{answers}");
        }
    }

    #[test]
    fn only_redirects_to_the_same_host_are_followed() {
        for (location, path) in [
            ("/next?x=1", Some("/next?x=1")),
            ("http://10.0.0.1:8080/a", Some("/a")),
            ("http://example.org/", None),
            ("//example.org/", None),
            ("not a url at all", None),
        ] {
            assert_eq!(local_path(location, "10.0.0.1").as_deref(), path, "{location}");
        }
    }
}
