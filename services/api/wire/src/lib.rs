//! Encodings: YAML, protobuf, tables.

pub mod table;
