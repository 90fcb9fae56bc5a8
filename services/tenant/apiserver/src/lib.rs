//! HTTP: routes, negotiation, watches, discovery.
