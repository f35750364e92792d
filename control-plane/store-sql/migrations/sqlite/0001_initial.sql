-- What is durable, without leases; the same tables as in Postgres, where they are described.

CREATE TABLE configuration (
    only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version INTEGER NOT NULL CHECK (version >= 0),
    document TEXT NOT NULL
) STRICT;
INSERT INTO configuration (version, document) VALUES (0, '{}');

CREATE TABLE credentials (
    connection TEXT PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    sealed BLOB NOT NULL,
    fingerprint BLOB NOT NULL
) STRICT;

CREATE TABLE hot_checkpoint (
    shard INTEGER NOT NULL,
    key TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    schema INTEGER NOT NULL,
    payload BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (shard, key)
) STRICT;

CREATE TABLE hot_checkpoint_marks (
    shard INTEGER NOT NULL,
    plane INTEGER NOT NULL,
    number INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (shard, plane)
) STRICT;

CREATE TABLE transitions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    at INTEGER NOT NULL,
    provider TEXT NOT NULL,
    connection TEXT,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX transitions_newest ON transitions (at DESC, seq DESC);
CREATE INDEX transitions_newest_of_provider ON transitions (provider, at DESC, seq DESC);

CREATE TABLE usage (
    plane INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    provider TEXT NOT NULL,
    connection TEXT NOT NULL,
    model TEXT NOT NULL,
    key_id TEXT,
    input_tokens INTEGER,
    output_tokens INTEGER,
    PRIMARY KEY (plane, number)
) STRICT;
CREATE INDEX usage_at ON usage (at);

CREATE TABLE admin_audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    author TEXT NOT NULL,
    action TEXT NOT NULL,
    summary TEXT NOT NULL,
    document_version INTEGER
) STRICT;
