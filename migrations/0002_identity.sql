-- People, what they are in organisations, and how they sign in.

CREATE TABLE users (
    id            TEXT   NOT NULL PRIMARY KEY,
    -- in lower case
    email         TEXT   NOT NULL UNIQUE,
    name          TEXT   NOT NULL,
    -- argon2id as a PHC string; NULL until an invitation was accepted
    password_hash TEXT,
    -- 1 for the provider's operators
    provider      BIGINT NOT NULL,
    created_ms    BIGINT NOT NULL
);

CREATE TABLE members (
    organization_id TEXT   NOT NULL REFERENCES organizations (id),
    user_id         TEXT   NOT NULL REFERENCES users (id),
    -- admin, developer or viewer
    role            TEXT   NOT NULL,
    -- 1 until the invitation was accepted; they may nothing until then
    invited         BIGINT NOT NULL,
    created_ms      BIGINT NOT NULL,
    PRIMARY KEY (organization_id, user_id)
);

CREATE INDEX members_by_user ON members (user_id);

-- At most one per person and organisation: the newest.
CREATE TABLE invitations (
    id              TEXT   NOT NULL PRIMARY KEY,
    organization_id TEXT   NOT NULL REFERENCES organizations (id),
    user_id         TEXT   NOT NULL REFERENCES users (id),
    -- SHA-256, as of API tokens
    secret_hash     TEXT   NOT NULL,
    expires_ms      BIGINT NOT NULL,
    UNIQUE (organization_id, user_id)
);

CREATE TABLE sessions (
    id          TEXT   NOT NULL PRIMARY KEY,
    user_id     TEXT   NOT NULL REFERENCES users (id),
    secret_hash TEXT   NOT NULL,
    created_ms  BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL
);

CREATE INDEX sessions_by_user ON sessions (user_id);
CREATE INDEX sessions_by_end ON sessions (expires_ms);

-- The one cluster that the token is limited to.
ALTER TABLE api_tokens ADD COLUMN cluster_id TEXT REFERENCES clusters (id) ON DELETE CASCADE;
-- Whose rights bound the token's; NULL when made by whoever holds the database.
ALTER TABLE api_tokens ADD COLUMN created_by TEXT REFERENCES users (id);

CREATE INDEX api_tokens_by_cluster ON api_tokens (cluster_id);

-- First answers to requests that carry an Idempotency-Key.
CREATE TABLE idempotency (
    -- session or token
    caller       TEXT   NOT NULL,
    key          TEXT   NOT NULL,
    -- SHA-256 of method, path and body
    request_hash TEXT   NOT NULL,
    -- what the request makes gets this id, however often it is started
    resource_id  TEXT   NOT NULL,
    -- NULL while it runs
    status       BIGINT,
    -- sealed with a key made of the caller's secret: answers hold secrets
    answer       TEXT,
    -- whoever runs it keeps moving this on; past, the runner is dead and the next may start
    lease_ms     BIGINT NOT NULL,
    created_ms   BIGINT NOT NULL,
    PRIMARY KEY (caller, key)
);

CREATE INDEX idempotency_by_age ON idempotency (created_ms);
