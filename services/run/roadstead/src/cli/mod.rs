//! What can be said on the command line.
//!
//! Here: running things. What people say to a fleet is in [`verbs`].

mod verbs;

pub use verbs::{
    Cluster, LabelChange, Login, Member, NodePool, OfOrg, Operation, Org, Output, Shown, Token, Wait,
};

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use fleet_cell::ProviderConfig;
use fleet_manager::Place;

#[derive(Debug, Parser)]
#[command(
    name = "roadstead",
    version,
    about = "Hosted Kubernetes: many clusters on few machines",
    max_term_width = 100,
    after_help = crate::client::exit::HELP
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// How client verbs reach the manager. Without any of these: where you signed in with `roadstead login`, else
/// the fleet that `roadstead up` runs in `.roadstead` here.
#[derive(Debug, Args)]
pub struct Connection {
    /// The manager's address, https://HOST:PORT
    #[arg(
        long,
        global = true,
        env = "ROADSTEAD_SERVER",
        value_parser = verbs::parse_server,
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub server: Option<String>,
    /// File with an API token
    #[arg(
        long,
        global = true,
        env = "ROADSTEAD_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub token_file: Option<PathBuf>,
    /// File with the manager's CA certificate
    #[arg(long, global = true, env = "ROADSTEAD_CA_FILE", value_name = "FILE", help_heading = "Connection")]
    pub ca_file: Option<PathBuf>,
    /// Data directory of `roadstead up`
    #[arg(long, global = true, env = "ROADSTEAD_DATA", value_name = "DIR", help_heading = "Connection")]
    pub data: Option<PathBuf>,
}

/// A family of client verbs; the connection's options go before or after the verb.
#[derive(Debug, Args)]
pub struct Client<V: Subcommand> {
    #[command(flatten)]
    pub connection: Connection,
    #[command(subcommand)]
    pub verb: V,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole fleet on this machine, in the foreground
    Up(Up),
    /// Run one cell
    #[command(hide = true)]
    Cell {
        #[arg(long)]
        config: PathBuf,
        /// A cloud provider beside those of the configuration; may be repeated
        #[arg(long = "cloud", value_name = "NAME=IP:PORT")]
        clouds: Vec<ProviderConfig>,
    },
    /// Run a gateway
    #[command(hide = true)]
    Gateway {
        #[arg(long)]
        config: PathBuf,
    },
    /// Run the cloud provider of this machine
    #[command(hide = true)]
    CloudLocal {
        #[arg(long)]
        config: PathBuf,
    },
    /// Join a machine to a cluster, or run it
    #[command(subcommand)]
    Node(Node),
    /// Sign in to a fleet
    Login(Login),
    /// End the sign-in
    Logout,
    /// Say who you are and what you may
    Whoami {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Create, list, change and delete clusters
    Cluster(Client<Cluster>),
    /// Create, list, resize and delete pools of machines
    #[command(name = "nodepool")]
    NodePool(Client<NodePool>),
    /// List, wait for and cancel operations
    Operation(Client<Operation>),
    /// Create, list and delete organisations
    Org(Client<Org>),
    /// Add, list and remove members of an organisation
    Member(Client<Member>),
    /// Create, list and delete API tokens
    Token(Client<Token>),
    /// Print a completion script for your shell
    Completion { shell: clap_complete::Shell },
}

#[derive(Debug, Args, Clone)]
pub struct Up {
    /// Cells to run, each a process of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub cells: u8,
    /// Worker nodes of the demo cluster; they need root
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=16))]
    pub nodes: u8,
    /// Neither the organisation `demo` nor its cluster
    #[arg(long)]
    pub no_demo: bool,
    /// Where clients of clusters connect
    #[arg(long, default_value = "127.0.0.1:6443", value_name = "IP:PORT")]
    pub gateway: SocketAddr,
    /// Where the manager's API is served
    #[arg(long, default_value = "127.0.0.1:8443", value_name = "IP:PORT")]
    pub manager: SocketAddr,
    /// Where everything is kept
    #[arg(long, env = "ROADSTEAD_DATA", default_value = ".roadstead", value_name = "DIR")]
    pub data: PathBuf,
    /// The manager's database, sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/NAME; without it, a SQLite
    /// file in --data. Other users of this machine see arguments: a password is better in the environment
    #[arg(long, env = "ROADSTEAD_DATABASE", value_name = "URL", hide_env_values = true)]
    pub database: Option<Place>,
    /// Start on this database although it is not the one that --data was used with
    #[arg(long)]
    pub adopt_database: bool,
    /// What clusters' webhooks and the like may be reached at although it is no public address: a network
    /// such as 192.0.2.0/24, or IP:PORT. May be repeated
    #[arg(long, env = "ROADSTEAD_EGRESS_ALLOW", value_delimiter = ',', value_name = "NETWORK")]
    pub egress_allow: Vec<String>,
    /// A further cloud provider, which somebody else runs; may be repeated. What it needs to be let in is
    /// written to --data, clouds/NAME/identity.json
    #[arg(long = "cloud", value_name = "NAME=IP:PORT")]
    pub clouds: Vec<ProviderConfig>,
}

