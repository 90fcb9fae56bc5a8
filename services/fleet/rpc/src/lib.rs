//! gRPC between manager and cells.
