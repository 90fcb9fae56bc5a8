//! Runs the pods of one node.
