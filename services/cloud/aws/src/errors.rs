//! From the SDK's errors to what a caller does next.

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use cloud_interface::CloudError;

pub(crate) trait Explain<T> {
    /// The answer, or what to do about it; `what` says what was asked for.
    fn explain(self, what: &str) -> Result<T, CloudError>;
}

impl<T, E, R> Explain<T> for Result<T, SdkError<E, R>>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug + 'static,
{
    fn explain(self, what: &str) -> Result<T, CloudError> {
        self.map_err(|error| {
            // Without an answer there is no code; the reason is at the bottom of the chain.
            let message = match error.message() {
                Some(message) => message.to_owned(),
                None => deepest(&error),
            };
            classify(error.code(), &format!("{what}: {message}"))
        })
    }
}

/// The API's error code, when there was an answer with one.
pub(crate) fn code<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> &str {
    error.code().unwrap_or_default()
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html> and
/// <https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/CommonErrors.html>.
fn classify(code: Option<&str>, message: &str) -> CloudError {
    let Some(code) = code else { return CloudError::Unavailable(message.to_owned()) };
    let message = format!("{message} ({code})");
    match code {
        "AuthFailure"
        | "UnauthorizedOperation"
        | "AccessDenied"
        | "AccessDeniedException"
        | "Blocked"
        | "OptInRequired"
        | "PendingVerification"
        | "InvalidClientTokenId"
        | "SignatureDoesNotMatch"
        | "UnrecognizedClientException"
        | "ExpiredToken"
        | "ExpiredTokenException"
        | "RequestExpired"
        | "OperationNotPermitted"
        | "MissingAuthenticationToken" => CloudError::Denied(message),
        "IdempotentParameterMismatch"
        | "IdempotentInstanceTerminated"
        | "DuplicateLoadBalancerName"
        | "DuplicateTargetGroupName" => CloudError::TokenUsed(message),
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientFreeAddressesInSubnet"
        | "InsufficientReservedInstanceCapacity"
        | "Unsupported" => CloudError::Exhausted(message),
        code if code.ends_with("LimitExceeded") && code != "RequestLimitExceeded" => {
            CloudError::Exhausted(message)
        }
        code if code.starts_with("TooMany") && code != "TooManyRequestsException" => {
            CloudError::Exhausted(message)
        }
        // Somebody renamed or removed what the configuration names. Once put right, the same request works.
        "InvalidSubnetID.NotFound"
        | "InvalidGroup.NotFound"
        | "InvalidAMIID.NotFound"
        | "InvalidAMIID.Unavailable"
        | "InvalidSubnet"
        | "SubnetNotFound" => CloudError::Unavailable(message),
        // The list has no common form; what begins so will not get better by asking again.
        code if code.starts_with("Invalid") || code.starts_with("Malformed") || code == "ValidationError" => {
            CloudError::Invalid(message)
        }
        "MissingParameter" | "UnknownParameter" | "UnsupportedOperation" => CloudError::Invalid(message),
        // Throttling, 5xx, dependencies that are still there, and whatever AWS adds.
        _ => CloudError::Unavailable(message),
    }
}

fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut lines = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let line = error.to_string();
        if lines.last() != Some(&line) {
            lines.push(line);
        }
        next = error.source();
    }
    lines.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_what_to_do() {
        for (code, wanted) in [
            (None, "unavailable"),
            (Some("RequestLimitExceeded"), "unavailable"),
            (Some("Throttling"), "unavailable"),
            (Some("TooManyRequestsException"), "unavailable"),
            (Some("InternalError"), "unavailable"),
            (Some("DependencyViolation"), "unavailable"),
            (Some("InvalidAMIID.NotFound"), "unavailable"),
            (Some("SomethingNew"), "unavailable"),
            (Some("InsufficientInstanceCapacity"), "exhausted"),
            (Some("InstanceLimitExceeded"), "exhausted"),
            (Some("VcpuLimitExceeded"), "exhausted"),
            (Some("TooManyLoadBalancers"), "exhausted"),
            (Some("UnauthorizedOperation"), "denied"),
            (Some("AuthFailure"), "denied"),
            (Some("InvalidParameterValue"), "invalid"),
            (Some("InvalidConfigurationRequest"), "invalid"),
            (Some("IdempotentParameterMismatch"), "used"),
        ] {
            let got = match classify(code, "m") {
                CloudError::Unavailable(_) => "unavailable",
                CloudError::Exhausted(_) => "exhausted",
                CloudError::Denied(_) => "denied",
                CloudError::Invalid(_) => "invalid",
                CloudError::TokenUsed(_) => "used",
                CloudError::Unsupported(_) => "unsupported",
            };
            assert_eq!(got, wanted, "{code:?}");
        }
    }
}
