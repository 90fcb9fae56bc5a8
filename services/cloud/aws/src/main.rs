//! `roadstead-cloud-aws --config FILE`: serves the provider until it is told to stop.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base_clock::SystemClock;
use base_net::pki::Issued;
use base_net::tasks::Tasks;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long calls under way get to end after the signal.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Makes machines (EC2) and load balancers (NLB) for the fleet's cells.
#[derive(Debug, Parser)]
#[command(name = "roadstead-cloud-aws", version)]
struct Arguments {
    /// JSON; see cloud_aws::Config
    #[arg(long)]
    config: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    base_net::tls::install_crypto_provider();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roadstead-cloud-aws: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let path = &arguments.config;
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: cloud_aws::Config = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not its configuration", path.display()))?;
    let _telemetry = base_telemetry::init(&base_telemetry::Options::from_env("roadstead-cloud-aws"))?;
    let identity = Issued { cert_pem: config.cert_pem.clone(), key_pem: config.key_pem.clone() };
    let (listen, ca_pem) = (config.listen, config.ca_pem.clone());
    let cloud = cloud_aws::Aws::connect(config, SystemClock::shared()).await?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    println!("ready on {}", listener.local_addr()?);
    let tasks = Tasks::new();
    cloud_interface::serve(listener, &identity, &ca_pem, std::sync::Arc::new(cloud), &tasks)?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tasks.stop(STOP_PATIENCE).await;
    Ok(())
}
