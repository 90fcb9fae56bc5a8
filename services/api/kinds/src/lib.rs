//! Every built-in kind, as one generated table.
