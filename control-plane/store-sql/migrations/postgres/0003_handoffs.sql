-- Notes that follow conversations to another account. Moments are ms since the Unix epoch.

CREATE TABLE handoffs (
    session bytea NOT NULL CHECK (length(session) = 32),
    combo text NOT NULL,
    connection text NOT NULL,
    sealed bytea NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (session, combo)
);
CREATE INDEX handoffs_by_end ON handoffs (expires_at);
COMMENT ON TABLE handoffs IS 'Summaries of conversations, sealed; deleted after their end.';
COMMENT ON COLUMN handoffs.session IS 'SHA-256 of the client and what names its session.';
COMMENT ON COLUMN handoffs.connection IS 'The account that the note was made on.';
