//! The client verbs: what people say to a fleet that runs somewhere.

use std::path::PathBuf;
use std::time::Duration;

use base_ids::{OperationId, Slug, TenantId};
use clap::{ArgAction, Args, Subcommand, ValueEnum};
use fleet_model::labels::{check_key, check_value};
use fleet_model::{ClusterRef, Email, MAX_POOL_SIZE, NodePoolRef, OperationState, Role, Taint};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
pub struct Shown {
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct OfOrg {
    /// The organisation; the one you signed in to by default, else `demo`
    #[arg(long, env = "ROADSTEAD_ORG")]
    pub org: Option<Slug>,
}

/// Waiting for what was begun.
#[derive(Debug, Args)]
pub struct Wait {
    /// Wait until it is done, which is the default; `--wait=false` returns when it was accepted
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set, value_name = "BOOL")]
    pub wait: bool,
    /// How long to wait: 90s, 10m, 1h
    #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct Login {
    /// The manager's address, https://HOST:PORT
    #[arg(value_name = "URL", value_parser = parse_server)]
    pub server: String,
    /// Who you are; asked for when absent
    #[arg(long)]
    pub email: Option<Email>,
    /// Read the password from standard input instead of asking for it
    #[arg(long)]
    pub password_stdin: bool,
    /// Use the API token in this file instead of a password
    #[arg(long, value_name = "FILE", conflicts_with_all = ["email", "password_stdin", "invitation_file"])]
    pub token_file: Option<PathBuf>,
    /// Take up the invitation in this file; the password is then your new one
    #[arg(long, value_name = "FILE", conflicts_with = "email")]
    pub invitation_file: Option<PathBuf>,
    /// With an invitation: what to call you
    #[arg(long, requires = "invitation_file", default_value = "")]
    pub name: String,
    /// The manager's CA certificate; the one that `roadstead up` left in --data by default
    #[arg(long, env = "ROADSTEAD_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Data directory of `roadstead up`
    #[arg(long, env = "ROADSTEAD_DATA", default_value = ".roadstead", value_name = "DIR")]
    pub data: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Create a cluster
    Create {
        name: Slug,
        /// Cells that hold it: 1 or 3
        #[arg(long, value_parser = parse_replicas)]
        replicas: Option<u8>,
        /// One of `roadstead cluster versions`
        #[arg(long, value_name = "VERSION")]
        kubernetes_version: Option<String>,
        /// The cloud provider of its load balancers and node pools; the fleet's first by default
        #[arg(long, value_name = "NAME")]
        provider: Option<String>,
        /// KEY=VALUE; may be repeated
        #[arg(long = "label", value_parser = parse_label, value_name = "KEY=VALUE")]
        labels: Vec<(String, String)>,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        wait: Wait,
        #[command(flatten)]
        shown: Shown,
    },
    /// List an organisation's clusters
    List {
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one cluster
    Get {
        /// Name or id
        cluster: ClusterRef,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Rename a cluster or change its labels; kubeconfigs keep working
    Update {
        /// Name or id
        cluster: ClusterRef,
        /// The new name
        #[arg(long)]
        name: Option<Slug>,
        #[command(flatten)]
        labels: LabelChange,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Delete a cluster and all its data
    Delete {
        /// Name or id
        cluster: ClusterRef,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        wait: Wait,
    },
    /// Print a kubeconfig of your own; it is refused once you are removed or demoted
    Kubeconfig {
        /// Name or id
        cluster: ClusterRef,
        /// How long its certificate works: 12h, 90m; 28 days if not said
        #[arg(long, value_parser = parse_duration, value_name = "TIME")]
        expires_in: Option<Duration>,
        #[command(flatten)]
        of: OfOrg,
    },
    /// Print the command that joins a machine
    JoinCommand {
        /// Name or id
        cluster: ClusterRef,
        /// How long the token in it works: 90s, 10m, 24h
        #[arg(long, value_parser = parse_duration, value_name = "TIME")]
        expires_in: Option<Duration>,
        #[command(flatten)]
        of: OfOrg,
    },
    /// List the tokens with which machines join
    JoinTokens {
        /// Name or id
        cluster: ClusterRef,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Delete a token with which machines join
    DeleteJoinToken {
        /// Name or id
        cluster: ClusterRef,
        /// The six characters before the dot
        id: String,
        #[command(flatten)]
        of: OfOrg,
    },
    /// List the Kubernetes versions that clusters can have
    Versions {
        #[command(flatten)]
        shown: Shown,
    },
    /// List the receipts of deleted clusters, or show one
    Receipts {
        /// Id of the deleted cluster
        id: Option<TenantId>,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Args)]
pub struct LabelChange {
    /// KEY=VALUE to set; may be repeated
    #[arg(long = "label", value_parser = parse_label, value_name = "KEY=VALUE")]
    pub set: Vec<(String, String)>,
    /// KEY to remove; may be repeated
    #[arg(long = "remove-label", value_name = "KEY")]
    pub remove: Vec<String>,
}

#[derive(Debug, Args)]
pub struct OfCluster {
    /// Name or id of the cluster
    #[arg(long)]
    pub cluster: ClusterRef,
    #[command(flatten)]
    pub of: OfOrg,
}

#[derive(Debug, Subcommand)]
pub enum NodePool {
    /// Create a pool of machines
    Create {
        name: Slug,
        /// How many machines
        #[arg(long, value_parser = parse_size, allow_negative_numbers = true)]
        size: u32,
        /// One of `roadstead nodepool machine-types`
        #[arg(long)]
        machine_type: Option<String>,
        /// The cloud provider; the cluster's by default
        #[arg(long, value_name = "NAME")]
        provider: Option<String>,
        /// KEY=VALUE for its nodes; may be repeated
        #[arg(long = "label", value_parser = parse_label, value_name = "KEY=VALUE")]
        labels: Vec<(String, String)>,
        /// KEY=VALUE:EFFECT for its nodes; may be repeated
        #[arg(long = "taint", value_name = "KEY=VALUE:EFFECT")]
        taints: Vec<Taint>,
        #[command(flatten)]
        at: OfCluster,
        #[command(flatten)]
        wait: Wait,
        #[command(flatten)]
        shown: Shown,
    },
    /// List a cluster's pools
    List {
        #[command(flatten)]
        at: OfCluster,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one pool with its machines
    Get {
        /// Name or id
        pool: NodePoolRef,
        #[command(flatten)]
        at: OfCluster,
        #[command(flatten)]
        shown: Shown,
    },
    /// Rename a pool or change its labels
    Update {
        /// Name or id
        pool: NodePoolRef,
        /// The new name
        #[arg(long)]
        name: Option<Slug>,
        #[command(flatten)]
        labels: LabelChange,
        #[command(flatten)]
        at: OfCluster,
        #[command(flatten)]
        shown: Shown,
    },
    /// Give a pool more or fewer machines
    Resize {
        /// Name or id
        pool: NodePoolRef,
        /// How many machines
        #[arg(long, value_parser = parse_size, allow_negative_numbers = true)]
        size: u32,
        #[command(flatten)]
        at: OfCluster,
        #[command(flatten)]
        wait: Wait,
        #[command(flatten)]
        shown: Shown,
    },
    /// Delete a pool and its machines
    Delete {
        /// Name or id
        pool: NodePoolRef,
        #[command(flatten)]
        at: OfCluster,
        #[command(flatten)]
        wait: Wait,
    },
    /// List the machine types that providers offer
    MachineTypes {
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub enum Operation {
    /// List an organisation's operations, newest first
    List {
        /// running, succeeded, failed or cancelled
        #[arg(long, value_parser = parse_state)]
        state: Option<OperationState>,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one operation
    Get {
        id: OperationId,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Wait until an operation has ended
    Wait {
        id: OperationId,
        /// How long to wait: 90s, 10m, 1h
        #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
        timeout: Duration,
        #[command(flatten)]
        of: OfOrg,
    },
    /// Take an operation back: what it makes is deleted, a resize goes back
    Cancel {
        id: OperationId,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
}

#[derive(Debug, Subcommand)]
pub enum Org {
    /// Create an organisation
    Create {
        name: Slug,
        #[command(flatten)]
        shown: Shown,
    },
    /// List organisations
    List {
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one organisation
    Get {
        name: Slug,
        #[command(flatten)]
        shown: Shown,
    },
    /// Delete an organisation that has no clusters
    Delete { name: Slug },
}

#[derive(Debug, Subcommand)]
pub enum Member {
    /// Add a person; an invitation is printed when they have no password yet
    Create {
        email: Email,
        #[arg(long, value_parser = parse_role)]
        role: Role,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// List an organisation's members
    List {
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Give a member another role
    Update {
        email: Email,
        #[arg(long, value_parser = parse_role)]
        role: Role,
        #[command(flatten)]
        of: OfOrg,
        #[command(flatten)]
        shown: Shown,
    },
    /// Remove a member
    Delete {
        email: Email,
        #[command(flatten)]
        of: OfOrg,
    },
}

#[derive(Debug, Subcommand)]
pub enum Token {
    /// Create an API token; its secret is printed once
    Create {
        /// What it is for
        description: String,
        #[arg(long, value_parser = parse_role)]
        role: Role,
        /// The organisation; none for the provider's own tokens
        #[arg(long)]
        org: Option<Slug>,
        /// Name or id of the one cluster that it is limited to
        #[arg(long, requires = "org")]
        cluster: Option<ClusterRef>,
        /// Seconds until it expires; never by default
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        expires_in_seconds: Option<u32>,
        /// How to print: the secret alone by default
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// List API tokens; expired ones are shown for 30 days
    List {
        /// Only this organisation's
        #[arg(long)]
        org: Option<Slug>,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one API token
    Get {
        id: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Delete an API token
    Delete { id: String },
}

fn parse_role(text: &str) -> Result<Role, String> {
    Role::parse(text).ok_or_else(|| "one of provider, admin, developer, viewer".to_owned())
}

fn parse_state(text: &str) -> Result<OperationState, String> {
    OperationState::parse(text).ok_or_else(|| "one of running, succeeded, failed, cancelled".to_owned())
}

fn parse_replicas(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("a cluster has 1 or 3".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<u32, String> {
    let size = text.parse().ok().filter(|size| *size <= MAX_POOL_SIZE);
    size.ok_or_else(|| format!("a pool has 0 to {MAX_POOL_SIZE} machines"))
}

pub(super) fn parse_server(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").unwrap_or_default().trim_end_matches('/');
    if rest.is_empty()
        || rest.contains('/')
        || rest.chars().any(|one| one.is_whitespace() || one.is_control())
    {
        return Err("the address is https://HOST:PORT".to_owned());
    }
    Ok(format!("https://{rest}"))
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    check_key(key)?;
    check_value(value)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// `90s`, `10m`, `1h`, `7d`; what has no unit is seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; one is 90s, 10m or 1h");
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 1,
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, wanted) in [
            ("90s", Some(90)),
            ("10m", Some(600)),
            ("1h", Some(3600)),
            ("7d", Some(604_800)),
            ("5", Some(5)),
            ("", None),
            ("m", None),
            ("-1s", None),
            ("1.5h", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(parse_duration(text).ok().map(|time| time.as_secs()), wanted, "{text:?}");
        }
    }

    #[test]
    fn a_server_is_an_address_and_no_more() {
        for (text, wanted) in [
            ("https://127.0.0.1:8443", Some("https://127.0.0.1:8443")),
            ("https://fleet.example.com/", Some("https://fleet.example.com")),
            ("http://127.0.0.1:8443", None),
            ("https://", None),
            ("https://a/b", None),
            ("https://a b", None),
            ("127.0.0.1:8443", None),
        ] {
            assert_eq!(parse_server(text).ok().as_deref(), wanted, "{text:?}");
        }
    }
}