#[derive(Debug, Subcommand)]
pub enum Node {
    /// Run a node from a configuration file
    #[command(hide = true)]
    Run {
        #[arg(long)]
        config: PathBuf,
    },
    /// Join this machine to a cluster and run it as a node, in the foreground
    Join(Join),
}

#[derive(Debug, Args)]
pub struct Join {
    /// The gateway, https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// The cluster's TLS server name
    #[arg(long)]
    pub tls_server_name: Option<String>,
    /// Bootstrap token
    #[arg(long)]
    pub token: String,
    /// sha256:… of the cluster CA's public key
    #[arg(long, required_unless_present = "ca_file")]
    pub discovery_token_ca_cert_hash: Option<String>,
    /// The cluster's CA certificate, instead of its hash
    #[arg(long)]
    pub ca_file: Option<PathBuf>,
    /// The node's name; the machine's host name by default
    #[arg(long)]
    pub name: Option<String>,
    /// Where the node keeps its identity and state
    #[arg(long, default_value = "/var/lib/roadstead")]
    pub data: PathBuf,
}

/// A script that completes these verbs. In memory first: clap panics where a write fails.
pub fn completion(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "roadstead", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_the_readme_says_parses() {
        for line in [
            "roadstead up",
            "roadstead up --data x --cells 3 --nodes 2 --no-demo",
            "roadstead up --cloud aws=127.0.0.1:7443 --cloud eu=[::1]:7443",
            "roadstead cluster create acme --org demo",
            "roadstead cluster create acme --provider aws",
            "roadstead nodepool create workers --cluster demo --size 2 --provider aws",
            "roadstead cluster kubeconfig acme",
            "roadstead cluster list",
            "roadstead cluster delete acme",
            "roadstead org list -o json",
            "roadstead token create ci --role admin --org demo",
            "roadstead login https://127.0.0.1:8443 --email ann@example.com",
            "roadstead login https://127.0.0.1:8443 --token-file x --ca-file y",
            "roadstead whoami -o json",
            "roadstead cluster create acme --replicas 3 --label team=a --wait=false",
            "roadstead cluster create acme --wait --timeout 90s",
            "roadstead cluster update acme --name other --label team=a --remove-label old",
            "roadstead nodepool create workers --cluster demo --size 2 --taint gpu=1:NoSchedule",
            "roadstead nodepool resize workers --cluster demo --size 0",
            "roadstead nodepool delete workers --cluster demo --wait=false",
            "roadstead operation list --state running",
            "roadstead member create ann@example.com --role developer --org demo",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for line in [
            "roadstead up --cells 0",
            "roadstead up --cloud aws",
            "roadstead up --cloud aws=cloud.example:7443",
            "roadstead cluster create ../x",
            "roadstead up --nodes -1",
            "roadstead cluster create acme --replicas 2",
            "roadstead cluster get ..",
            "roadstead nodepool create workers --cluster demo --size -1",
            "roadstead nodepool create workers --cluster demo --size=-1",
            "roadstead nodepool create workers --cluster demo --size 1001",
            "roadstead nodepool create workers --size 1",
            "roadstead nodepool create w --cluster demo --size 1 --label =x",
            "roadstead nodepool create w --cluster demo --size 1 --taint gpu",
            "roadstead login http://127.0.0.1:8443",
            "roadstead login https://127.0.0.1:8443 --email nobody",
            "roadstead login https://127.0.0.1:8443 --email ann@example.com --token-file x",
            "roadstead member create ann --role developer",
            "roadstead member create ann@example.com --role emperor",
            "roadstead operation get 7",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
