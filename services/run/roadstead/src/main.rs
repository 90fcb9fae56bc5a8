//! The one binary: argument parsing and wiring, nothing else.

// They panic when nobody reads; `client::output` has what does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod client;
mod prompt;
mod service;
mod up;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::client::output::note;

/// A cell keeps the objects of thousands of clusters for months: jemalloc holds them in fewer pages than the
/// system's allocator, and gives back what a burst took. Its settings are in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    base_net::tls::install_crypto_provider();
    // A panic in one request must not take a thread of the runtime's pool with it silently; tokio catches
    // it per task, and the default hook has written where it happened.
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            note(&format!("roadstead: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if client::exit::is_quiet(&error) => ExitCode::from(client::exit::READER_LEFT),
        Err(error) => {
            // The whole chain on one line: what failed, and why, down to the bottom.
            let advice = client::exit::advice(&error).map(|text| format!("; {text}")).unwrap_or_default();
            note(&format!("roadstead: {error:#}{advice}"));
            ExitCode::from(client::exit::code(&error))
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Up(options) => up::run(options).await,
        Command::Cell { config, clouds } => service::cell(&config, clouds).await,
        Command::Gateway { config } => service::gateway(&config).await,
        Command::CloudLocal { config } => service::cloud_local(&config).await,
        Command::Node(command) => service::node(command).await,
        Command::Login(asked) => client::login::login(asked).await,
        Command::Logout => client::login::logout().await,
        Command::Whoami { connection, shown } => client::login::whoami(&connection, &shown).await,
        Command::NodePool(asked) => client::node_pool(&asked.connection, asked.verb).await,
        Command::Operation(asked) => client::operation(&asked.connection, asked.verb).await,
        Command::Member(asked) => client::member(&asked.connection, asked.verb).await,
        Command::Cluster(asked) => client::cluster(&asked.connection, asked.verb).await,
        Command::Org(asked) => client::org(&asked.connection, asked.verb).await,
        Command::Token(asked) => client::token(&asked.connection, asked.verb).await,
        Command::Completion { shell } => Ok(client::output::raw(&cli::completion(shell))?),
    }
}
