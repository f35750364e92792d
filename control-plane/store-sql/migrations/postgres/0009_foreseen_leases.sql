-- A lease for who has not looked, but foresees what a look would show.

-- Begins when it is called, and after whatever ended before. NULL: it would not have been decided so, and nothing is written;
-- or 40001, as in the function that it calls, and where another ended since.
CREATE FUNCTION open_foreseen_lease_v1(
    new_id bytea, new_owner text, new_key text, new_provider text, new_connection text, new_generation bigint,
    foreseen bigint, expires bigint, latest bigint, passed_over text[], OUT made bigint, OUT begun bigint
) LANGUAGE plpgsql VOLATILE
-- A session keeps its plans. Those made while the table was small would read all of it, long after it has grown.
SET enable_seqscan TO off
AS $$
DECLARE
    now bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
    IF now BETWEEN foreseen AND latest
        AND NOT EXISTS (SELECT FROM leases WHERE owner = new_owner AND ended_at IS NULL)
        AND NOT EXISTS (SELECT FROM leases WHERE connection = new_connection AND ended_at IS NULL)
        AND NOT EXISTS (SELECT FROM lease_activity WHERE connection = new_connection)
        -- The planner must not see how long the list is: it would plan anew for each.
        AND (SELECT count(*) FROM leases
             WHERE connection = ANY ((SELECT passed_over)::text[]) AND ended_at IS NULL AND expires_at > now)
            = cardinality(passed_over)
    THEN
        made := open_lease_v1(new_id, new_owner, new_key, new_provider, new_connection, new_generation, true, now, now,
            expires, latest);
        begun := now;
        -- It may have waited since it read the clock, while another lease came and went. From the insert on there can be no
        -- other of this connection, nor of this owner, so what is seen now is all there will be.
        IF EXISTS (SELECT FROM leases
                   WHERE ended_at > begun AND (connection = new_connection OR owner = new_owner)) THEN
            RAISE serialization_failure USING MESSAGE = 'another lease has ended since';
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION open_foreseen_lease_v1 IS 'Makes a row of leases if the owner has none, nobody has the connection, nothing is registered on it and all connections that are passed over are leased. made: its seq. foreseen, latest: ms since the Unix epoch between which it may begin.';
