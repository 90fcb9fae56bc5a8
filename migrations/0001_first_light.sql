-- Runs on SQLite and PostgreSQL alike: text ids, milliseconds since 1970, no vendor types.

CREATE TABLE organizations (
    id          TEXT   NOT NULL PRIMARY KEY,
    name        TEXT   NOT NULL UNIQUE,
    created_ms  BIGINT NOT NULL
);

CREATE TABLE cells (
    id          TEXT   NOT NULL PRIMARY KEY,
    name        TEXT   NOT NULL UNIQUE,
    -- ip:port of its gRPC service
    rpc_address TEXT   NOT NULL,
    -- ip:port to which gateways send clients
    api_address TEXT   NOT NULL,
    capacity    BIGINT NOT NULL
);

CREATE TABLE clusters (
    id                 TEXT   NOT NULL PRIMARY KEY,
    organization_id    TEXT   NOT NULL REFERENCES organizations (id),
    name               TEXT   NOT NULL,
    -- creating, ready or deleting
    state              TEXT   NOT NULL,
    kubernetes_version TEXT   NOT NULL,
    cell_id            TEXT   NOT NULL REFERENCES cells (id),
    created_ms         BIGINT NOT NULL,
    UNIQUE (organization_id, name)
);

CREATE INDEX clusters_by_cell ON clusters (cell_id);
CREATE INDEX clusters_unfinished ON clusters (state) WHERE state <> 'ready';

CREATE TABLE api_tokens (
    id              TEXT   NOT NULL PRIMARY KEY,
    description     TEXT   NOT NULL,
    -- provider, admin or viewer
    role            TEXT   NOT NULL,
    -- NULL for the provider's own
    organization_id TEXT   REFERENCES organizations (id),
    -- SHA-256 of the secret, hexadecimal. The secret has 256 bits of entropy, so no slow hash is needed.
    secret_hash     TEXT   NOT NULL,
    created_ms      BIGINT NOT NULL,
    expires_ms      BIGINT
);
