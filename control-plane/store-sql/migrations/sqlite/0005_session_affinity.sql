-- Pins of sessions, kept for a hot store that lost its memory. Moments are ms since the Unix epoch.

-- Where sessions go; the hot store is the truth. Deleted after their end. The key is the provider, and SHA-256 of API key
-- id, provider and key of the session.
CREATE TABLE session_account_affinity (
    pin_key TEXT PRIMARY KEY CHECK (length(pin_key) BETWEEN 66 AND 512),
    connection TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX session_account_affinity_by_end ON session_account_affinity (expires_at);
