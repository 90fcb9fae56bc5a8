//! Why a provider did not do it. A variant is what the caller does next; see the head of `cloud.proto`.

use tonic::{Code, Status};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// Never works; whoever asked must ask for something else.
    #[error("the provider refuses this: {0}")]
    Invalid(String),
    /// The client token belongs to something else already.
    #[error("the client token was used before: {0}")]
    TokenUsed(String),
    /// A quota or a pool is used up: try again slowly.
    #[error("used up: {0}")]
    Exhausted(String),
    /// The cloud does not accept the provider's own credentials; its operator has to act.
    #[error("the cloud refuses the provider's credentials: {0}")]
    Denied(String),
    /// The provider has no such thing.
    #[error("the provider cannot do this: {0}")]
    Unsupported(String),
    /// Try again; it may have happened.
    #[error("the provider is not available: {0}")]
    Unavailable(String),
}

impl CloudError {
    /// Asking again for the same can succeed.
    pub fn may_pass(&self) -> bool {
        match self {
            CloudError::Exhausted(_) | CloudError::Denied(_) | CloudError::Unavailable(_) => true,
            CloudError::Invalid(_) | CloudError::TokenUsed(_) | CloudError::Unsupported(_) => false,
        }
    }
    /// Nothing was made by the call that ended so. After [`CloudError::Unavailable`], nobody knows.
    pub fn is_certain(&self) -> bool {
        !matches!(self, CloudError::Unavailable(_))
    }
}

impl From<CloudError> for Status {
    fn from(error: CloudError) -> Status {
        match error {
            CloudError::Invalid(message) => Status::invalid_argument(message),
            CloudError::TokenUsed(message) => Status::already_exists(message),
            CloudError::Exhausted(message) => Status::resource_exhausted(message),
            CloudError::Denied(message) => Status::permission_denied(message),
            CloudError::Unsupported(message) => Status::unimplemented(message),
            CloudError::Unavailable(message) => Status::unavailable(message),
        }
    }
}

impl From<Status> for CloudError {
    fn from(status: Status) -> CloudError {
        // tonic's own words for a connection that failed ("transport error") leave the cause in `source`.
        let causes = std::iter::successors(std::error::Error::source(&status), |error| error.source());
        let mut message = status.message().to_owned();
        for cause in causes {
            let cause = cause.to_string();
            if !message.contains(&cause) {
                message = format!("{message}: {cause}");
            }
        }
        match status.code() {
            Code::InvalidArgument => CloudError::Invalid(message),
            Code::AlreadyExists => CloudError::TokenUsed(message),
            // gRPC itself answers so when a message is too large, which also never passes by waiting less.
            Code::ResourceExhausted => CloudError::Exhausted(message),
            Code::PermissionDenied => CloudError::Denied(message),
            Code::Unimplemented => CloudError::Unsupported(message),
            _ => CloudError::Unavailable(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_same_on_both_sides_of_the_wire() {
        let text = || "why".to_owned();
        for error in [
            CloudError::Invalid(text()),
            CloudError::TokenUsed(text()),
            CloudError::Exhausted(text()),
            CloudError::Denied(text()),
            CloudError::Unsupported(text()),
            CloudError::Unavailable(text()),
        ] {
            assert_eq!(CloudError::from(Status::from(error.clone())), error);
        }
        for status in [Status::internal("why"), Status::deadline_exceeded("why"), Status::unknown("why")] {
            assert_eq!(CloudError::from(status), CloudError::Unavailable(text()));
        }
    }
}
