-- What changes over a cluster's life: labels, node pools, operations, and the receipt at its end.

ALTER TABLE clusters ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
-- Goes up with every change that cells must hear of, and the one they last confirmed.
ALTER TABLE clusters ADD COLUMN generation BIGINT NOT NULL DEFAULT 1;
ALTER TABLE clusters ADD COLUMN assigned_generation BIGINT NOT NULL DEFAULT 0;
-- While deleting: what was drained, as JSON, once nothing is left. From then on the cluster's own store,
-- which knew it, may go.
ALTER TABLE clusters ADD COLUMN drained TEXT;

CREATE INDEX clusters_to_assign ON clusters (id) WHERE assigned_generation < generation;

CREATE TABLE node_pools (
    id           TEXT   NOT NULL PRIMARY KEY,
    cluster_id   TEXT   NOT NULL REFERENCES clusters (id),
    name         TEXT   NOT NULL,
    size         BIGINT NOT NULL,
    -- empty: the cell's first provider
    provider     TEXT   NOT NULL,
    -- empty: the provider's default
    machine_type TEXT   NOT NULL,
    -- JSON
    labels       TEXT   NOT NULL,
    taints       TEXT   NOT NULL,
    deleting     BIGINT NOT NULL DEFAULT 0,
    -- 1 once it had as many machines as wanted
    settled      BIGINT NOT NULL DEFAULT 0,
    -- What the cluster's leader last said: machines as JSON, a message, and whether the provider refused.
    machines     TEXT   NOT NULL DEFAULT '[]',
    message      TEXT   NOT NULL DEFAULT '',
    refused      BIGINT NOT NULL DEFAULT 0,
    created_ms   BIGINT NOT NULL,
    UNIQUE (cluster_id, name)
);

CREATE TABLE operations (
    -- UUIDv7: in the order of their beginning
    id              TEXT   NOT NULL PRIMARY KEY,
    organization_id TEXT   NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- No reference: operations outlive clusters.
    cluster_id      TEXT   NOT NULL,
    node_pool_id    TEXT,
    kind            TEXT   NOT NULL,
    -- name of the cluster or pool
    target          TEXT   NOT NULL,
    -- running, succeeded, failed or cancelled
    state           TEXT   NOT NULL,
    progress        BIGINT NOT NULL,
    message         TEXT   NOT NULL,
    -- of a resize: the size to which cancelling goes back
    size_before     BIGINT,
    created_ms      BIGINT NOT NULL,
    finished_ms     BIGINT
);

CREATE INDEX operations_by_organization ON operations (organization_id, id);
CREATE INDEX operations_running ON operations (cluster_id) WHERE state = 'running';

-- Kept when the organisation is gone: it is what the provider has to show.
CREATE TABLE receipts (
    cluster_id      TEXT   NOT NULL PRIMARY KEY,
    organization_id TEXT   NOT NULL,
    -- the whole receipt, as JSON
    document        TEXT   NOT NULL,
    deleted_ms      BIGINT NOT NULL
);

CREATE INDEX receipts_by_organization ON receipts (organization_id, cluster_id);

-- The manager's own private keys, PKCS#8 PEM.
CREATE TABLE manager_keys (
    name TEXT NOT NULL PRIMARY KEY,
    pem  TEXT NOT NULL
);
