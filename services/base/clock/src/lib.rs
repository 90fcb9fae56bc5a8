//! Time as a value.
