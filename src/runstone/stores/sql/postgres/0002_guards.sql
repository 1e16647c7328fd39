-- Generated from the core's transition tables by tools/generate.py. Do not edit.

-- Refuses what a trigger found, unless maintenance of a kind that its further arguments name is under way.
CREATE FUNCTION runstone.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_NARGS > 1 AND EXISTS (SELECT 1 FROM runstone.maintenance WHERE kind = ANY (TG_ARGV[1:])) THEN
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '%', TG_ARGV[0]
        USING SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
END $$;

CREATE TRIGGER orchestration_events_no_update BEFORE UPDATE ON runstone.orchestration_events
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('events are immutable');

CREATE TRIGGER orchestration_events_no_delete BEFORE DELETE ON runstone.orchestration_events
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('events are immutable', 'RETENTION');

CREATE TRIGGER orchestration_events_no_truncate BEFORE TRUNCATE ON runstone.orchestration_events
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('events are immutable');

CREATE TRIGGER step_corrections_no_update BEFORE UPDATE ON runstone.step_corrections
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('corrections are immutable', 'REBUILD', 'RETENTION');

CREATE TRIGGER step_corrections_no_delete BEFORE DELETE ON runstone.step_corrections
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('corrections are immutable', 'REBUILD', 'RETENTION');

CREATE TRIGGER step_corrections_no_truncate BEFORE TRUNCATE ON runstone.step_corrections
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('corrections are immutable');

CREATE TRIGGER streams_no_way_back BEFORE UPDATE ON runstone.streams
FOR EACH ROW WHEN (
    NEW.last_seq < OLD.last_seq OR NEW.fence < OLD.fence OR (NEW.id, NEW.tenant_id) <> (OLD.id, OLD.tenant_id)
) EXECUTE FUNCTION runstone.refuse('the head of a stream does not go back');

CREATE TRIGGER streams_no_delete BEFORE DELETE ON runstone.streams
FOR EACH ROW EXECUTE FUNCTION runstone.refuse('a stream does not vanish', 'RETENTION');

CREATE TRIGGER streams_no_truncate BEFORE TRUNCATE ON runstone.streams
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('a stream does not vanish');

ALTER TABLE runstone.signals ADD CONSTRAINT signals_states CHECK (
    status IN ('FAILED', 'PENDING', 'PROCESSED', 'PROCESSING')
);

CREATE TRIGGER signals_frozen_update BEFORE UPDATE ON runstone.signals
FOR EACH ROW WHEN (
    OLD.status IN ('FAILED', 'PROCESSED')
) EXECUTE FUNCTION runstone.refuse('this signal has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER signals_frozen_delete BEFORE DELETE ON runstone.signals
FOR EACH ROW WHEN (
    OLD.status IN ('FAILED', 'PROCESSED')
) EXECUTE FUNCTION runstone.refuse('this signal has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER signals_no_truncate BEFORE TRUNCATE ON runstone.signals
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('rows of a signal that has ended are frozen');

CREATE TRIGGER signals_moves BEFORE UPDATE OF status ON runstone.signals
FOR EACH ROW WHEN (
    OLD.status IS DISTINCT FROM NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('FAILED', 'PROCESSED', 'PROCESSING')) OR (OLD.status = 'PROCESSING' AND NEW.status IN ('FAILED', 'PROCESSED')))
) EXECUTE FUNCTION runstone.refuse('no such transition of this signal');

