//! Upstream's limits (`k8s.io/apiserver/pkg/apis/cel/config.go` and apiextensions' validation).

/// What one evaluation may cost: about a tenth of a second.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What all evaluations for one custom object, or one policy binding, may cost together.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// What all match conditions of one webhook or policy may cost for one object.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// What one rule of a schema may be estimated at.
pub const STATIC_LIMIT: u64 = 10_000_000;
/// What all rules of a CustomResourceDefinition's version may be estimated at together.
pub const STATIC_LIMIT_OF_SCHEMA: u64 = 100_000_000;
/// The longest text a messageExpression may come to.
pub const MAX_MESSAGE_BYTES: usize = 5 * 1024;
/// The largest request that sizes are estimated by.
pub const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;

/// How often data of at least `min_size` bytes can occur in one request.
pub fn max_cardinality(min_size: u64) -> u64 {
    MAX_REQUEST_BYTES / min_size.saturating_add(1)
}
