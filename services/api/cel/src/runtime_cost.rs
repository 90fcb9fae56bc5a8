//! What calls cost when they run.
//!
//! Sources: cel-go's `interpreter/runtimecost.go` and, first, `k8s.io/apiserver/pkg/cel/library/cost.go`;
//! for lists and sets `ext/lists.go` and `ext/sets.go`. Kubernetes goes by the function's name, cel-go by the
//! overload, which is unknown where types are dynamic: a call then costs one.

use crate::eval::STEPS_PER_UNIT;
use crate::plan::Call;
use crate::stack::deep;
use crate::value::{Opaque, Value};

pub(crate) const LIST: u64 = 10;
pub(crate) const MAP: u64 = 30;
pub(crate) const STRUCT: u64 = 40;
pub(crate) const STRING_FACTOR: f64 = 0.1;
pub(crate) const REGEX_FACTOR: f64 = 0.25;
/// Allows for two checks in an expression, as upstream.
pub(crate) const AUTHORIZE: u64 = 350_000;

#[derive(Debug, Clone, Copy)]
pub(crate) enum CallCost {
    One,
    Authorize,
    Selector,
    /// All of the data in the first argument.
    Traverse,
    /// Reading the first argument so many times.
    Read(u8),
    /// Writing the result.
    Written,
    Regex,
    ContainsIp {
        parses: bool,
    },
    ContainsCidr {
        parses: bool,
    },
    Validate,
    /// The size of the second argument.
    SizeOfSecond,
    Shorter,
    Both,
    Product,
    /// A list as long as the result.
    Slice,
    Range,
    Reverse,
    Flatten,
    SelfCompare {
        arg: usize,
    },
    Sets {
        times: u8,
    },
}

impl CallCost {
    pub fn of(function: &str, overload: Option<&str>) -> CallCost {
        let overload = overload.unwrap_or("");
        match overload {
            "list_slice" => return CallCost::Slice,
            "list_flatten" | "list_flatten_int" => return CallCost::Flatten,
            "lists_range" => return CallCost::Range,
            "list_reverse" => return CallCost::Reverse,
            "list_distinct" => return CallCost::SelfCompare { arg: 0 },
            "list_sets_contains_list" | "list_sets_intersects_list" => return CallCost::Sets { times: 1 },
            "list_sets_equivalent_list" => return CallCost::Sets { times: 2 },
            _ if overload.ends_with("_sort") => return CallCost::SelfCompare { arg: 0 },
            _ if overload.ends_with("_sortByAssociatedKeys") => return CallCost::SelfCompare { arg: 1 },
            _ => {}
        }
        match function {
            "check" => return CallCost::Authorize,
            "fieldSelector" | "labelSelector" => return CallCost::Selector,
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => return CallCost::Traverse,
            "url"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver" => return CallCost::Read(1),
            "ip" if overload != "cidr_ip" => return CallCost::Read(1),
            "replace" | "split" | "ip.isCanonical" => return CallCost::Read(2),
            "join" => return CallCost::Written,
            "find" | "findAll" => return CallCost::Regex,
            "containsIP" => return CallCost::ContainsIp { parses: overload == "cidr_contains_ip_string" },
            "containsCIDR" => {
                return CallCost::ContainsCidr { parses: overload == "cidr_contains_cidr_string" };
            }
            "validate" => return CallCost::Validate,
            _ => {}
        }
        match overload {
            "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string"
            | "strings_quote" | "string_format" => CallCost::Read(1),
            "in_list" => CallCost::SizeOfSecond,
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes" => CallCost::Shorter,
            "add_string" | "add_bytes" => CallCost::Both,
            "matches_string" => CallCost::Regex,
            "contains_string" => CallCost::Product,
            _ => CallCost::One,
        }
    }
}

