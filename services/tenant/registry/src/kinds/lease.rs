//! Leases: heartbeats and leadership.

use api_machinery::{Document, Field, FieldError};

use crate::strategy::Strategy;

pub(crate) struct Leases;

impl Strategy for Leases {
    fn creates_on_update(&self) -> bool {
        true
    }
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn validate(&self, new: &Document) -> Vec<FieldError> {
        let spec = Field::new("spec");
        let mut errors = Vec::new();
        if let Some(seconds) = new.get_i64("spec.leaseDurationSeconds")
            && seconds <= 0
        {
            errors.push(spec.child("leaseDurationSeconds").invalid(seconds, "must be greater than 0"));
        }
        if let Some(transitions) = new.get_i64("spec.leaseTransitions")
            && transitions < 0
        {
            errors.push(
                spec.child("leaseTransitions").invalid(transitions, "must be greater than or equal to 0"),
            );
        }
        errors
    }
}
