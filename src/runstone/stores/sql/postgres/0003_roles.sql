-- Who may do what (§TEN-12 to §TEN-17, §TEN-23, §TEN-25). Roles belong to the whole cluster: those that are there
-- already are used. None of them can log in; an operator's own logins are made members of one of them.

-- CREATE ROLE knows no IF NOT EXISTS, and another database of the cluster may be migrating at this moment.
DO $$
DECLARE
    wanted text;
    -- Since 16, who creates a role is a member that may neither use nor become it.
    becoming text := CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['runstone_owner', 'runstone_migrator', 'runstone_engine', 'runstone_api'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    IF NOT pg_has_role('runstone_migrator', 'runstone_owner', becoming) THEN
        GRANT runstone_owner TO runstone_migrator;
    END IF;
    -- Whoever migrates acts for the owner from here on.
    IF NOT pg_has_role('runstone_owner', becoming) THEN
        EXECUTE format('GRANT runstone_migrator TO %I', current_user);
    END IF;
END $$;

-- The feed's first epoch, while whoever migrates can still see every event.
SELECT runstone.feed_epoch();

-- Everything belongs to the owner, and nobody logs in as that.
ALTER SCHEMA runstone OWNER TO runstone_owner;
DO $$
DECLARE
    relation record;
    routine regprocedure;
BEGIN
    FOR relation IN
        SELECT oid::regclass AS name, relkind
        FROM pg_class
        WHERE relnamespace = 'runstone'::regnamespace AND relkind IN ('r', 'v')
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO runstone_owner',
            CASE relation.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, relation.name);
    END LOOP;
    FOR routine IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'runstone'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO runstone_owner', routine);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', routine);
    END LOOP;
END $$;

-- The tenant of this transaction: SELECT set_config('runstone.tenant', …, true). What is unset is empty
-- after the first transaction that set it.
CREATE FUNCTION runstone.tenant() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT nullif(current_setting('runstone.tenant', true), '')::uuid;
$$;
ALTER FUNCTION runstone.tenant() OWNER TO runstone_owner;
REVOKE ALL ON FUNCTION runstone.tenant() FROM PUBLIC;

-- The engine is trusted with all tenants. Everybody else, the owner too, has the tenant of the transaction, and
-- without one none. A later migration that makes a table with data of tenants calls this for it.
CREATE FUNCTION runstone.keep_tenants_apart(relation regclass) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', relation);
    EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', relation);
    EXECUTE format('CREATE POLICY every_tenant ON %s TO runstone_engine USING (true) WITH CHECK (true)', relation);
    EXECUTE format(
        'CREATE POLICY one_tenant ON %s TO runstone_api, runstone_owner '
        'USING (tenant_id = (SELECT runstone.tenant())) WITH CHECK (tenant_id = (SELECT runstone.tenant()))',
        relation);
END $$;
ALTER FUNCTION runstone.keep_tenants_apart(regclass) OWNER TO runstone_owner;
REVOKE ALL ON FUNCTION runstone.keep_tenants_apart(regclass) FROM PUBLIC;

SELECT runstone.keep_tenants_apart(c.oid)
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
WHERE c.relnamespace = 'runstone'::regnamespace AND c.relkind = 'r';

GRANT USAGE ON SCHEMA runstone TO runstone_engine, runstone_api;
GRANT EXECUTE ON FUNCTION runstone.tenant() TO runstone_engine, runstone_api;
GRANT SELECT ON ALL TABLES IN SCHEMA runstone TO runstone_engine, runstone_api;
REVOKE ALL ON runstone.workers FROM runstone_api;
DO $$
BEGIN
    IF to_regprocedure('runstone.summarized_runs()') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION runstone.summarized_runs() TO runstone_engine, runstone_api;
    END IF;
END $$;

-- The log is written once; no role changes or deletes it.
GRANT INSERT ON runstone.orchestration_events TO runstone_engine, runstone_api;
GRANT USAGE ON SEQUENCE runstone.orchestration_events_sequence_number_seq TO runstone_engine, runstone_api;
GRANT INSERT, UPDATE ON
    runstone.streams, runstone.signals, runstone.runs, runstone.steps, runstone.step_corrections, runstone.effects,
    runstone.outbox_events, runstone.tool_calls, runstone.run_queue, runstone.run_checkpoints
TO runstone_engine, runstone_api;

-- A run that has ended leaves the queue, and its checkpoints go.
GRANT DELETE ON runstone.run_queue, runstone.run_checkpoints TO runstone_engine, runstone_api;

-- Rows are made again from the log by the engine; the guards let it while it says so.
GRANT DELETE ON
    runstone.signals, runstone.runs, runstone.steps, runstone.step_corrections, runstone.effects,
    runstone.outbox_events, runstone.tool_calls
TO runstone_engine;
GRANT EXECUTE ON FUNCTION runstone.begin_rebuild(text), runstone.end_rebuild() TO runstone_engine;

-- Leases and epochs are the engine's own.
GRANT INSERT, UPDATE, DELETE ON runstone.workers TO runstone_engine;
GRANT INSERT ON runstone.feed_epochs TO runstone_engine;
GRANT UPDATE ON SEQUENCE runstone.orchestration_events_sequence_number_seq TO runstone_engine;
GRANT EXECUTE ON FUNCTION runstone.feed_epoch() TO runstone_engine, runstone_api;