fn part(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

fn size(args: &[Value<'_>], at: usize) -> u64 {
    args.get(at).map_or(1, Value::size)
}

/// `==` and `!=`.
pub(crate) fn equality(one: &Value<'_>, two: &Value<'_>, negated: bool) -> u64 {
    match one {
        // Kubernetes' own types have a price for `==` only.
        Value::Opaque(_) if !negated => 1,
        _ => part(one.size().min(two.size()), STRING_FACTOR),
    }
}

/// The price of a selector of so many characters.
pub(crate) fn selector(length: u64) -> u64 {
    let requirements = part(length, 0.5);
    LIST + part(length, STRING_FACTOR) + requirements * (LIST + STRUCT)
}

fn allocating(factor: f64, size: u64) -> u64 {
    ((size as f64 * factor) as u64).saturating_add(1 + LIST)
}

/// What the call costs, if it can be said beforehand. Beyond `limit` it is not counted on.
pub(crate) fn of_call(call: &Call, args: &[Value<'_>], limit: u64) -> Option<u64> {
    Some(match call.cost {
        CallCost::One => 1,
        CallCost::Authorize => AUTHORIZE,
        CallCost::Selector => selector(size(args, 1)),
        CallCost::Traverse => args.first().map_or(0, |all| traverse(all, limit)),
        CallCost::Read(times) => part(size(args, 0), f64::from(times) * STRING_FACTOR),
        CallCost::Written => return None,
        CallCost::Regex => {
            let text = ((1.0 + size(args, 0) as f64) * STRING_FACTOR).ceil() as u64;
            text.saturating_mul(part(size(args, 1), REGEX_FACTOR))
        }
        CallCost::ContainsIp { parses } => {
            let cidr = size(args, 0);
            part(2 * cidr, STRING_FACTOR) + if parses { part(size(args, 1), STRING_FACTOR) } else { 0 }
        }
        CallCost::ContainsCidr { parses } => {
            let cidr = size(args, 0);
            let parsed = if parses { part(size(args, 1), STRING_FACTOR) } else { 0 };
            part(2 * cidr, STRING_FACTOR) + part(cidr, STRING_FACTOR) + 1 + parsed
        }
        CallCost::Validate => {
            let pattern = match args.first() {
                Some(Value::Opaque(value)) => match &**value {
                    Opaque::Format(format) => format.pattern_size,
                    _ => 1,
                },
                _ => 1,
            };
            let text = ((1.0 + size(args, 1) as f64) * STRING_FACTOR).ceil() as u64;
            text.saturating_mul(part(pattern, REGEX_FACTOR))
        }
        CallCost::SizeOfSecond => size(args, 1),
        CallCost::Shorter => part(size(args, 0).min(size(args, 1)), STRING_FACTOR),
        CallCost::Both => part(size(args, 0).saturating_add(size(args, 1)), STRING_FACTOR),
        CallCost::Product => {
            part(size(args, 0), STRING_FACTOR).saturating_mul(part(size(args, 1), STRING_FACTOR))
        }
        CallCost::Slice => match (args.get(1), args.get(2)) {
            (Some(Value::Int(start)), Some(Value::Int(end))) => {
                // A wrong range is an error that makes no list.
                let len = u64::try_from(end.saturating_sub(*start)).unwrap_or(0);
                allocating(1.0, if len <= size(args, 0) { len } else { 0 })
            }
            _ => 1,
        },
        CallCost::Range => match args.first() {
            Some(Value::Int(count)) => allocating(1.0, u64::try_from(*count).unwrap_or(0)),
            _ => 1,
        },
        CallCost::Reverse => allocating(1.0, size(args, 0)),
        CallCost::Flatten => {
            let depth = match args.get(1) {
                Some(Value::Int(depth)) => *depth as f64,
                _ => 1.0,
            };
            allocating(depth.max(0.0), size(args, 0))
        }
        CallCost::SelfCompare { arg } => {
            let count = size(args, arg);
            let first = match args.get(arg) {
                Some(Value::List(list)) => list.get(0),
                _ => None,
            };
            let text = matches!(first, Some(Ok(Value::String(_) | Value::Bytes(_))));
            allocating(if text { 2.0 + STRING_FACTOR } else { 2.0 }, count.saturating_mul(count))
        }
        CallCost::Sets { times } => {
            let pairs = size(args, 0).saturating_mul(size(args, 1));
            1u64.saturating_add((pairs as f64 * f64::from(times)) as u64)
        }
    })
}

/// What a call costs of which only the result tells.
pub(crate) fn of_result(_: &Call, result: &Value<'_>) -> u64 {
    part(result.size(), 2.0 * STRING_FACTOR)
}

/// All that is in a value. Lists may share parts that cost nothing to look at, and be endless.
fn traverse(value: &Value<'_>, limit: u64) -> u64 {
    let mut walk = Walk { cost: 0, steps: 0, limit };
    walk.value(value);
    if walk.is_over() { limit.saturating_add(1) } else { walk.cost }
}

struct Walk {
    cost: u64,
    steps: u64,
    limit: u64,
}

impl Walk {
    fn is_over(&self) -> bool {
        self.cost > self.limit || self.steps > self.limit.saturating_mul(STEPS_PER_UNIT)
    }

    fn value(&mut self, value: &Value<'_>) {
        self.steps += 1;
        match value {
            _ if self.is_over() => {}
            Value::String(text) => self.cost += (text.len() as f64 * STRING_FACTOR) as u64,
            Value::Bytes(bytes) => self.cost += (bytes.len() as f64 * STRING_FACTOR) as u64,
            Value::List(items) => {
                for item in items.iter() {
                    match item {
                        Ok(item) => deep(|| self.value(&item)),
                        Err(_) => self.cost += 1,
                    }
                    if self.is_over() {
                        return;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    self.value(&key);
                    if let Some(Ok(value)) = map.get(&key) {
                        deep(|| self.value(&value));
                    }
                }
            }
            _ => self.cost += 1,
        }
    }
}
