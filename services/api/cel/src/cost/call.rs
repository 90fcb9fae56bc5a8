//! What calls are estimated at. First what Kubernetes says of a function (`k8s.io/apiserver/pkg/cel/library/
//! cost.go`), then the extensions of cel-go, then the standard by overload.

use super::range::{CostRange, Size, fixed};
use super::{Coster, EntrySize, Node, is_logic};
use crate::ast::{Expr, Kind, op};
use crate::runtime_cost::{AUTHORIZE, LIST, REGEX_FACTOR, STRING_FACTOR, STRUCT};
use crate::types::Type;
use crate::value::Value;

pub(super) struct Estimate {
    pub cost: CostRange,
    pub size: Option<Size>,
}

fn only(cost: CostRange) -> Option<Estimate> {
    Some(Estimate { cost, size: None })
}
fn sized(cost: CostRange, size: Size) -> Option<Estimate> {
    Some(Estimate { cost, size: Some(size) })
}

/// Bytes of an address.
const ADDRESS: Size = Size { min: 4, max: 16 };
/// The longest pattern of a named format, for estimates.
const NAME_PATTERN: f64 = 128.0;
/// The longest name of one.
const NAME: u64 = 64;

impl<'c> Coster<'c> {
    pub(super) fn overload(
        &mut self,
        expr: &'c Expr,
        function: &str,
        overload: &str,
        target: Option<&Node<'c>>,
        args: &[Node<'c>],
        costs: &[CostRange],
    ) -> Estimate {
        let of_args = costs.iter().fold(fixed(0), |sum, cost| sum.add(*cost));
        let own = self
            .extension(overload, target, args)
            .or_else(|| self.kubernetes(function, overload, target, args));
        if let Some(own) = own {
            return Estimate { cost: own.cost.add(of_args), size: own.size };
        }
        self.standard(expr, function, overload, target, args, costs, of_args)
    }

    /// The size as cel-go takes it, which never asks what is declared: that was asked before.
    fn known(node: &Node<'c>) -> Size {
        node.computed.unwrap_or(Size::UNKNOWN)
    }

    fn kubernetes(
        &self,
        function: &str,
        overload: &str,
        target: Option<&Node<'c>>,
        args: &[Node<'c>],
    ) -> Option<Estimate> {
        let reading = |node: &Node<'c>, times: f64| self.size_of(node).factor(times * STRING_FACTOR);
        match function {
            "check" => only(fixed(AUTHORIZE)),
            "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => only(fixed(1)),
            "fieldSelector" | "labelSelector" => {
                let length = self.size_of(args.first()?);
                let requirements = length.factor(0.5).factor((LIST + STRUCT) as f64);
                only(fixed(LIST).add(length.factor(STRING_FACTOR)).add(requirements))
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                let target = target?;
                let size = self.size_of(target);
                let Some(elements) = self.elements(target) else { return only(size.factor(STRING_FACTOR)) };
                let mut each = fixed(1);
                if matches!(elements.ty, Type::String | Type::Bytes) {
                    each = each.add(reading(&elements, 1.0));
                }
                only(size.times_cost(each))
            }
            "url" | "jsonpatch.escapeKey" => sized(reading(args.first()?, 1.0), self.size_of(args.first()?)),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                sized(reading(target?, 1.0), self.size_of(target?))
            }
            "replace" => {
                let [old, new, ..] = args else { return None };
                let size = replaced(self.size_of(target?), self.size_of(old), self.size_of(new));
                sized(reading(target?, 2.0), size)
            }
            "split" => {
                let mut max = self.size_of(target?).max;
                if let Some(Expr { kind: Kind::Literal(Value::Int(limit)), .. }) =
                    args.get(1).and_then(|arg| arg.expr)
                {
                    max = *limit as u64;
                }
                sized(reading(target?, 2.0), Size { min: 0, max })
            }
            "join" => {
                let target = target?;
                let count = self.size_of(target);
                let mut size = match self.elements(target) {
                    Some(elements) => count.times(self.size_of(&elements)),
                    None => Size::fixed(0),
                };
                if let Some(separator) = args.first() {
                    let between = Size { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
                    size = size.add(self.size_of(separator).times(between));
                }
                sized(size.factor(STRING_FACTOR), size)
            }
            "find" | "findAll" => {
                let text = self.size_of(target?);
                let pattern = self.size_of(args.first()?).factor(REGEX_FACTOR);
                let read = text.add(Size::fixed(1)).factor(STRING_FACTOR);
                sized(read.times(pattern), Size { min: 0, max: text.max })
            }
            "ip" if overload == "cidr_ip" => only(fixed(1)),
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                only(reading(args.first()?, 1.0))
            }
            "ip.isCanonical" => only(reading(args.first()?, 2.0)),
            "containsIP" | "containsCIDR" => {
                let arg = args.first()?;
                let mut cost = ADDRESS.add(ADDRESS).factor(STRING_FACTOR);
                if function == "containsCIDR" {
                    cost = cost.add(ADDRESS.factor(STRING_FACTOR)).add(fixed(1));
                }
                if overload.ends_with("_string") {
                    cost = cost.add(reading(arg, 1.0));
                }
                only(cost)
            }
            "validate" => only(reading(args.first()?, 1.0).factor(NAME_PATTERN * REGEX_FACTOR)),
            op::EQUALS => self.kubernetes_equality(args),
            _ => None,
        }
    }

    fn kubernetes_equality(&self, args: &[Node<'c>]) -> Option<Estimate> {
        let [one, two] = args else { return None };
        let (Type::Opaque(name), Type::Opaque(other)) = (&one.ty, &two.ty) else { return None };
        if name != other {
            return None;
        }
        match *name {
            "kubernetes.NamedFormat" => only(CostRange { min: 1, max: NAME }.factor(STRING_FACTOR)),
            // Both of upstream's sizes are of the right-hand side.
            "kubernetes.URL" => {
                let max = two.computed.map_or(1, |size| size.max);
                only(CostRange { min: 1, max }.factor(STRING_FACTOR))
            }
            _ => only(fixed(1)),
        }
    }

    fn extension(&self, overload: &str, target: Option<&Node<'c>>, args: &[Node<'c>]) -> Option<Estimate> {
        let allocating = |factor: f64, size: Size| sized(size.factor(factor).add(fixed(1 + LIST)), size);
        let int = |node: &Node<'c>, otherwise: u64| match node.expr.map(|expr| &expr.kind) {
            Some(Kind::Literal(Value::Int(value))) => u64::try_from(*value).unwrap_or(0),
            _ => otherwise,
        };
        match overload {
            "list_slice" => {
                let [start, end] = args else { return None };
                let max = self.size_of(target?).max;
                // Wraps around in upstream as well, which makes it as expensive as can be.
                allocating(1.0, Size::fixed(int(end, max).wrapping_sub(int(start, 0))))
            }
            "lists_range" => allocating(1.0, Size::fixed(int(args.first()?, u64::MAX))),
            "list_reverse" => allocating(1.0, self.size_of(target?)),
            "list_flatten" | "list_flatten_int" => {
                let depth = args.first().map_or(1, |depth| int(depth, u64::MAX));
                allocating(depth as f64, self.size_of(target?))
            }
            "list_distinct" => {
                let size = self.size_of(target?);
                allocating(2.0, size.times(size))
            }
            "list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list" => {
                let [one, two] = args else { return None };
                let times = if overload == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                only(self.size_of(one).times(self.size_of(two)).factor(times).add(fixed(1)))
            }
            _ => {
                let keys = match (overload.ends_with("_sort"), overload.ends_with("_sortByAssociatedKeys")) {
                    (true, _) => target?,
                    (_, true) => args.first()?,
                    _ => return None,
                };
                let text = overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
                let size = self.size_of(keys);
                allocating(if text { 2.0 + STRING_FACTOR } else { 2.0 }, size.times(size))
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn standard(
        &mut self,
        expr: &'c Expr,
        function: &str,
        overload: &str,
        target: Option<&Node<'c>>,
        args: &[Node<'c>],
        costs: &[CostRange],
        of_args: CostRange,
    ) -> Estimate {
        let with = |cost: CostRange, size: Option<Size>| Estimate { cost: cost.add(of_args), size };
        if is_logic(function)
            && let [one, two] = costs
        {
            // Only the first may have to be looked at.
            return Estimate { cost: CostRange { min: one.min, max: one.add(*two).max }, size: None };
        }
        match (overload, target, args) {
            ("conditional", _, [_, truthy, falsy]) => {
                let size = Self::known(truthy).union(Self::known(falsy));
                let entry = self.either_entry(truthy, falsy);
                self.set_entry(expr, entry);
                let [condition, truthy, falsy] = costs else { return with(fixed(1), None) };
                Estimate { cost: condition.add(truthy.union(*falsy)), size: Some(size) }
            }
            ("string_format", Some(target), _) => with(Self::known(target).factor(STRING_FACTOR), None),
            ("string_to_bytes", _, [arg]) => {
                let size = Self::known(arg);
                let result = Size { min: size.min, max: size.max.wrapping_mul(4) };
                with(size.factor(STRING_FACTOR), Some(result))
            }
            ("bytes_to_string", _, [arg]) => {
                let size = Self::known(arg);
                with(size.factor(STRING_FACTOR), Some(Size { min: size.min / 4, max: size.max }))
            }
            ("strings_quote", _, [arg]) => {
                let size = Self::known(arg);
                let max = size.max.wrapping_mul(2).wrapping_add(2);
                with(size.factor(STRING_FACTOR), Some(Size { min: size.min.wrapping_add(2), max }))
            }
            ("starts_with_string" | "ends_with_string", _, [arg]) => {
                with(Self::known(arg).factor(STRING_FACTOR), None)
            }
            ("in_list", _, [_, list]) => with(Self::known(list).factor(1.0), None),
            ("matches_string", Some(target), [pattern]) => {
                let text = Self::known(target).add(Size::fixed(1)).factor(STRING_FACTOR);
                with(text.times(Self::known(pattern).factor(REGEX_FACTOR)), None)
            }
            ("contains_string", Some(target), [part]) => {
                let text = Self::known(target).factor(STRING_FACTOR);
                with(text.times(Self::known(part).factor(STRING_FACTOR)), None)
            }
            ("add_string" | "add_bytes" | "add_list", _, [one, two]) => {
                let size = Self::known(one).add(Self::known(two));
                let entry = self.either_entry(one, two);
                self.set_entry(expr, entry);
                let cost = if overload == "add_list" { fixed(1) } else { size.factor(STRING_FACTOR) };
                with(cost, Some(size))
            }
            (
                "less_string"
                | "greater_string"
                | "less_equals_string"
                | "greater_equals_string"
                | "less_bytes"
                | "greater_bytes"
                | "less_equals_bytes"
                | "greater_equals_bytes"
                | "equals"
                | "not_equals",
                _,
                [one, two],
            ) => {
                let max = Self::known(one).max.min(Self::known(two).max);
                with(CostRange { min: u64::from(max > 0), max }.factor(STRING_FACTOR), None)
            }
            _ => with(fixed(1), None),
        }
    }

    fn either_entry(&self, one: &Node<'c>, two: &Node<'c>) -> Option<EntrySize> {
        EntrySize::union(self.entry(one.expr?), self.entry(two.expr?))
    }
}

/// How long a text may be once `old` is replaced by `new` in it.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let (mut count, mut kept) = (Size::fixed(0), Size::fixed(0));
    if old.min == 0 {
        // The empty text is found around every character.
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = (text.max as f64 / old.min as f64).ceil() as u64;
    }
    if old.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = (text.min as f64 / old.max as f64).ceil() as u64;
    }
    count.times(new).add(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_changes_the_length() {
        let size = |min, max| Size { min, max };
        for (text, old, new, expected) in [
            (size(3, 3), size(0, 0), size(1, 1), size(7, 7)),
            (size(3, 3), size(1, 1), size(0, 0), size(0, 3)),
            (size(4, 4), size(2, 2), size(4, 4), size(4, 8)),
            (size(4, 4), size(0, 1), size(0, 2), size(0, 14)),
            (size(4, 4), size(1, 1), size(1, 2), size(4, 8)),
            (size(4, 4), size(1, 2), size(1, 1), size(2, 4)),
        ] {
            assert_eq!(replaced(text, old, new), expected, "{text:?} {old:?} {new:?}");
        }
    }
}
