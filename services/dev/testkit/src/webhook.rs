//! A webhook server: HTTPS with a certificate of its own, one answer a request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow};
use base_net::pki::{Ca, Profile, YEAR};
use base64::Engine;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

/// Serves as long as the process lives. Requests are kept, for a test to look at.
pub struct WebhookServer {
    pub address: SocketAddr,
    /// `caBundle`
    pub ca_base64: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl WebhookServer {
    /// Listens on all addresses with a certificate for `names`. `answer` gets path and body, and gives a body.
    pub fn start(
        listen: SocketAddr,
        names: &[&str],
        answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static,
    ) -> Result<WebhookServer> {
        let ca = Ca::generate("webhook")?;
        let is_ip = |name: &&&str| name.parse::<std::net::IpAddr>().is_ok();
        let identity = ca.issue(&Profile {
            common_name: names.first().copied().unwrap_or("webhook").to_owned(),
            dns_names: names.iter().filter(|name| !is_ip(name)).map(|&name| name.to_owned()).collect(),
            ip_addresses: names.iter().filter_map(|name| name.parse().ok()).collect(),
            server: true,
            lifetime: YEAR,
            ..Profile::default()
        })?;
        let config = base_net::tls::server(&identity, None, &["http/1.1"])?;
        let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        let server = WebhookServer {
            address: listener.local_addr()?,
            ca_base64: base64::engine::general_purpose::STANDARD.encode(ca.cert_pem()),
            asked: Arc::default(),
        };
        let (asked, answer) = (server.asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (config, asked, answer) = (config.clone(), asked.clone(), answer.clone());
                // A client that is cut off is that client's business.
                std::thread::spawn(move || serve(stream, config, &asked, &*answer));
            }
        });
        Ok(server)
    }

    /// Path and body of what was asked since the last time.
    pub fn asked(&self) -> Vec<(String, Value)> {
        let mut asked = self.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::take(&mut *asked)
    }
}

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    asked: &Mutex<Vec<(String, Value)>>,
    answer: &dyn Fn(&str, &Value) -> Value,
) -> Result<()> {
    let mut tls = BufReader::new(StreamOwned::new(ServerConnection::new(config)?, stream));
    loop {
        let mut line = String::new();
        if tls.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let target = line.split(' ').nth(1).ok_or_else(|| anyhow!("no request: {line:?}"))?;
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            tls.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        tls.read_exact(&mut body)?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let said = answer(&path, &body).to_string();
        asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((path, body));
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{said}",
            said.len()
        );
        tls.get_mut().write_all(head.as_bytes())?;
        tls.get_mut().flush()?;
    }
}
