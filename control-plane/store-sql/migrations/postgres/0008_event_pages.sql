-- Pages of events, each along an index.

-- Made while transitions and entries wait; replicas keep both and write them later. To make them beside writers would wait
-- for the other replicas, which wait for this migration.
CREATE INDEX transitions_newest_of_connection ON transitions (connection, at DESC, seq DESC) WHERE connection IS NOT NULL;
CREATE INDEX admin_audit_newest ON admin_audit (at DESC, seq DESC);
