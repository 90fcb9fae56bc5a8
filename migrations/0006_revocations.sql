-- Kubeconfigs live as long as their certificates, and clusters know no members: whom they have to refuse is said to
-- them. Only somebody who has a kubeconfig that is still good needs to be named.

CREATE TABLE kubeconfigs (
    organization_id TEXT   NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- as certificates name them: an email address, or token:<id>
    user_name       TEXT   NOT NULL,
    -- of the newest one, and of the one that lasts longest
    issued_ms       BIGINT NOT NULL,
    expires_ms      BIGINT NOT NULL,
    PRIMARY KEY (organization_id, user_name)
);

CREATE INDEX kubeconfigs_by_end ON kubeconfigs (expires_ms);

CREATE TABLE revocations (
    organization_id TEXT   NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- empty: everybody that the manager names
    user_name       TEXT   NOT NULL,
    -- what was issued until then is refused
    before_ms       BIGINT NOT NULL,
    -- nothing of that is good any more, and this may be forgotten
    expires_ms      BIGINT NOT NULL,
    PRIMARY KEY (organization_id, user_name)
);

CREATE INDEX revocations_by_end ON revocations (expires_ms);
