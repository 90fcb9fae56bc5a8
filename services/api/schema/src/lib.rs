//! OpenAPI documents from the table.
