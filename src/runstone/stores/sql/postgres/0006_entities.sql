-- The system of record: entities as their last change left them (§ENT-26, §ENT-27). An entity belongs to no run; the
-- one that wrote to it last may be archived by now, so nothing refers to it.
CREATE TABLE runstone.entities (
    id              uuid NOT NULL,
    tenant_id       uuid NOT NULL,
    entity_type     text COLLATE "C" NOT NULL,
    entity_id       text COLLATE "C" NOT NULL,
    version         bigint NOT NULL CHECK (version >= 1),
    data            json NOT NULL,
    evidence_pack   json NOT NULL,
    source_id       text NOT NULL,
    source_hash     text NOT NULL,
    timestamp       timestamptz NOT NULL,
    inference       boolean NOT NULL,
    run_id          uuid NOT NULL,
    effect_id       uuid NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (id, tenant_id),
    UNIQUE (tenant_id, entity_type, entity_id)
) WITH (fillfactor = 70);

SELECT runstone.keep_tenants_apart('runstone.entities');
GRANT SELECT, INSERT, UPDATE ON runstone.entities TO runstone_engine, runstone_api;
-- Rows are made again from the log by the engine; the guards let it while it says so.
GRANT DELETE ON runstone.entities TO runstone_engine;

-- §TRN-36.
CREATE TRIGGER entities_rise BEFORE UPDATE ON runstone.entities
FOR EACH ROW WHEN (NEW.version <= OLD.version)
EXECUTE FUNCTION runstone.refuse('the version of an entity only rises', 'REBUILD');

CREATE TRIGGER entities_stay_themselves BEFORE UPDATE ON runstone.entities
FOR EACH ROW WHEN (
    (NEW.id, NEW.tenant_id, NEW.entity_type, NEW.entity_id) <> (OLD.id, OLD.tenant_id, OLD.entity_type, OLD.entity_id)
)
EXECUTE FUNCTION runstone.refuse('an entity stays the one that it is', 'REBUILD');

CREATE TRIGGER entities_no_delete BEFORE DELETE ON runstone.entities
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('an entity does not vanish', 'REBUILD');

CREATE TRIGGER entities_no_truncate BEFORE TRUNCATE ON runstone.entities
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('an entity does not vanish');

-- The shape in which they come in a batch of commits.
CREATE TYPE runstone.batch_entities AS (
    place         int,
    id            uuid,
    tenant_id     uuid,
    entity_type   text,
    entity_id     text,
    version       bigint,
    data          json,
    evidence_pack json,
    source_id     text,
    source_hash   text,
    timestamp     timestamptz,
    inference     boolean,
    run_id        uuid,
    effect_id     uuid,
    created_at    timestamptz,
    updated_at    timestamptz
);

-- The retention function again: what outlives runs, such as an entity, is never removed (§STO-56).
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
        WHERE s.id = ANY (its_streams) AND s.kind NOT IN ('RUN', 'SIGNAL')
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
