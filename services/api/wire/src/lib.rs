//! Encodings: YAML, protobuf, tables.

pub mod protobuf;
pub mod table;
pub mod yaml;