ALTER TABLE runstone.runs ADD CONSTRAINT runs_states CHECK (
    status IN ('APPROVED', 'CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'PENDING', 'RUNNING')
);

ALTER TABLE runstone.runs ADD CONSTRAINT runs_exit_reason CHECK (
    status NOT IN ('FAILED', 'CANCELLED') OR exit_reason IS NOT NULL
);

CREATE TRIGGER runs_frozen_update BEFORE UPDATE ON runstone.runs
FOR EACH ROW WHEN (
    OLD.status IN ('CANCELLED', 'COMPLETED', 'FAILED')
) EXECUTE FUNCTION runstone.refuse('this run has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER runs_frozen_delete BEFORE DELETE ON runstone.runs
FOR EACH ROW WHEN (
    OLD.status IN ('CANCELLED', 'COMPLETED', 'FAILED')
) EXECUTE FUNCTION runstone.refuse('this run has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER runs_no_truncate BEFORE TRUNCATE ON runstone.runs
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('rows of a run that has ended are frozen');

CREATE TRIGGER runs_moves BEFORE UPDATE OF status ON runstone.runs
FOR EACH ROW WHEN (
    OLD.status IS DISTINCT FROM NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('APPROVED', 'CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')) OR (OLD.status = 'APPROVED' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')) OR (OLD.status = 'RUNNING' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')) OR (OLD.status = 'PAUSED' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')))
) EXECUTE FUNCTION runstone.refuse('no such transition of this run');

ALTER TABLE runstone.steps ADD CONSTRAINT steps_states CHECK (
    status IN ('COMPLETED', 'FAILED', 'RUNNING', 'SKIPPED')
);

CREATE TRIGGER steps_frozen_update BEFORE UPDATE ON runstone.steps
FOR EACH ROW WHEN (
    OLD.status IN ('COMPLETED', 'FAILED', 'SKIPPED')
) EXECUTE FUNCTION runstone.refuse('this step has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER steps_frozen_delete BEFORE DELETE ON runstone.steps
FOR EACH ROW WHEN (
    OLD.status IN ('COMPLETED', 'FAILED', 'SKIPPED')
) EXECUTE FUNCTION runstone.refuse('this step has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER steps_no_truncate BEFORE TRUNCATE ON runstone.steps
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('rows of a step that has ended are frozen');

CREATE TRIGGER steps_moves BEFORE UPDATE OF status ON runstone.steps
FOR EACH ROW WHEN (
    OLD.status IS DISTINCT FROM NEW.status AND NOT ((OLD.status = 'RUNNING' AND NEW.status IN ('COMPLETED', 'FAILED', 'SKIPPED')))
) EXECUTE FUNCTION runstone.refuse('no such transition of this step');

ALTER TABLE runstone.effects ADD CONSTRAINT effects_states CHECK (
    status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')
);

CREATE TRIGGER effects_frozen_update BEFORE UPDATE ON runstone.effects
FOR EACH ROW WHEN (
    OLD.status IN ('CANCELLED', 'COMPLETED')
) EXECUTE FUNCTION runstone.refuse('this effect has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER effects_frozen_delete BEFORE DELETE ON runstone.effects
FOR EACH ROW WHEN (
    OLD.status IN ('CANCELLED', 'COMPLETED')
) EXECUTE FUNCTION runstone.refuse('this effect has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER effects_no_truncate BEFORE TRUNCATE ON runstone.effects
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('rows of a effect that has ended are frozen');

CREATE TRIGGER effects_moves BEFORE UPDATE OF status ON runstone.effects
FOR EACH ROW WHEN (
    OLD.status IS DISTINCT FROM NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'EXECUTING' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'FAILED' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'DEAD_LETTER' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'UNKNOWN' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')))
) EXECUTE FUNCTION runstone.refuse('no such transition of this effect');

ALTER TABLE runstone.tool_calls ADD CONSTRAINT tool_calls_states CHECK (
    status IN ('COMPLETED', 'FAILED', 'PENDING')
);

CREATE TRIGGER tool_calls_frozen_update BEFORE UPDATE ON runstone.tool_calls
FOR EACH ROW WHEN (
    OLD.status IN ('COMPLETED', 'FAILED')
) EXECUTE FUNCTION runstone.refuse('this tool call has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER tool_calls_frozen_delete BEFORE DELETE ON runstone.tool_calls
FOR EACH ROW WHEN (
    OLD.status IN ('COMPLETED', 'FAILED')
) EXECUTE FUNCTION runstone.refuse('this tool call has ended and is frozen', 'REBUILD', 'RETENTION');

CREATE TRIGGER tool_calls_no_truncate BEFORE TRUNCATE ON runstone.tool_calls
FOR EACH STATEMENT EXECUTE FUNCTION runstone.refuse('rows of a tool call that has ended are frozen');

CREATE TRIGGER tool_calls_moves BEFORE UPDATE OF status ON runstone.tool_calls
FOR EACH ROW WHEN (
    OLD.status IS DISTINCT FROM NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('COMPLETED', 'FAILED')))
) EXECUTE FUNCTION runstone.refuse('no such transition of this tool call');
