//! The fleet's own CA, and what it issues: mTLS between our processes, and the manager's HTTPS.
//!
//! Everybody who was ever let in keeps its certificate, so it is made once, and what is left of it is never
//! replaced silently.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use base_files::{read_text, write_private};
use base_net::pki::{Ca, Issued, PkiError, Profile, YEAR};

use super::layout::Layout;

/// The CA in the folder, which is made at the first start.
pub fn fleet_ca(layout: &Layout) -> Result<Ca> {
    let (cert_file, key_file) = (layout.fleet_ca(), layout.fleet_ca_key());
    let missing = match (read_text(&cert_file)?, read_text(&key_file)?) {
        (Some(cert), Some(key)) => {
            return Ca::from_pem(&cert, &key).map_err(|error| {
                let file = if matches!(error, PkiError::CaKey { .. }) { &key_file } else { &cert_file };
                let pair = if matches!(error, PkiError::NotAPair) { " with its key" } else { "" };
                let advice = format!(
                    "{}{pair} is damaged; put it back from a backup, or start on another folder",
                    file.display()
                );
                anyhow::Error::new(error).context(advice)
            });
        }
        (None, None) => None,
        // A start that was ended while it made them has come no further than this.
        _ if !layout.manager_url().exists() => None,
        (None, Some(_)) => Some((&cert_file, &key_file)),
        (Some(_), None) => Some((&key_file, &cert_file)),
    };
    if let Some((missing, there)) = missing {
        bail!(
            "{} is missing; put it back from a backup. Without one, remove {} as well: a new CA is made then, \
             and everybody who keeps the old certificate (sign-ins, terraform, cloud providers) has to be \
             given the new one",
            missing.display(),
            there.display()
        );
    }
    let ca = Ca::generate("roadstead-fleet")?;
    // The key first: a certificate without its key would look complete to the next start.
    write_private(&key_file, ca.key_pem().as_bytes())?;
    write_private(&cert_file, ca.cert_pem().as_bytes())?;
    Ok(ca)
}

pub fn identity(ca: &Ca, name: &str, address: Option<SocketAddr>) -> Result<Issued> {
    Ok(ca.issue(&profile(name, Vec::new(), address))?)
}

/// For serving and asking under `name` and `more`.
pub fn profile(name: &str, more: Vec<String>, address: Option<SocketAddr>) -> Profile {
    Profile {
        common_name: name.to_owned(),
        organizations: vec!["roadstead".to_owned()],
        dns_names: [name.to_owned(), "localhost".to_owned()].into_iter().chain(more).collect(),
        ip_addresses: address.map(|address| address.ip()).into_iter().collect(),
        server: true,
        client: true,
        lifetime: YEAR,
    }
}

/// A certificate for `profile`: `kept` while it says the same and is good for most of a year more. What is the
/// same needs no room on a disk that is full.
pub fn kept_or_issued(ca: &Ca, profile: &Profile, kept: Option<Issued>) -> Result<Issued> {
    match kept {
        Some(kept) if ca.has_issued(&kept, profile, profile.lifetime / 2) => Ok(kept),
        _ => ca.issue(profile).context("certificate"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn half_a_ca_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        let first = fleet_ca(&layout).unwrap();
        assert_eq!(fleet_ca(&layout).unwrap().cert_pem(), first.cert_pem());
        fs::write(layout.manager_url(), "https://127.0.0.1:8443\n").unwrap();
        let files = [layout.fleet_ca(), layout.fleet_ca_key()];
        let whole = files.clone().map(|file| fs::read(file).unwrap());
        let stranger = Ca::generate("stranger").unwrap();
        for (file, content, wanted) in [
            (0, None, "fleet-ca.pem is missing"),
            (1, None, "fleet-ca.key is missing"),
            (0, Some("x"), "fleet-ca.pem is damaged"),
            (1, Some("x"), "fleet-ca.key is damaged"),
            (1, Some(stranger.key_pem()), "fleet-ca.pem with its key is damaged"),
        ] {
            match content {
                Some(content) => fs::write(&files[file], content).unwrap(),
                None => fs::remove_file(&files[file]).unwrap(),
            }
            let why = fleet_ca(&layout).unwrap_err().to_string();
            assert!(why.contains(wanted), "{wanted}: {why}");
            assert_eq!(fs::read(&files[1 - file]).unwrap(), whole[1 - file], "the other one is untouched");
            fs::write(&files[file], &whole[file]).unwrap();
        }
        assert_eq!(fleet_ca(&layout).unwrap().cert_pem(), first.cert_pem());
    }

    #[test]
    fn a_certificate_is_kept_while_it_says_the_same() {
        let (ca, other) = (Ca::generate("one").unwrap(), Ca::generate("two").unwrap());
        let wanted = profile("cell", vec!["cell-7".to_owned()], None);
        let first = ca.issue(&wanted).unwrap();
        let kept = |ca: &Ca, profile: &Profile, kept: Issued| {
            kept_or_issued(ca, profile, Some(kept)).unwrap().cert_pem == first.cert_pem
        };
        assert!(kept(&ca, &wanted, first.clone()));
        assert!(!kept(&other, &wanted, first.clone()), "of another CA");
        assert!(!kept(&ca, &profile("cell", vec!["cell-8".to_owned()], None), first.clone()));
        assert!(!kept(
            &ca,
            &profile("cell", vec!["cell-7".to_owned()], "127.0.0.1:1".parse().ok()),
            first.clone()
        ));
        let longer = Profile { lifetime: YEAR * 3, ..wanted.clone() };
        assert!(!kept(&ca, &longer, first.clone()), "about to end");
    }
}
