//! Encodings: YAML, protobuf, tables.
