-- The one step about leases that takes several statements and is asked for all the time.

-- Each statement of a volatile function sees what is committed when it begins, which the check at the end needs.
CREATE FUNCTION open_lease_v1(
    new_id bytea, new_owner text, new_key text, new_provider text, new_connection text, new_generation bigint,
    begins boolean, acquired bigint, renewed bigint, expires bigint, latest bigint
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    made bigint;
BEGIN
    -- A replica that stood still since it looked would make a row that held before others did that have come and gone.
    IF (extract(epoch FROM clock_timestamp()) * 1000)::bigint > latest THEN
        RAISE serialization_failure USING MESSAGE = 'what a lease was decided on was seen too long ago';
    END IF;
    IF begins THEN
        INSERT INTO lease_generations AS old (owner, last) VALUES (new_owner, new_generation)
            ON CONFLICT (owner) DO UPDATE SET last = excluded.last WHERE old.last < excluded.last;
        IF NOT FOUND THEN
            RAISE serialization_failure USING MESSAGE = 'the owner had a later generation meanwhile';
        END IF;
    END IF;
    INSERT INTO leases (id, owner, key_id, provider, connection, generation, acquired_at, renewed_at, expires_at)
        VALUES (new_id, new_owner, new_key, new_provider, new_connection, new_generation, acquired, renewed, expires)
        RETURNING seq INTO made;
    -- A lease may have come and gone since this one was decided, and left something in flight. From the insert on there can
    -- be no other on this connection, so what is seen now is all there will be.
    IF EXISTS (SELECT FROM lease_activity
               WHERE connection = new_connection AND (owner, generation) <> (new_owner, new_generation)) THEN
        RAISE serialization_failure USING MESSAGE = 'something was sent over the connection meanwhile';
    END IF;
    RETURN made;
END $$;
COMMENT ON FUNCTION open_lease_v1 IS 'Makes a row of leases and returns its seq. begins: counts the generation, too. latest: ms since the Unix epoch after which nothing is made. Error 40001: another command was first.';
