//! Typed ids.
