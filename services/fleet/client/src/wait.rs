//! Waiting for operations by asking again.

use std::time::{Duration, Instant};

use base_ids::{OperationId, Slug};
use fleet_model::{Operation, OperationState};

use crate::{Client, ClientError};

/// The first pauses are short, since most changes take well under a second; then it is people who wait.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// Waits until the operation ended well. `seen` is told of every state on the way. A manager that is
    /// away for a moment is waited for as well.
    ///
    /// [`ClientError::Ended`] when it failed or was cancelled, [`ClientError::StillRunning`] after `patience`.
    pub async fn finished(
        &self,
        org: &Slug,
        id: OperationId,
        patience: Duration,
        mut seen: impl FnMut(&Operation),
    ) -> Result<Operation, ClientError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut last: Option<Operation> = None;
        loop {
            match self.operation(org, id).await {
                Ok(operation) => {
                    seen(&operation);
                    match operation.state {
                        OperationState::Succeeded => return Ok(operation),
                        OperationState::Failed | OperationState::Cancelled => {
                            return Err(ClientError::Ended(operation));
                        }
                        OperationState::Running => last = Some(operation),
                    }
                }
                Err(error) if is_passing(&error) && begun.elapsed() < patience => {}
                Err(error) => return Err(error),
            }
            if begun.elapsed() >= patience
                && let Some(operation) = last
            {
                return Err(ClientError::StillRunning { operation, waited_ms: begun.elapsed().as_millis() });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn is_passing(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. }) || error.status().is_some_and(|status| status >= 500)
}
