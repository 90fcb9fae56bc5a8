//! The API as components in the same process see it.
