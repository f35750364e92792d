-- What is durable, without leases. Moments are ms since the Unix epoch.

CREATE TABLE configuration (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL CHECK (version >= 0),
    document jsonb NOT NULL
);
COMMENT ON TABLE configuration IS 'The configuration document; version 0 = nothing was ever applied.';
INSERT INTO configuration (version, document) VALUES (0, '{}');

CREATE TABLE credentials (
    connection text PRIMARY KEY,
    version bigint NOT NULL CHECK (version > 0),
    sealed bytea NOT NULL,
    fingerprint bytea NOT NULL
);
COMMENT ON TABLE credentials IS 'Credentials of connections, sealed; the key is not in this database.';

-- Rows are replaced all the time: room in each page and no index on what changes, so that an update stays in
-- its page, and dead rows are cleared early.
CREATE TABLE hot_checkpoint (
    shard smallint NOT NULL,
    key text NOT NULL,
    incarnation bigint NOT NULL,
    revision bigint NOT NULL,
    schema bigint NOT NULL,
    payload bytea NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (shard, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE hot_checkpoint IS 'Last known values of the hot state, to restore from. payload is opaque here.';
COMMENT ON COLUMN hot_checkpoint.incarnation IS 'Less 2^63, so that all unsigned numbers fit in their order.';
COMMENT ON COLUMN hot_checkpoint.revision IS 'Less 2^63, so that all unsigned numbers fit in their order.';

CREATE TABLE hot_checkpoint_marks (
    shard smallint NOT NULL,
    plane bigint NOT NULL,
    number bigint NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (shard, plane)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE hot_checkpoint_marks IS 'How far the reports of a data plane are in the values of hot_checkpoint.';
COMMENT ON COLUMN hot_checkpoint_marks.plane IS 'Bits of the incarnation; to_hex(plane) shows it as logs do.';
COMMENT ON COLUMN hot_checkpoint_marks.number IS 'Less 2^63, so that all unsigned numbers fit in their order.';

CREATE TABLE transitions (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    at bigint NOT NULL,
    provider text NOT NULL,
    connection text,
    body jsonb NOT NULL
);
COMMENT ON TABLE transitions IS 'Changes of breakers, cooldowns, locks and terminal states. Append-only.';
CREATE INDEX transitions_newest ON transitions (at DESC, seq DESC);
CREATE INDEX transitions_newest_of_provider ON transitions (provider, at DESC, seq DESC);

CREATE TABLE usage (
    plane bigint NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL,
    provider text NOT NULL,
    connection text NOT NULL,
    model text NOT NULL,
    key_id text,
    input_tokens bigint,
    output_tokens bigint,
    PRIMARY KEY (plane, number)
);
COMMENT ON TABLE usage IS 'Tokens of each attempt, once. Append-only. NULL tokens = the provider did not say.';
COMMENT ON COLUMN usage.plane IS 'Bits of the incarnation; to_hex(plane) shows it as logs do.';
CREATE INDEX usage_at ON usage USING brin (at);

CREATE TABLE admin_audit (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    author text NOT NULL,
    action text NOT NULL,
    summary text NOT NULL,
    document_version bigint
);
COMMENT ON TABLE admin_audit IS 'What administrators did. Append-only.';
