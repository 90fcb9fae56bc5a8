//! Plans, queues and backoff as values.
