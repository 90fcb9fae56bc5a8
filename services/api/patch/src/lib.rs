//! The four patch types and strict decoding.
