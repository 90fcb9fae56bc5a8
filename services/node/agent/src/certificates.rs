//! Keeps the node's two certificates fresh: the one it shows to the API server, and the one its kubelet
//! shows to whoever connects.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base_net::pki::{Issued, Profile};
use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::NodeConfig;
use crate::connect::Identity;
use crate::join::{self, CLIENT_SIGNER, Membership, SERVING_SIGNER};

/// A certificate is replaced somewhere in this part of its life: late enough to be rare, early enough for
/// a control plane that is away for days, and spread so that a fleet's nodes do not ask at once.
const RENEW_FROM: f64 = 0.7;
const RENEW_UNTIL: f64 = 0.9;

const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(10 * 60);

/// Longest single sleep: after a suspend or a jump of the clock the moment is looked at anew.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Renews the client certificate for ever.
pub async fn keep_client(
    config: NodeConfig,
    membership: Membership,
    identity: Arc<Identity>,
    client: kube::Client,
) {
    let mut current = membership;
    loop {
        wait_until_due(&current.client).await;
        let profile = Profile { client: true, ..join::profile(&config.name) };
        let issued = ask(&client, &profile, CLIENT_SIGNER, "client auth").await;
        let next = Membership { ca_pem: current.ca_pem.clone(), client: issued };
        // In use before it is kept: if the disk is full, at least this run goes on.
        if let Err(error) = identity.set(&next.client) {
            warn!(%error, "a new client certificate is not usable");
            tokio::time::sleep(RETRY_MAX).await;
            continue;
        }
        if let Err(error) = next.store(&config) {
            warn!(error = &error as &dyn std::error::Error, "a new client certificate could not be kept");
        }
        info!("client certificate renewed");
        current = next;
    }
}

/// Gets and renews the serving certificate for ever; `serving` always holds the latest.
pub async fn keep_serving(
    config: NodeConfig,
    address: IpAddr,
    client: kube::Client,
    serving: watch::Sender<Option<Issued>>,
) {
    let path = config.data_dir.join("pki/serving.pem");
    let mut current = load(&path, address);
    if let Some(issued) = &current {
        serving.send_replace(Some(issued.clone()));
    }
    loop {
        if let Some(issued) = &current {
            wait_until_due(issued).await;
        }
        let profile = Profile {
            dns_names: vec![config.name.clone()],
            ip_addresses: vec![address],
            server: true,
            ..join::profile(&config.name)
        };
        let issued = ask(&client, &profile, SERVING_SIGNER, "server auth").await;
        if let Err(error) = crate::config::write_private(&path, &join::join_pem(&issued)) {
            warn!(%error, "a serving certificate could not be kept");
        }
        info!("serving certificate issued");
        serving.send_replace(Some(issued.clone()));
        current = Some(issued);
    }
}

/// A kept serving certificate, if it still names this address.
fn load(path: &PathBuf, address: IpAddr) -> Option<Issued> {
    use x509_parser::prelude::GeneralName;
    let issued = join::split_pem(&std::fs::read_to_string(path).ok()?)?;
    let bytes = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let named = join::with_certificate(&issued.cert_pem, |certificate| {
        let names = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
        let mut names = names.iter().flat_map(|names| &names.value.general_names);
        Ok(names.any(|name| matches!(name, GeneralName::IPAddress(ip) if *ip == bytes)))
    });
    let named = named.unwrap_or(false);
    let alive = join::validity(&issued.cert_pem).is_ok_and(|(_, until)| until > Timestamp::now());
    (named && alive).then_some(issued)
}

/// Asks until there is a certificate.
async fn ask(client: &kube::Client, profile: &Profile, signer: &str, usage: &str) -> Issued {
    let mut pause = RETRY_MIN;
    loop {
        match join::request(client, profile, signer, usage).await {
            Ok(issued) => return issued,
            Err(error) => {
                warn!(
                    signer,
                    retry_in_s = pause.as_secs(),
                    error = &error as &dyn std::error::Error,
                    "no certificate yet"
                );
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn wait_until_due(issued: &Issued) {
    let Ok((from, until)) = join::validity(&issued.cert_pem) else { return };
    let due = due(from, until, rand::random());
    loop {
        let left = due.as_second() - Timestamp::now().as_second();
        match u64::try_from(left) {
            Ok(left) if left > 0 => tokio::time::sleep(Duration::from_secs(left).min(LOOK_EVERY)).await,
            Ok(_) | Err(_) => return,
        }
    }
}

/// When a certificate is to be replaced; `luck` in 0..1 spreads nodes.
fn due(from: Timestamp, until: Timestamp, luck: f64) -> Timestamp {
    let life = (until.as_second() - from.as_second()).max(0) as f64;
    let part = RENEW_FROM + (RENEW_UNTIL - RENEW_FROM) * luck.clamp(0.0, 1.0);
    Timestamp::from_second(from.as_second() + (life * part) as i64).unwrap_or(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_replaced_late_in_their_life() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (from, until, luck, expected) in
            [(0, 1000, 0.0, 700), (0, 1000, 1.0, 900), (500, 1500, 0.5, 1300), (1000, 1000, 0.5, 1000)]
        {
            assert_eq!(due(at(from), at(until), luck), at(expected));
        }
    }
}
