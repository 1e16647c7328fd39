-- What is left of correlations that were archived, what keeps it so, and the one function that removes them
-- (§STO-37, §STO-39, §STO-51 to §STO-53).

-- One row where a stream was: the proof of what was there, where that is now, and what a duplicate is known by.
CREATE TABLE runstone.tombstones (
    stream_id       uuid NOT NULL,
    tenant_id       uuid NOT NULL,
    kind            text NOT NULL,
    last_seq        bigint NOT NULL,
    head            bytea NOT NULL,
    correlation_id  uuid NOT NULL,
    source_channel  text COLLATE "C",
    source_id       text COLLATE "C",
    source_hash     text,
    signal_id       uuid,
    run_key         text COLLATE "C",
    archive         text NOT NULL,
    bundle          text NOT NULL,
    bundle_sha256   text NOT NULL,
    removed_at      timestamptz NOT NULL,
    digest          text NOT NULL,
    PRIMARY KEY (stream_id, tenant_id)
);
CREATE INDEX tombstones_by_correlation ON runstone.tombstones (tenant_id, correlation_id);
CREATE UNIQUE INDEX tombstones_by_source ON runstone.tombstones (tenant_id, source_channel, source_id)
WHERE source_id IS NOT NULL;
CREATE UNIQUE INDEX tombstones_by_key ON runstone.tombstones (tenant_id, run_key) WHERE run_key IS NOT NULL;

-- Retention looks at the oldest first.
CREATE INDEX signals_by_age ON runstone.signals (ingested_at, id);

ALTER TABLE runstone.tombstones ENABLE ROW LEVEL SECURITY;
ALTER TABLE runstone.tombstones FORCE ROW LEVEL SECURITY;
CREATE POLICY every_tenant ON runstone.tombstones TO runstone_engine USING (true) WITH CHECK (true);
CREATE POLICY one_tenant ON runstone.tombstones TO runstone_api, runstone_owner
USING (tenant_id = (SELECT runstone.tenant())) WITH CHECK (tenant_id = (SELECT runstone.tenant()));
GRANT SELECT, DELETE ON runstone.tombstones TO runstone_engine, runstone_api;

CREATE TRIGGER tombstones_no_update BEFORE UPDATE ON runstone.tombstones
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('tombstones are immutable');

CREATE TRIGGER tombstones_no_truncate BEFORE TRUNCATE ON runstone.tombstones
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('tombstones are immutable');

-- It goes when its stream is back, and not before.
CREATE FUNCTION runstone.keep_tombstone() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM runstone.streams
        WHERE id = OLD.stream_id AND last_seq = OLD.last_seq AND head = OLD.head
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'a tombstone stays until its stream is back'
        USING SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END $$;

CREATE TRIGGER tombstones_no_delete BEFORE DELETE ON runstone.tombstones
FOR EACH ROW EXECUTE FUNCTION runstone.keep_tombstone();

-- A stream that was archived comes back whole, and takes its tombstone away; anything else is refused. With the rights
-- of whoever writes it, so that nobody reaches the tombstone of another tenant.
CREATE FUNCTION runstone.refuse_archived_stream() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runstone.tombstones WHERE stream_id = NEW.id) THEN
        DELETE FROM runstone.tombstones
        WHERE stream_id = NEW.id AND tenant_id = NEW.tenant_id AND last_seq = NEW.last_seq AND head = NEW.head;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'stream % was archived, and comes back whole or not at all', NEW.id
                USING ERRCODE = 'unique_violation', SCHEMA = 'runstone', TABLE = 'tombstones', CONSTRAINT = 'tombstones_pkey';
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER streams_archived AFTER INSERT ON runstone.streams
FOR EACH ROW EXECUTE FUNCTION runstone.refuse_archived_stream();

-- The same signal is not processed twice, however late it comes.
CREATE FUNCTION runstone.refuse_archived_signal() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM runstone.tombstones
        WHERE tenant_id = NEW.tenant_id
            AND source_channel = NEW.source_channel
            AND source_id = NEW.source_id
            AND stream_id <> NEW.id
    ) THEN
        RAISE EXCEPTION 'this signal was archived'
            USING ERRCODE = 'unique_violation', SCHEMA = 'runstone', TABLE = 'tombstones', CONSTRAINT = 'tombstones_by_source';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER signals_archived AFTER INSERT ON runstone.signals
FOR EACH ROW EXECUTE FUNCTION runstone.refuse_archived_signal();

-- A run's key stays its own.
CREATE FUNCTION runstone.refuse_archived_run() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1
        FROM runstone.tombstones
        WHERE tenant_id = NEW.tenant_id AND run_key = NEW.key AND stream_id <> NEW.id
    ) THEN
        RAISE EXCEPTION 'the run with this key was archived'
            USING ERRCODE = 'unique_violation', SCHEMA = 'runstone', TABLE = 'tombstones', CONSTRAINT = 'tombstones_by_key';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER runs_archived AFTER INSERT ON runstone.runs
FOR EACH ROW WHEN (NEW.key IS NOT NULL) EXECUTE FUNCTION runstone.refuse_archived_run();

-- The retention function: puts tombstones in the place of all streams of one correlation of one tenant, or says why
-- not. The streams are locked first, in the order in which commits lock them, and looked at after that.
CREATE FUNCTION runstone.forget_correlation(whose uuid, correlation uuid, stones json)
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

REVOKE ALL ON FUNCTION
    runstone.keep_tombstone(),
    runstone.refuse_archived_stream(),
    runstone.refuse_archived_signal(),
    runstone.refuse_archived_run(),
    runstone.forget_correlation(uuid, uuid, json)
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION runstone.forget_correlation(uuid, uuid, json) TO runstone_engine;
