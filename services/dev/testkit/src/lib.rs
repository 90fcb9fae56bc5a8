//! What end-to-end tests and benches share: a real fleet from the real binary, real `kubectl` and
//! `terraform`, a second machine of namespaces, and a plain HTTPS client for what kubectl cannot do a
//! thousand times at once.
//!
//! Not here: mocks, or anything in-process; a test that needs those belongs beside the code it tests.

mod alone;
mod api;
mod fleet;
mod kubectl;
mod machine;
mod postgres;
mod process;
mod terraform;
mod tools;
mod webhook;

pub use alone::alone;
pub use api::{ApiClient, Kubeconfig};
pub use fleet::{Fleet, Options, copy_for_others, free_port, is_root};
pub use kubectl::{Kubectl, Ran};
pub use machine::Machine;
pub use postgres::Postgres;
pub use process::{bound, children_of, output_of, start, words_of};
pub use terraform::{PROVIDER_SOURCE, Terraform};
pub use tools::tool;
pub use webhook::WebhookServer;
