//! What a program is told by the exit code.
//!
//! 0 done · 1 failed · 2 wrongly asked · 3 not found · 4 not allowed or not signed in · 5 in conflict with
//! what is there · 6 not reached, or not done in time · 141 whoever read the output left. Also in `roadstead --help`.

use fleet_client::ClientError;

use super::output::OutputError;

pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
pub const NOT_FOUND: u8 = 3;
pub const NOT_ALLOWED: u8 = 4;
pub const CONFLICT: u8 = 5;
pub const UNAVAILABLE: u8 = 6;
/// What a shell shows of a program that SIGPIPE ended.
pub const READER_LEFT: u8 = 128 + 13;

/// Shown below `--help`.
pub const HELP: &str = "Exit codes: 0 done, 1 failed, 2 wrongly asked, 3 not found, 4 not allowed or not \
                        signed in, 5 in conflict with what is there, 6 not reached or not done in time";

/// Found out here rather than by the manager.
#[derive(Debug, thiserror::Error)]
pub enum Mistake {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    NotSignedIn(String),
}

pub fn code(error: &anyhow::Error) -> u8 {
    match error.chain().find_map(|cause| cause.downcast_ref::<Mistake>()) {
        Some(Mistake::Usage(_)) => return USAGE,
        Some(Mistake::NotFound(_)) => return NOT_FOUND,
        Some(Mistake::NotSignedIn(_)) => return NOT_ALLOWED,
        None => {}
    }
    if is_quiet(error) {
        return READER_LEFT;
    }
    error.chain().find_map(|cause| cause.downcast_ref::<ClientError>()).map_or(FAILED, of)
}

/// Nobody is there to be told.
pub fn is_quiet(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<OutputError>(), Some(OutputError::Closed))
}

/// What to do about it, where the manager's own words do not say.
pub fn advice(error: &anyhow::Error) -> Option<&'static str> {
    // With a context somebody has said it already.
    let error = error.chain().next()?.downcast_ref::<ClientError>()?;
    match error.status() {
        Some(401) => Some("the sign-in is wrong or over; sign in with `roadstead login URL`"),
        _ => None,
    }
}

fn of(error: &ClientError) -> u8 {
    match error {
        ClientError::Problem(problem) => match problem.status {
            400 | 413 | 415 | 422 => USAGE,
            401 | 403 => NOT_ALLOWED,
            404 => NOT_FOUND,
            409 | 412 => CONFLICT,
            429 | 500.. => UNAVAILABLE,
            _ => FAILED,
        },
        ClientError::Unreachable { .. }
        | ClientError::Undecided { .. }
        | ClientError::StillRunning { .. } => UNAVAILABLE,
        ClientError::Key { .. } => USAGE,
        ClientError::Answer { .. }
        | ClientError::Ca(_)
        | ClientError::NoCertificate
        | ClientError::Untrusted { .. }
        | ClientError::Ended(_) => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_model::Problem;

    #[test]
    fn programs_can_tell_apart_what_they_can_do_something_about() {
        for (status, wanted) in [
            (400, USAGE),
            (401, NOT_ALLOWED),
            (403, NOT_ALLOWED),
            (404, NOT_FOUND),
            (409, CONFLICT),
            (422, USAGE),
            (429, UNAVAILABLE),
            (503, UNAVAILABLE),
            (418, FAILED),
        ] {
            let problem = Problem {
                kind: "about:blank".to_owned(),
                title: "x".to_owned(),
                status,
                detail: "y".to_owned(),
                errors: Vec::new(),
            };
            let error = anyhow::Error::from(ClientError::Problem(problem)).context("while asking");
            assert_eq!(code(&error), wanted, "{status}");
        }
        assert_eq!(code(&anyhow::anyhow!("no file")), FAILED);
        assert_eq!(code(&OutputError::Closed.into()), 141);
        assert_eq!(code(&OutputError::Io(std::io::Error::other("full")).into()), FAILED);
        assert_eq!(code(&Mistake::NotSignedIn("no address".to_owned()).into()), NOT_ALLOWED);
        assert_eq!(code(&Mistake::Usage("nothing to change".to_owned()).into()), USAGE);
    }
}
