-- Exclusive leases of connections; the same tables as in Postgres. Moments are ms since the Unix epoch.

-- The last generation of each owner. Never deleted: it would begin anew. Owners are SHA-256 of the owner token, in
-- hexadecimal digits.
CREATE TABLE lease_generations (
    owner TEXT PRIMARY KEY NOT NULL CHECK (length(owner) = 64 AND owner NOT GLOB '*[^0-9a-f]*'),
    last INTEGER NOT NULL CHECK (last BETWEEN 1 AND 9007199254740991)
) STRICT;

-- One row for each connection that a lease was on. ended_at NULL = ACTIVE, overdue or not.
CREATE TABLE leases (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
    owner TEXT NOT NULL CHECK (length(owner) = 64 AND owner NOT GLOB '*[^0-9a-f]*'),
    key_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    connection TEXT NOT NULL,
    generation INTEGER NOT NULL CHECK (generation BETWEEN 1 AND 9007199254740991),
    acquired_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER,
    end_reason TEXT,
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;
CREATE UNIQUE INDEX leases_active_owner ON leases (owner) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX leases_active_connection ON leases (connection) WHERE ended_at IS NULL;
CREATE INDEX leases_newest ON leases (owner, generation, seq DESC);
CREATE INDEX leases_by_end ON leases (ended_at) WHERE ended_at IS NOT NULL;

-- Data planes that may have attempts in flight under a lease; until then nobody else gets the connection.
CREATE TABLE lease_activity (
    connection TEXT NOT NULL,
    owner TEXT NOT NULL CHECK (length(owner) = 64 AND owner NOT GLOB '*[^0-9a-f]*'),
    generation INTEGER NOT NULL CHECK (generation BETWEEN 1 AND 9007199254740991),
    plane INTEGER NOT NULL,
    number INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (connection, owner, generation, plane)
) STRICT;
