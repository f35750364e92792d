-- Pages of events, each along an index.

-- Made while transitions and entries wait; replicas keep both and write them later. To make them beside writers would wait
-- for the other replicas, which wait for this migration. Where a table is so large that this takes too long, make them
-- before, by hand and beside writers (docs/operations/durable-store.md): what is there is left.
CREATE INDEX IF NOT EXISTS transitions_newest_of_connection ON transitions (connection, at DESC, seq DESC) WHERE connection IS NOT NULL;
CREATE INDEX IF NOT EXISTS admin_audit_newest ON admin_audit (at DESC, seq DESC);
