-- Exclusive leases of connections. Moments are ms since the Unix epoch.

CREATE TABLE lease_generations (
    owner text PRIMARY KEY CHECK (owner ~ '^[0-9a-f]{64}$'),
    last bigint NOT NULL CHECK (last BETWEEN 1 AND 9007199254740991)
);
COMMENT ON TABLE lease_generations IS 'The last generation of each owner. Never deleted: it would begin anew.';
COMMENT ON COLUMN lease_generations.owner IS 'SHA-256 of the owner token, in hexadecimal digits.';

CREATE TABLE leases (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id bytea NOT NULL UNIQUE CHECK (octet_length(id) = 16),
    owner text NOT NULL CHECK (owner ~ '^[0-9a-f]{64}$'),
    key_id text NOT NULL,
    provider text NOT NULL,
    connection text NOT NULL,
    generation bigint NOT NULL CHECK (generation BETWEEN 1 AND 9007199254740991),
    acquired_at bigint NOT NULL,
    renewed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    ended_at bigint,
    end_reason text,
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE leases IS 'Leases, one row for each connection that one was on. ended_at NULL = ACTIVE, overdue or not.';
COMMENT ON COLUMN leases.owner IS 'SHA-256 of the owner token, in hexadecimal digits.';
CREATE UNIQUE INDEX leases_active_owner ON leases (owner) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX leases_active_connection ON leases (connection) WHERE ended_at IS NULL;
CREATE INDEX leases_newest ON leases (owner, generation, seq DESC);
CREATE INDEX leases_by_end ON leases (ended_at) WHERE ended_at IS NOT NULL;

-- Rows are replaced all the time: as in hot_checkpoint.
CREATE TABLE lease_activity (
    connection text NOT NULL,
    owner text NOT NULL CHECK (owner ~ '^[0-9a-f]{64}$'),
    generation bigint NOT NULL CHECK (generation BETWEEN 1 AND 9007199254740991),
    plane bigint NOT NULL,
    number bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (connection, owner, generation, plane)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE lease_activity IS 'Data planes that may have attempts in flight under a lease; until then nobody else gets the connection.';
COMMENT ON COLUMN lease_activity.plane IS 'Bits of the incarnation; to_hex(plane) shows it as logs do.';
COMMENT ON COLUMN lease_activity.number IS 'Less 2^63, so that all unsigned numbers fit in their order.';
