//! `/openapi/v2` and `/openapi/v3`, from `api-schema`.

use api_machinery::Status;

use crate::body::Response;
use crate::pipeline::Call;

/// `parts` follow `/openapi/`. `None` for what is no such document.
pub fn answer(_call: &Call, _parts: &[&str]) -> Option<Result<Response, Status>> {
    None
}
