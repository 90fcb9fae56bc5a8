//! Fitting types to types, with type variables.
//!
//! What a variable stands for is written down as it shows; an attempt that fails is undone. The rules are
//! cel-go's (`checker/types.go`), including which of two types is kept as the more general one.

use std::cell::Cell;
use std::sync::Arc;

use crate::types::Type;

#[derive(Default)]
pub(crate) struct Unifier {
    subs: Vec<Option<Type>>,
    /// What to put back, newest last.
    trail: Vec<(u32, Option<Type>)>,
    fuel: Cell<u32>,
}

/// Parts of types looked at in one go. Variables can stand for types that share parts and grow without end.
const FUEL: u32 = 20_000;

impl Unifier {
    pub fn fresh(&mut self) -> Type {
        self.subs.push(None);
        Type::Param(u32::try_from(self.subs.len() - 1).unwrap_or(u32::MAX))
    }

    /// Whether there is nothing left to spend.
    fn spend(&self) -> bool {
        let left = self.fuel.get();
        self.fuel.set(left.saturating_sub(1));
        left == 0
    }

    fn get(&self, id: u32) -> Option<&Type> {
        self.subs.get(id as usize)?.as_ref()
    }
    fn set(&mut self, id: u32, ty: Type) {
        if let Some(slot) = self.subs.get_mut(id as usize) {
            self.trail.push((id, slot.replace(ty)));
        }
    }

    /// Whether a value of `one` can stand where `two` is wanted; learns from it if so.
    pub fn assignable(&mut self, one: &Type, two: &Type) -> bool {
        self.all_assignable(std::slice::from_ref(one), std::slice::from_ref(two))
    }

    pub fn all_assignable(&mut self, ones: &[Type], twos: &[Type]) -> bool {
        let mark = self.trail.len();
        self.fuel.set(FUEL);
        let fits = ones.len() == twos.len() && ones.iter().zip(twos).all(|(one, two)| self.fits(one, two));
        if !fits {
            while self.trail.len() > mark {
                if let Some((id, old)) = self.trail.pop()
                    && let Some(slot) = self.subs.get_mut(id as usize)
                {
                    *slot = old;
                }
            }
        }
        self.trail.clear();
        fits
    }

    fn fits(&mut self, one: &Type, two: &Type) -> bool {
        if self.spend() {
            return false;
        }
        if let Type::Param(id) = two {
            let (valid, known) = self.substitutes(one, *id);
            if valid {
                return true;
            }
            if known {
                return false;
            }
        }
        if let Type::Param(id) = one {
            return self.substitutes(two, *id).0;
        }
        if one.is_dyn_or_error() || two.is_dyn_or_error() {
            return true;
        }
        match (one, two) {
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null
                    | Type::Object(_)
                    | Type::Opaque(_)
                    | Type::Optional(_)
                    | Type::Duration
                    | Type::Timestamp
            ),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(one), Type::List(two)) | (Type::Optional(one), Type::Optional(two)) => {
                self.fits(one, two)
            }
            (Type::Map(key1, value1), Type::Map(key2, value2)) => {
                self.fits(key1, key2) && self.fits(value1, value2)
            }
            _ => one.same(two, true),
        }
    }

    /// Whether `ty` may stand for the variable, and whether something already did.
    fn substitutes(&mut self, ty: &Type, id: u32) -> (bool, bool) {
        if matches!(ty, Type::Param(other) if *other == id) {
            return (true, true);
        }
        if let Some(known) = self.get(id).cloned() {
            if ty.same(&known, true) {
                return (true, true);
            }
            if self.fits(ty, &known) {
                let general = most_general(ty, &known);
                if !self.occurs(id, &general) {
                    self.set(id, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.occurs(id, ty) {
            return (false, false);
        }
        self.set(id, ty.clone());
        (true, false)
    }

    fn occurs(&self, id: u32, within: &Type) -> bool {
        if self.spend() {
            return true;
        }
        match within {
            Type::Param(other) => {
                *other == id || self.get(*other).is_some_and(|known| self.occurs(id, known))
            }
            Type::List(one) | Type::Optional(one) | Type::Type(one) => self.occurs(id, one),
            Type::Map(key, value) => self.occurs(id, key) || self.occurs(id, value),
            _ => false,
        }
    }

    /// The type with what is known of its variables; those of which nothing is are kept, or become dyn.
    pub fn resolve(&self, ty: &Type, to_dyn: bool) -> Type {
        self.fuel.set(FUEL);
        self.resolved(ty, to_dyn)
    }
    fn resolved(&self, ty: &Type, to_dyn: bool) -> Type {
        if self.spend() {
            return Type::Dyn;
        }
        match ty {
            Type::Param(id) => match self.get(*id) {
                Some(known) => self.resolved(known, to_dyn),
                None if to_dyn => Type::Dyn,
                None => ty.clone(),
            },
            Type::List(item) => Type::List(Arc::new(self.resolved(item, to_dyn))),
            Type::Optional(of) => Type::Optional(Arc::new(self.resolved(of, to_dyn))),
            Type::Type(of) => Type::Type(Arc::new(self.resolved(of, to_dyn))),
            Type::Map(key, value) => {
                Type::Map(Arc::new(self.resolved(key, to_dyn)), Arc::new(self.resolved(value, to_dyn)))
            }
            other => other.clone(),
        }
    }
}

/// An overload's type with its variables replaced by these.
pub(crate) fn instantiate(ty: &Type, with: &[Type]) -> Type {
    match ty {
        Type::Param(id) => with.get(*id as usize).cloned().unwrap_or(Type::Dyn),
        Type::List(item) => Type::List(Arc::new(instantiate(item, with))),
        Type::Optional(of) => Type::Optional(Arc::new(instantiate(of, with))),
        Type::Type(of) => Type::Type(Arc::new(instantiate(of, with))),
        Type::Map(key, value) => {
            Type::Map(Arc::new(instantiate(key, with)), Arc::new(instantiate(value, with)))
        }
        other => other.clone(),
    }
}

pub(crate) fn most_general(one: &Type, two: &Type) -> Type {
    if equal_or_less_specific(one, two) { one.clone() } else { two.clone() }
}

fn equal_or_less_specific(one: &Type, two: &Type) -> bool {
    match (one, two) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(one), Type::List(two)) | (Type::Optional(one), Type::Optional(two)) => {
            equal_or_less_specific(one, two)
        }
        (Type::Map(key1, value1), Type::Map(key2, value2)) => {
            equal_or_less_specific(key1, key2) && equal_or_less_specific(value1, value2)
        }
        (Type::Type(_), Type::Type(_)) => true,
        _ => one.same(two, true),
    }
}
