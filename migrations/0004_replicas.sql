-- Where a cluster's replicas are. Replica numbers are for ever: a member of a Raft group is known by its own.

CREATE TABLE cluster_replicas (
    cluster_id TEXT   NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
    -- 1 is the one that founds the group.
    number     BIGINT NOT NULL,
    cell_id    TEXT   NOT NULL REFERENCES cells (id),
    PRIMARY KEY (cluster_id, number),
    UNIQUE (cluster_id, cell_id)
);

CREATE INDEX cluster_replicas_by_cell ON cluster_replicas (cell_id);

INSERT INTO cluster_replicas (cluster_id, number, cell_id) SELECT id, 1, cell_id FROM clusters;
