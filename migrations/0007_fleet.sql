-- Whose database this is. At most one row; folders of the same fleet have the same id.

CREATE TABLE fleet (
    only BIGINT NOT NULL PRIMARY KEY CHECK (only = 1),
    id   TEXT   NOT NULL
);
