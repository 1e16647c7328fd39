-- Schedules: tasks for later, as their last event left them (§ENT-30, §ENT-31). A schedule belongs to no run; the one
-- that asked for it may be archived by now, so nothing refers to it.
CREATE TABLE runstone.schedules (
    id              uuid NOT NULL,
    tenant_id       uuid NOT NULL,
    name            text COLLATE "C" NOT NULL,
    version         bigint NOT NULL CHECK (version >= 1),
    task            text COLLATE "C" NOT NULL,
    cron            text,
    timezone        text NOT NULL,
    arguments       json NOT NULL,
    status          text NOT NULL CHECK (status IN ('ACTIVE', 'CANCELLED', 'DONE')),
    next_at         timestamptz,
    fired           bigint NOT NULL CHECK (fired >= 0),
    last_fired_at   timestamptz,
    last_run_id     uuid,
    run_id          uuid NOT NULL,
    effect_id       uuid NOT NULL,
    scheduled_seq   bigint NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (id, tenant_id),
    UNIQUE (tenant_id, name),
    CONSTRAINT schedules_due_while_active CHECK ((status = 'ACTIVE') = (next_at IS NOT NULL))
) WITH (fillfactor = 70);

-- What is due: those of tasks that nobody has a handler for stay at its beginning, and are few.
CREATE INDEX schedules_due ON runstone.schedules (next_at, id) WHERE status = 'ACTIVE';

SELECT runstone.keep_tenants_apart('runstone.schedules');
GRANT SELECT, INSERT, UPDATE ON runstone.schedules TO runstone_engine, runstone_api;
-- Rows are made again from the log by the engine; the guards let it while it says so.
GRANT DELETE ON runstone.schedules TO runstone_engine;

-- §TRN-38.
CREATE TRIGGER schedules_never_fall BEFORE UPDATE ON runstone.schedules
FOR EACH ROW WHEN (NEW.version < OLD.version OR NEW.fired < OLD.fired)
EXECUTE FUNCTION runstone.refuse('neither the version of a schedule nor its count ever falls', 'REBUILD');

CREATE TRIGGER schedules_stay_themselves BEFORE UPDATE ON runstone.schedules
FOR EACH ROW WHEN ((NEW.id, NEW.tenant_id, NEW.name) <> (OLD.id, OLD.tenant_id, OLD.name))
EXECUTE FUNCTION runstone.refuse('a schedule stays the one that it is', 'REBUILD');

CREATE TRIGGER schedules_no_delete BEFORE DELETE ON runstone.schedules
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('a schedule does not vanish', 'REBUILD');

CREATE TRIGGER schedules_no_truncate BEFORE TRUNCATE ON runstone.schedules
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('a schedule does not vanish');

-- The shape in which they come in a batch of commits.
CREATE TYPE runstone.batch_schedules AS (
    place         int,
    id            uuid,
    tenant_id     uuid,
    name          text,
    version       bigint,
    task          text,
    cron          text,
    timezone      text,
    arguments     json,
    status        text,
    next_at       timestamptz,
    fired         bigint,
    last_fired_at timestamptz,
    last_run_id   uuid,
    run_id        uuid,
    effect_id     uuid,
    scheduled_seq bigint,
    created_at    timestamptz,
    updated_at    timestamptz
);
