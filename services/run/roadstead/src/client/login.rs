//! Signing in, and where that is kept: `~/.config/roadstead/login.json`, readable by its owner alone.
//!
//! Kept are the manager's address, its CA certificate and a session's secret (or an API token), never a
//! password. `ROADSTEAD_CONFIG` names another folder.
//!
//! Not here: which fleet a verb means ([`super::connect`]).

use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use base_files::{private_dir, write_private};
use base_ids::Slug;
use fleet_client::{Client, ClientError};
use fleet_model::{AcceptInvitation, Hidden, Identity, Role};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::output::{Columns, many, note, raw, say};
use crate::cli::{Connection, Login, Output, Shown};
use crate::up::layout::Layout;

/// No password or token is longer; what is comes from a file that was not meant.
const MAX_SECRET_BYTES: u64 = 4096;

/// A sign-in as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    pub server: String,
    pub ca_pem: String,
    /// A session's secret, or an API token.
    pub token: String,
    /// For verbs that name no organisation, when there is just one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<Slug>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// The sign-in that is kept, if there is one.
pub fn stored() -> Result<Option<Stored>> {
    let Some(path) = path() else { return Ok(None) };
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).with_context(|| {
            format!("{} is damaged; sign in again with `roadstead login URL`", path.display())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = folder("ROADSTEAD_CONFIG")
        .or_else(|| folder("XDG_CONFIG_HOME").map(|config| config.join("roadstead")))
        .or_else(|| folder("HOME").map(|home| home.join(".config").join("roadstead")))?;
    Some(config.join("login.json"))
}

pub async fn login(asked: Login) -> Result<()> {
    let server = asked.server.clone();
    let ca_file = asked.ca_file.clone().unwrap_or_else(|| Layout::new(&asked.data).fleet_ca());
    let ca_pem = std::fs::read_to_string(&ca_file).with_context(|| {
        format!(
            "no CA certificate in {}; give the manager's with --ca-file (`roadstead up` keeps it in DIR/fleet-ca.pem)",
            ca_file.display()
        )
    })?;
    fleet_client::check_ca(&ca_pem).with_context(|| ca_file.display().to_string())?;
    let (token, expires_at) = match (&asked.token_file, &asked.invitation_file) {
        (Some(file), _) => (short_text(file)?, None),
        (None, Some(file)) => {
            let request = AcceptInvitation {
                invitation: Hidden::new(short_text(file)?),
                name: asked.name.clone(),
                password: password(&asked, "New password (at least 12 characters): ")?,
            };
            let session = Client::accept_invitation(&server, &ca_pem, &request).await?;
            (session.secret, Some(session.expires_at))
        }
        (None, None) => {
            let email = match &asked.email {
                Some(email) => email.to_string(),
                None => ask("Email: ")?,
            };
            let password = password(&asked, "Password: ")?;
            let session =
                Client::sign_in(&server, &ca_pem, &email, password).await.map_err(wrong_password)?;
            (session.secret, Some(session.expires_at))
        }
    };
    // A token that does not work is found out now.
    let identity = Client::new(&server, &ca_pem, &token)?.identity().await?;
    let organization = match identity.memberships.as_slice() {
        [only] => Some(only.organization.clone()),
        _ => None,
    };
    let path =
        path().ok_or_else(|| anyhow!("there is no HOME to keep the sign-in in; set ROADSTEAD_CONFIG"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    private_dir(folder)?;
    let kept = Stored { server: server.clone(), ca_pem, token, organization, expires_at };
    write_private(&path, &serde_json::to_vec_pretty(&kept)?)?;
    Ok(say(&format!("signed in to {server} as {}", name(&identity)))?)
}

/// Ends the session and forgets it. What cannot be reached is forgotten as well.
pub async fn logout() -> Result<()> {
    let Some(kept) = stored()? else {
        return Ok(say("not signed in")?);
    };
    if kept.token.starts_with("rss_") {
        match Client::new(&kept.server, &kept.ca_pem, &kept.token)?.sign_out().await {
            Ok(()) => {}
            Err(error) if error.status() == Some(401) => {}
            Err(error) => note(&format!("the session ends by itself: {error}")),
        }
    }
    if let Some(path) = path() {
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(say(&format!("signed out of {}", kept.server))?)
}

pub async fn whoami(connection: &Connection, shown: &Shown) -> Result<()> {
    let fleet = super::connect(connection)?;
    let identity = fleet.client.identity().await?;
    match shown.output {
        Output::Json => say(&serde_json::to_string_pretty(&identity)?)?,
        Output::Yaml => raw(&serde_yaml::to_string(&identity)?)?,
        Output::Table => {
            say(&format!("{} at {}", name(&identity), fleet.client.server()))?;
            if identity.provider {
                say("the provider: everything in every organisation")?;
            } else {
                let columns = Columns {
                    names: &["ORGANISATION", "ROLE"],
                    row: |one: &fleet_model::Membership| {
                        vec![one.organization.to_string(), one.role.as_str().to_owned()]
                    },
                };
                many(Output::Table, &identity.memberships, &columns)?;
            }
        }
    }
    Ok(())
}

fn name(identity: &Identity) -> String {
    match (&identity.user, &identity.token) {
        (Some(user), _) => user.email.to_string(),
        (None, Some(token)) => {
            let role = if token.role == Role::Provider { "provider" } else { token.role.as_str() };
            format!("API token {} ({role})", token.id)
        }
        (None, None) => "nobody".to_owned(),
    }
}

/// The manager says the same for an unknown person and a wrong password; so do we.
fn wrong_password(error: ClientError) -> anyhow::Error {
    if error.status() == Some(401) {
        return anyhow::Error::from(error).context("email and password do not belong together; try again");
    }
    error.into()
}

fn password(asked: &Login, prompt: &str) -> Result<Hidden> {
    let text = if asked.password_stdin {
        let mut text = String::new();
        std::io::stdin().take(MAX_SECRET_BYTES).read_to_string(&mut text).context("standard input")?;
        // What `echo` adds is no part of it.
        text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text).to_owned()).unwrap_or(text)
    } else {
        crate::prompt::hidden(prompt)?
    };
    if text.is_empty() {
        bail!("no password given");
    }
    Ok(Hidden::new(text))
}

fn ask(prompt: &str) -> Result<String> {
    if !std::io::stdin().is_terminal() {
        bail!("nobody to ask: give --email and --password-stdin, or --token-file");
    }
    write!(std::io::stderr(), "{prompt}").context("terminal")?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("terminal")?;
    Ok(line.trim().to_owned())
}

fn short_text(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut text = String::new();
    file.take(MAX_SECRET_BYTES)
        .read_to_string(&mut text)
        .with_context(|| format!("{} is not text", path.display()))?;
    let text = text.trim().to_owned();
    if text.is_empty() {
        bail!("{} is empty", path.display());
    }
    Ok(text)
}
