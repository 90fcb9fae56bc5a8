//! Waits for an operation and shows how far it is, on standard error.
//!
//! On a terminal one line that is written over; elsewhere a line whenever something is different, so that
//! a log reads well.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use base_ids::{OperationId, Slug};
use fleet_client::Client;
use fleet_model::Operation;

use super::output::{note, plain};

/// Until it ended well; an error otherwise.
pub(super) async fn finished(
    client: &Client,
    org: &Slug,
    id: OperationId,
    timeout: Duration,
) -> Result<Operation> {
    let mut shown = Shown::new(std::io::stderr().is_terminal());
    let outcome = client.finished(org, id, timeout, |operation| shown.show(operation)).await;
    shown.end();
    Ok(outcome?)
}

struct Shown {
    terminal: bool,
    last: String,
}

impl Shown {
    fn new(terminal: bool) -> Shown {
        Shown { terminal, last: String::new() }
    }

    fn show(&mut self, operation: &Operation) {
        let line = format!(
            "{} {}: {}% {}",
            operation.kind.as_str(),
            operation.target,
            operation.progress,
            plain(&operation.message)
        );
        if line == self.last {
            return;
        }
        if self.terminal {
            // To the line's start, the text, and away with what is left of the one before.
            let _ = write!(std::io::stderr(), "\r{line}\u{1b}[K");
        } else {
            note(&line);
        }
        self.last = line;
    }

    fn end(&self) {
        if self.terminal && !self.last.is_empty() {
            note("");
        }
    }
}
