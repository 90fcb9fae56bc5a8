//! A strategy per kind over the store.
