//! Client verbs: ask the manager, print the answer.
//!
//! One module per family of verbs; [`login`] knows where a sign-in is kept, [`connect`] which fleet is
//! meant, [`exit`] what a program is told by the exit code, [`wait`] shows progress.
//!
//! Not here: requests themselves (`fleet-client`).

mod clusters;
pub mod exit;
pub mod login;
mod output;
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
            Some(file) => read(file, "API token")?,
            None => login.token,
        };
        let ca = match &connection.ca_file {
            Some(file) => read(file, "CA certificate")?,
            None => login.ca_pem,
        };
        let client = Client::new(&login.server, &ca, &token)?;
        return Ok(Fleet { client, organization: login.organization });
    }
    let data = connection.data.as_deref().unwrap_or(Path::new(".roadstead"));
    let layout = Layout::new(data);
    let token_file = connection.token_file.clone().unwrap_or_else(|| layout.admin_token());
    let ca_file = connection.ca_file.clone().unwrap_or_else(|| layout.fleet_ca());
    let server = match &connection.server {
        Some(server) => server.clone(),
        None => read(&layout.manager_url(), "manager's address")?.trim().to_owned(),
    };
    if !server.starts_with("https://") {
        bail!("the server is https://HOST:PORT, not {server:?}");
    }
    let client = Client::new(&server, &read(&ca_file, "CA certificate")?, &read(&token_file, "API token")?)?;
    Ok(Fleet { client, organization: None })
}

fn read(path: &Path, what: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| {
        format!(
            "no {what} in {}; sign in with `roadstead login URL`, or name the folder of a running `roadstead up` with --data",
            path.display()
        )
    })
}
