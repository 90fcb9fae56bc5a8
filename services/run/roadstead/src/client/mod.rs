//! Client verbs: ask the manager, print the answer.
//!
//! One module per family of verbs; [`login`] knows where a sign-in is kept, [`connect`] which fleet is
//! meant, [`exit`] what a program is told by the exit code, [`wait`] shows progress.
//!
//! Not here: requests themselves (`fleet-client`).

mod clusters;
pub mod exit;
pub mod login;
pub mod output;
mod people;
mod pools;
mod wait;

use std::path::Path;

use anyhow::{Context, Result, bail};
use base_ids::Slug;
use fleet_client::Client;

pub use clusters::{cluster, operation};
pub use people::{member, org, token};
pub use pools::node_pool;

use crate::cli::{Connection, OfOrg};
use crate::up::layout::Layout;
use exit::Mistake;

/// The organisation that `up` makes, for whoever names none and has signed in to none.
const DEMO: &str = "demo";

/// A fleet and how it is spoken to.
struct Fleet {
    client: Client,
    /// Of the sign-in, when it is to just one.
    organization: Option<Slug>,
}

impl Fleet {
    fn org(&self, of: &OfOrg) -> Result<Slug> {
        match of.org.clone().or_else(|| self.organization.clone()) {
            Some(org) => Ok(org),
            None => DEMO.parse().context("default organisation"),
        }
    }
}

/// What was said on the command line or in the environment decides; then the folder of `roadstead up` that
/// was named; then the stored sign-in; then `.roadstead` here.
fn connect(connection: &Connection) -> Result<Fleet> {
    let stored = if connection.data.is_none() { login::stored()? } else { None };
    // A sign-in is for the server it was made at: no other one is shown its secret.
    let stored =
        stored.filter(|login| connection.server.as_ref().is_none_or(|server| *server == login.server));
    if let Some(login) = stored {
        let token = match &connection.token_file {
            Some(file) => read(file, "API token", true)?,
            None => login.token,
        };
        let (ca, place) = match &connection.ca_file {
            Some(file) => (read_ca(file, true)?, file.display().to_string()),
            None => (login.ca_pem, "the sign-in that is kept".to_owned()),
        };
        let client = Client::new(&login.server, &ca, &token)?.with_ca_named(&place);
        return Ok(Fleet { client, organization: login.organization });
    }
    let data = connection.data.as_deref().unwrap_or(Path::new(".roadstead"));
    let layout = Layout::new(data);
    let token_file = connection.token_file.clone().unwrap_or_else(|| layout.admin_token());
    let ca_file = connection.ca_file.clone().unwrap_or_else(|| layout.fleet_ca());
    let server = match &connection.server {
        Some(server) => server.clone(),
        None => read(&layout.manager_url(), "manager's address", false)?.trim().to_owned(),
    };
    if !server.starts_with("https://") {
        bail!("the server is https://HOST:PORT, not {server:?}");
    }
    let ca = read_ca(&ca_file, connection.ca_file.is_some())?;
    let token = read(&token_file, "API token", connection.token_file.is_some())?;
    let client = Client::new(&server, &ca, &token)?.with_ca_named(&ca_file.display().to_string());
    Ok(Fleet { client, organization: None })
}

fn read_ca(path: &Path, named: bool) -> Result<String> {
    let pem = read(path, "CA certificate", named)?;
    fleet_client::check_ca(&pem).with_context(|| path.display().to_string())?;
    Ok(pem)
}

/// A file that somebody `named` has to be there; without the others one is not signed in.
fn read(path: &Path, what: &str, named: bool) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => {
            Err(Mistake::NotSignedIn(format!(
                "not signed in, and no {what} in {}; sign in with `roadstead login URL`, or name the folder of a \
                 running `roadstead up` with --data",
                path.display()
            ))
            .into())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read the {what} in {}", path.display())),
    }
}
