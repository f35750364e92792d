-- Refresh tokens and their renewal. Moments are ms since the Unix epoch.

-- Grows with each renewed access token; saves of the document leave it.
ALTER TABLE configuration
    ADD COLUMN secrets_revision INTEGER NOT NULL DEFAULT 0 CHECK (secrets_revision >= 0);

-- The version an operator last applied; NULL = version itself.
ALTER TABLE credentials ADD COLUMN applied_version INTEGER CHECK (applied_version >= 0);

-- What access tokens are renewed with, sealed, and how renewals went. Fingerprints are of what an operator last
-- applied. Until lease_until only the holder of the lease may renew, dead or not.
CREATE TABLE refresh_tokens (
    connection TEXT PRIMARY KEY NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    sealed BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    secret_version INTEGER CHECK (secret_version > 0),
    secret_sealed BLOB,
    secret_fingerprint BLOB,
    obtained_at INTEGER,
    expires_at INTEGER,
    retries INTEGER NOT NULL DEFAULT 0 CHECK (retries >= 0),
    last_retry_at INTEGER,
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    last_failure_at INTEGER,
    lease_id TEXT,
    lease_until INTEGER,
    CHECK ((secret_version IS NULL) = (secret_sealed IS NULL)),
    CHECK ((secret_version IS NULL) = (secret_fingerprint IS NULL)),
    CHECK ((lease_id IS NULL) = (lease_until IS NULL))
) STRICT;
