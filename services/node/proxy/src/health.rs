//! Answers load balancers that ask which nodes have an endpoint of a Service (externalTrafficPolicy Local).
//!
//! On each Service's healthCheckNodePort, any request gets what upstream's kube-proxy says: 200 with the number
//! of endpoints on this node, 503 when there are none. The body's fields are upstream's too
//! (`pkg/proxy/healthcheck`), since some balancers read them.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::model::ServiceKey;

/// Questions answered at a time on one port; balancers ask every few seconds.
const AT_ONCE: usize = 64;
/// For a question to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ports that are answered now.
#[derive(Default)]
pub(crate) struct Answering {
    ports: HashMap<u16, Port>,
}

struct Port {
    service: ServiceKey,
    endpoints: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Answering {
    /// Answers on these ports from now on: whose they are, and how many endpoints are here. False when a
    /// port is taken by somebody else; the caller tries again.
    pub(crate) async fn become_(&mut self, wanted: BTreeMap<u16, (ServiceKey, usize)>) -> bool {
        self.ports
            .retain(|port, known| wanted.get(port).is_some_and(|(service, _)| *service == known.service));
        let mut complete = true;
        for (port, (service, endpoints)) in wanted {
            if let Some(known) = self.ports.get(&port) {
                known.endpoints.store(endpoints, Ordering::Relaxed);
                continue;
            }
            let listener = match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await {
                Ok(listener) => listener,
                Err(error) => {
                    warn!(port, %error, service = %service, "health checks of a Service cannot be answered");
                    complete = false;
                    continue;
                }
            };
            let endpoints = Arc::new(AtomicUsize::new(endpoints));
            let stop = CancellationToken::new();
            tokio::spawn(serve(listener, service.clone(), endpoints.clone(), stop.clone()));
            self.ports.insert(port, Port { service, endpoints, stop });
        }
        complete
    }
}

async fn serve(
    listener: TcpListener,
    service: ServiceKey,
    endpoints: Arc<AtomicUsize>,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    debug!(%error, "accepting a health check failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let answer = answer(&service, endpoints.load(Ordering::Relaxed));
        tokio::spawn(async move {
            let _slot = slot;
            // Whoever hangs up early has its answer, or wanted none.
            let _ = tokio::time::timeout(PATIENCE, reply(stream, &answer)).await;
        });
    }
}

async fn reply(mut stream: TcpStream, answer: &str) -> std::io::Result<()> {
    // The head of the question, whatever it is, or as much of it as there is room for.
    let mut question = [0; 4096];
    let mut length = 0;
    while length < question.len() && !question[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut question[length..]).await? {
            0 => break,
            read => length += read,
        }
    }
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

fn answer(service: &ServiceKey, endpoints: usize) -> String {
    let status = if endpoints > 0 { "200 OK" } else { "503 Service Unavailable" };
    // Names of Services are DNS labels: nothing in them needs escaping.
    let body = format!(
        "{{\"service\":{{\"namespace\":\"{}\",\"name\":\"{}\"}},\"localEndpoints\":{endpoints},\"serviceProxyHealthy\":true}}\n",
        service.namespace, service.name
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {endpoints}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(port: u16) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    fn free_port() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn a_balancer_hears_how_many_endpoints_are_here() {
        let (port, service) = (free_port(), ServiceKey::new("default", "web"));
        let mut answering = Answering::default();
        for (endpoints, status) in [(2, "HTTP/1.1 200"), (0, "HTTP/1.1 503"), (1, "HTTP/1.1 200")] {
            assert!(answering.become_([(port, (service.clone(), endpoints))].into()).await);
            let said = ask(port).await.unwrap();
            assert!(said.starts_with(status), "{said}");
            assert!(said.contains(&format!("\"localEndpoints\":{endpoints}")), "{said}");
        }
        assert!(answering.become_(BTreeMap::new()).await);
        for _ in 0..100 {
            if ask(port).await.is_none_or(|said| said.is_empty()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the port is still answered");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_tried_again() {
        let taken = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted = || BTreeMap::from([(port, (ServiceKey::new("default", "web"), 1))]);
        let mut answering = Answering::default();
        assert!(!answering.become_(wanted()).await);
        drop(taken);
        assert!(answering.become_(wanted()).await);
        assert!(ask(port).await.unwrap().starts_with("HTTP/1.1 200"));
    }
}
