-- Schedules: tasks for later, as their last event left them (§ENT-30, §ENT-31). A schedule belongs to no run; the one
-- that asked for it may be archived by now, so nothing refers to it.
CREATE TABLE schedules (
    id              TEXT PRIMARY KEY,
    tenant_id       TEXT NOT NULL,
    name            TEXT NOT NULL,
    version         INTEGER NOT NULL CHECK (version >= 1),
    task            TEXT NOT NULL,
    cron            TEXT,
    timezone        TEXT NOT NULL,
    arguments       TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (status IN ('ACTIVE', 'CANCELLED', 'DONE')),
    next_at         INTEGER,
    fired           INTEGER NOT NULL CHECK (fired >= 0),
    last_fired_at   INTEGER,
    last_run_id     TEXT,
    run_id          TEXT NOT NULL,
    effect_id       TEXT NOT NULL,
    scheduled_seq   INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    UNIQUE (tenant_id, name),
    CHECK ((status = 'ACTIVE') = (next_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- What is due: those of tasks that nobody has a handler for stay at its beginning, and are few.
CREATE INDEX schedules_due ON schedules (next_at, id) WHERE status = 'ACTIVE';

-- §TRN-38.
CREATE TRIGGER schedules_never_fall BEFORE UPDATE ON schedules
WHEN (NEW.version < OLD.version OR NEW.fired < OLD.fired) AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'neither the version of a schedule nor its count ever falls');
END;

CREATE TRIGGER schedules_stay_themselves BEFORE UPDATE ON schedules
WHEN (NEW.id, NEW.tenant_id, NEW.name) <> (OLD.id, OLD.tenant_id, OLD.name)
    AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'a schedule stays the one that it is');
END;

CREATE TRIGGER schedules_no_delete BEFORE DELETE ON schedules
WHEN NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'a schedule does not vanish');
END;
