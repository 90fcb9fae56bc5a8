//! What may be stored, and what is added.
