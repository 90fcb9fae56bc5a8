//! One log per cell, shared by all tenants.
