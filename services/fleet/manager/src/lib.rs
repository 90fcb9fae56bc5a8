//! Organisations and clusters over SQL.
