//! The Terraform provider `roadstead`, a process that Terraform starts and talks to over a private socket.
//!
//! `handshake` is how the two meet, `server` answers the calls, `plan` decides, `resources` and `data` do.
//! Start at `resource` for what a resource is, at `resources/cluster.rs` for one.
//!
//! Not here: anything a manager could do for every client; this is its REST API in Terraform's words.

mod data;
mod diagnostic;
mod handshake;
mod journal;
mod plan;
mod resource;
mod resources;
mod schema;
mod serve;
mod server;
mod settings;
mod value;

/// Generated from `proto/terraform/v6/provider.proto`.
#[allow(clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("tfplugin6");
}

/// Generated from `proto/terraform/v6/controller.proto`.
#[allow(clippy::all, clippy::pedantic)]
mod controller {
    tonic::include_proto!("plugin");
}

use std::process::ExitCode;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("--version") {
        println!("terraform-provider-roadstead {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    match serve::run(|name| std::env::var(name).ok()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                text += &format!(": {inner}");
                cause = inner.source();
            }
            eprintln!("terraform-provider-roadstead: {text}");
            ExitCode::FAILURE
        }
    }
}
