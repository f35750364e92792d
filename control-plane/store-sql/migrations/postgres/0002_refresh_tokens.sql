-- Refresh tokens and their renewal. Moments are ms since the Unix epoch.

ALTER TABLE configuration
    ADD COLUMN secrets_revision bigint NOT NULL DEFAULT 0 CHECK (secrets_revision >= 0);
COMMENT ON COLUMN configuration.secrets_revision IS 'Grows with each renewed access token; saves of the document leave it.';

ALTER TABLE credentials ADD COLUMN applied_version bigint CHECK (applied_version >= 0);
COMMENT ON COLUMN credentials.applied_version IS 'The version an operator last applied; NULL = version itself.';

CREATE TABLE refresh_tokens (
    connection text PRIMARY KEY,
    version bigint NOT NULL CHECK (version > 0),
    sealed bytea NOT NULL,
    fingerprint bytea NOT NULL,
    secret_version bigint CHECK (secret_version > 0),
    secret_sealed bytea,
    secret_fingerprint bytea,
    obtained_at bigint,
    expires_at bigint,
    retries bigint NOT NULL DEFAULT 0 CHECK (retries >= 0),
    last_retry_at bigint,
    failures bigint NOT NULL DEFAULT 0 CHECK (failures >= 0),
    last_failure_at bigint,
    lease_id text,
    lease_until bigint,
    CHECK ((secret_version IS NULL) = (secret_sealed IS NULL)),
    CHECK ((secret_version IS NULL) = (secret_fingerprint IS NULL)),
    CHECK ((lease_id IS NULL) = (lease_until IS NULL))
);
COMMENT ON TABLE refresh_tokens IS 'What access tokens are renewed with, sealed, and how renewals went.';
COMMENT ON COLUMN refresh_tokens.fingerprint IS 'Of what an operator last applied, not of what it was renewed to.';
COMMENT ON COLUMN refresh_tokens.secret_sealed IS 'Secret of the OAuth client.';
COMMENT ON COLUMN refresh_tokens.lease_until IS 'Until then only the holder of the lease may renew, dead or not.';
