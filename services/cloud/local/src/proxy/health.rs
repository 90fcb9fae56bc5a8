//! Which targets answer.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cloud_interface::HealthCheck;
use futures::stream::{self, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Shared;

/// Targets of one balancer that are asked at the same time.
const AT_ONCE: usize = 16;

/// Checks all targets for ever: at the interval, and at once when they change.
pub(super) async fn run(shared: Arc<Shared>) {
    // Answers in a row that differ from what is believed.
    let mut streaks: HashMap<IpAddr, u32> = HashMap::new();
    loop {
        let routing = shared.routing.load_full();
        let check = &routing.check;
        let addresses: Vec<IpAddr> = routing.targets.iter().map(|one| one.target.address).collect();
        let answers: Vec<(IpAddr, bool)> = stream::iter(addresses)
            .map(|address| {
                let check = check.clone();
                async move { (address, answers(address, &check).await) }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        streaks.retain(|address, _| routing.targets.iter().any(|one| one.target.address == *address));
        for backend in &routing.targets {
            let address = backend.target.address;
            let Some((_, fine)) = answers.iter().find(|(one, _)| *one == address) else { continue };
            let streak = streaks.entry(address).or_default();
            *streak = step(&backend.healthy, *fine, *streak, check);
        }
        let interval = Duration::from_millis(check.interval_ms.into());
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = shared.changed.notified() => {}
        }
    }
}

/// The streak after one more answer; belief changes when it is long enough.
fn step(healthy: &std::sync::atomic::AtomicBool, fine: bool, streak: u32, check: &HealthCheck) -> u32 {
    if healthy.load(Ordering::Relaxed) == fine {
        return 0;
    }
    let enough = if fine { check.healthy_after } else { check.unhealthy_after };
    if streak + 1 < enough {
        return streak + 1;
    }
    healthy.store(fine, Ordering::Relaxed);
    0
}

async fn answers(address: IpAddr, check: &HealthCheck) -> bool {
    let timeout = Duration::from_millis(check.timeout_ms.into());
    tokio::time::timeout(timeout, ask(SocketAddr::new(address, check.port), check.http_path.as_deref()))
        .await
        .is_ok_and(|asked| asked.unwrap_or(false))
}

async fn ask(at: SocketAddr, http_path: Option<&str>) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(at).await?;
    let Some(path) = http_path else { return Ok(true) };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(status.starts_with(b"HTTP/1.") && status.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn belief_changes_after_enough_answers_in_a_row() {
        let check = HealthCheck {
            port: 1,
            http_path: None,
            interval_ms: 1,
            timeout_ms: 1,
            unhealthy_after: 3,
            healthy_after: 2,
        };
        for (from, answers, to) in [
            (true, "++", true),
            (true, "--", true),
            (true, "---", false),
            (true, "--+--", true),
            (false, "+", false),
            (false, "++", true),
            (false, "+-+", false),
            (true, "---++", true),
        ] {
            let healthy = AtomicBool::new(from);
            let streak = answers.chars().fold(0, |streak, one| step(&healthy, one == '+', streak, &check));
            assert_eq!(healthy.load(Ordering::Relaxed), to, "{from} {answers} ({streak})");
        }
    }
}
