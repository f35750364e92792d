-- Pins of sessions, kept for a hot store that lost its memory. Moments are ms since the Unix epoch.

CREATE TABLE session_account_affinity (
    pin_key text PRIMARY KEY CHECK (length(pin_key) BETWEEN 66 AND 512),
    connection text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX session_account_affinity_by_end ON session_account_affinity (expires_at);
COMMENT ON TABLE session_account_affinity IS 'Where sessions go; the hot store is the truth. Deleted after their end.';
COMMENT ON COLUMN session_account_affinity.pin_key IS 'Provider, and SHA-256 of API key id, provider and key of the session.';
