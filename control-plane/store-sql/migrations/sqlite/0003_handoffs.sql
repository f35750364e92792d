-- Notes that follow conversations to another account. Moments are ms since the Unix epoch.

-- Summaries of conversations, sealed; deleted after their end. The session is SHA-256 of the client and what names its
-- session, connection the account that the note was made on.
CREATE TABLE handoffs (
    session BLOB NOT NULL CHECK (length(session) = 32),
    combo TEXT NOT NULL,
    connection TEXT NOT NULL,
    sealed BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (session, combo)
) STRICT;
CREATE INDEX handoffs_by_end ON handoffs (expires_at);
