-- Where the tokens of attempts come from, and answers that are under way. Moments are ms since the Unix epoch.

ALTER TABLE usage ADD COLUMN source text;
COMMENT ON COLUMN usage.source IS 'provider, estimated or unknown. NULL = by a release without sources: the provider, or unknown without tokens.';
COMMENT ON TABLE usage IS 'Tokens of each attempt, once. A row of source unknown is replaced if the tokens are told after all.';

-- Old rows are looked for by their age; ranges of pages tell nothing once rows were deleted between them.
CREATE INDEX usage_by_age ON usage (at);
DROP INDEX usage_at;

-- Rows come and go all the time: as in hot_checkpoint.
CREATE TABLE open_attempts (
    plane bigint NOT NULL,
    number bigint NOT NULL,
    since bigint NOT NULL,
    provider text NOT NULL,
    connection text NOT NULL,
    model text NOT NULL,
    key_id text,
    PRIMARY KEY (plane, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE open_attempts IS 'Answers under way, of which a row in usage is due.';
COMMENT ON COLUMN open_attempts.plane IS 'Bits of the incarnation; to_hex(plane) shows it as logs do.';

CREATE TABLE open_attempt_planes (
    plane bigint PRIMARY KEY,
    heard_at bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE open_attempt_planes IS 'When data planes with open_attempts were last heard, by this database''s clock.';
