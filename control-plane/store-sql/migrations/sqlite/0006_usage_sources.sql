-- Where the tokens of attempts come from, and answers that are under way; the same tables as in Postgres, where they are
-- described.

ALTER TABLE usage ADD COLUMN source TEXT;

CREATE TABLE open_attempts (
    plane INTEGER NOT NULL,
    number INTEGER NOT NULL,
    since INTEGER NOT NULL,
    provider TEXT NOT NULL,
    connection TEXT NOT NULL,
    model TEXT NOT NULL,
    key_id TEXT,
    PRIMARY KEY (plane, number)
) STRICT;

CREATE TABLE open_attempt_planes (
    plane INTEGER PRIMARY KEY NOT NULL,
    heard_at INTEGER NOT NULL
) STRICT;
