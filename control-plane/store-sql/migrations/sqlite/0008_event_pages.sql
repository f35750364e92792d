-- Pages of events, each along an index.

CREATE INDEX transitions_newest_of_connection ON transitions (connection, at DESC, seq DESC) WHERE connection IS NOT NULL;
CREATE INDEX admin_audit_newest ON admin_audit (at DESC, seq DESC);
