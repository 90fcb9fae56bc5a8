-- Whose database this is. At most one row; folders of the same fleet have the same id.

CREATE TABLE fleet (
    slot BIGINT NOT NULL PRIMARY KEY CHECK (slot = 1),
    id   TEXT   NOT NULL
);
