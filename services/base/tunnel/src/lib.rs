//! Byte streams through one outbound gRPC connection.
