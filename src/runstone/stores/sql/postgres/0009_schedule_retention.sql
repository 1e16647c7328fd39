-- Schedules that are over go as runs do, once they have rested (§STO-56, §STO-57).

-- Retention looks at the oldest first.
CREATE INDEX schedules_over ON runstone.schedules (created_at, id) WHERE status IN ('CANCELLED', 'DONE');

-- §TRN-38.
DROP TRIGGER schedules_no_delete ON runstone.schedules;
CREATE TRIGGER schedules_no_delete BEFORE DELETE ON runstone.schedules
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('a schedule does not vanish', 'REBUILD', 'RETENTION');

-- The retention function again: of what outlives runs, a schedule that is over may go.
CREATE OR REPLACE FUNCTION runstone.forget_correlation(whose uuid, correlation uuid, stones json)
RETURNS TABLE (outcome text, of_stream uuid, wanted bigint, actual bigint, why text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text := coalesce(current_setting('runstone.tenant', true), '');
    its_streams uuid[];
BEGIN
    PERFORM set_config('runstone.tenant', whose::text, true);
    its_streams := ARRAY(
        SELECT DISTINCT e.stream_id
        FROM runstone.orchestration_events AS e
        WHERE e.tenant_id = whose AND e.correlation_id = correlation
    );
    PERFORM 1 FROM runstone.streams AS s WHERE s.id = ANY (its_streams) ORDER BY s.id FOR UPDATE;
    -- Whoever waited for that lock sees from here on what the one before has left.
    its_streams := ARRAY(
        SELECT DISTINCT e.stream_id
        FROM runstone.orchestration_events AS e
        WHERE e.tenant_id = whose AND e.correlation_id = correlation
    );

    IF cardinality(its_streams) = 0 AND NOT EXISTS (
        SELECT 1
        FROM json_populate_recordset(NULL::runstone.tombstones, stones) AS n
        LEFT JOIN runstone.tombstones AS t
            ON t.stream_id = n.stream_id AND t.last_seq = n.last_seq AND t.head = n.head
        WHERE t.stream_id IS NULL
    ) THEN
        outcome := 'GONE';
    END IF;

    IF outcome IS NULL THEN
        SELECT 'STALE', coalesce(s.id, n.stream_id), coalesce(n.last_seq, 0), coalesce(s.last_seq, 0)
        INTO outcome, of_stream, wanted, actual
        FROM (SELECT id, last_seq, head FROM runstone.streams WHERE id = ANY (its_streams)) AS s
        FULL JOIN json_populate_recordset(NULL::runstone.tombstones, stones) AS n ON n.stream_id = s.id
        WHERE (s.last_seq, s.head) IS DISTINCT FROM (n.last_seq, n.head)
        LIMIT 1;
    END IF;

    IF outcome IS NULL THEN
        SELECT 'LIVE', format('%s %s outlives the runs that write to it', lower(s.kind), s.id)
        INTO outcome, why
        FROM runstone.streams AS s
        WHERE s.id = ANY (its_streams) AND s.kind NOT IN ('RUN', 'SIGNAL', 'SCHEDULE')
        LIMIT 1;
    END IF;

    IF outcome IS NULL THEN
        SELECT 'LIVE', format('schedule %s is active', d.id)
        INTO outcome, why
        FROM runstone.schedules AS d
        WHERE d.id = ANY (its_streams) AND d.status NOT IN ('CANCELLED', 'DONE')
        LIMIT 1;
    END IF;

    IF outcome IS NULL THEN
        SELECT 'LIVE', format('run %s has not ended', r.id)
        INTO outcome, why
        FROM runstone.runs AS r
        WHERE r.id = ANY (its_streams) AND r.status NOT IN ('CANCELLED', 'COMPLETED', 'FAILED')
        LIMIT 1;
    END IF;

    IF outcome IS NULL THEN
        SELECT 'LIVE', format('effect %s of run %s is %s', e.id, e.run_id, e.status)
        INTO outcome, why
        FROM runstone.effects AS e
        WHERE e.run_id = ANY (its_streams) AND e.status NOT IN ('CANCELLED', 'COMPLETED')
        LIMIT 1;
    END IF;

    IF outcome IS NULL THEN
        INSERT INTO runstone.maintenance (reason, kind)
        VALUES (format('retention of %s', correlation), 'RETENTION');
        DELETE FROM runstone.run_queue WHERE run_id = ANY (its_streams);
        DELETE FROM runstone.outbox_events
        WHERE id IN (SELECT e.id FROM runstone.effects AS e WHERE e.run_id = ANY (its_streams));
        DELETE FROM runstone.tool_calls WHERE run_id = ANY (its_streams);
        DELETE FROM runstone.step_corrections WHERE run_id = ANY (its_streams);
        DELETE FROM runstone.effects WHERE run_id = ANY (its_streams);
        DELETE FROM runstone.steps WHERE run_id = ANY (its_streams);
        DELETE FROM runstone.run_checkpoints WHERE run_id = ANY (its_streams);
        DELETE FROM runstone.runs WHERE id = ANY (its_streams);
        DELETE FROM runstone.signals WHERE id = ANY (its_streams);
        DELETE FROM runstone.schedules WHERE id = ANY (its_streams);
        DELETE FROM runstone.orchestration_events WHERE stream_id = ANY (its_streams);
        DELETE FROM runstone.streams WHERE id = ANY (its_streams);
        INSERT INTO runstone.tombstones
        SELECT * FROM json_populate_recordset(NULL::runstone.tombstones, stones);
        DELETE FROM runstone.maintenance WHERE kind = 'RETENTION';
        outcome := 'REMOVED';
    END IF;
    PERFORM set_config('runstone.tenant', before, true);
    RETURN NEXT;
END $$;
