//! What can be wrong with a patch or a body.

use api_machinery::{Cause, Reason, Status};

/// Why a patch or body can't be used. The variants are what a client may do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PatchError {
    /// Not what its content type says: 400.
    #[error("{0}")]
    Malformed(String),
    /// Fine as such, but doesn't fit the object: 422.
    #[error("{0}")]
    DoesNotApply(String),
    /// More work than one request may ask for: 413.
    #[error("{0}")]
    TooLarge(String),
    /// Somebody else owns these fields: 409.
    #[error("{message}")]
    Conflict { message: String, causes: Vec<Cause> },
}

impl PatchError {
    /// The error as a client is sent it.
    pub fn to_status(&self) -> Status {
        match self {
            PatchError::Malformed(message) => Status::bad_request(message.clone()),
            PatchError::DoesNotApply(message) => {
                let text = "the server rejected our request due to an error in our request";
                Status::failure(422, Reason::Invalid, text).with_cause(Cause {
                    reason: "UnexpectedServerResponse".to_owned(),
                    message: message.clone(),
                    field: String::new(),
                })
            }
            PatchError::TooLarge(message) => Status::too_large(message.clone()),
            PatchError::Conflict { message, causes } => {
                let mut status = Status::failure(409, Reason::Conflict, message.clone());
                for cause in causes {
                    status = status.with_cause(cause.clone());
                }
                status
            }
        }
    }
}
