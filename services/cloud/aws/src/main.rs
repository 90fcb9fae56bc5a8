//! `roadstead-cloud-aws --config FILE`: serves the provider until it is told to stop.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base_clock::SystemClock;
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
    /// JSON; the README has an example, cloud_aws::Config says what each field is
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
    let (config, identity) = cloud_aws::Config::read(&arguments.config)?;
    let _telemetry = base_telemetry::init(&base_telemetry::Options::from_env("roadstead-cloud-aws"))?;
    let listen = config.listen.unwrap_or(identity.address);
    // First the port: a provider that runs already is found out before the cloud is asked anything.
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let region = config.region.clone();
    let cloud = cloud_aws::Aws::connect(config, SystemClock::shared()).await?;
    println!("provider {} ready on {} for {region}", identity.name, listener.local_addr()?);
    let tasks = Tasks::new();
    cloud_interface::serve(
        listener,
        &identity.issued(),
        &identity.ca_pem,
        std::sync::Arc::new(cloud),
        &tasks,
    )?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tasks.stop(STOP_PATIENCE).await;
    Ok(())
}
