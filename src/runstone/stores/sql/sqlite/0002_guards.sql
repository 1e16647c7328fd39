-- Generated from the core's transition tables by tools/generate.py. Do not edit.

CREATE TRIGGER orchestration_events_no_update BEFORE UPDATE ON orchestration_events
WHEN NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'events are immutable');
END;

CREATE TRIGGER orchestration_events_no_delete BEFORE DELETE ON orchestration_events
WHEN NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'events are immutable');
END;

CREATE TRIGGER step_corrections_no_update BEFORE UPDATE ON step_corrections
WHEN NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'corrections are immutable');
END;

CREATE TRIGGER step_corrections_no_delete BEFORE DELETE ON step_corrections
WHEN NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'corrections are immutable');
END;

CREATE TRIGGER signals_frozen_update BEFORE UPDATE ON signals
WHEN OLD.status IN ('FAILED', 'PROCESSED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this signal has ended and is frozen');
END;

CREATE TRIGGER signals_frozen_delete BEFORE DELETE ON signals
WHEN OLD.status IN ('FAILED', 'PROCESSED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this signal has ended and is frozen');
END;

CREATE TRIGGER signals_moves BEFORE UPDATE OF status ON signals
WHEN OLD.status <> NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('FAILED', 'PROCESSED', 'PROCESSING')) OR (OLD.status = 'PROCESSING' AND NEW.status IN ('FAILED', 'PROCESSED')))
BEGIN
    SELECT RAISE(ABORT, 'no such transition of this signal');
END;

CREATE TRIGGER runs_frozen_update BEFORE UPDATE ON runs
WHEN OLD.status IN ('CANCELLED', 'COMPLETED', 'FAILED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this run has ended and is frozen');
END;

CREATE TRIGGER runs_frozen_delete BEFORE DELETE ON runs
WHEN OLD.status IN ('CANCELLED', 'COMPLETED', 'FAILED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this run has ended and is frozen');
END;

CREATE TRIGGER runs_moves BEFORE UPDATE OF status ON runs
WHEN OLD.status <> NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('APPROVED', 'CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')) OR (OLD.status = 'APPROVED' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')) OR (OLD.status = 'RUNNING' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')) OR (OLD.status = 'PAUSED' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'FAILED', 'PAUSED', 'RUNNING')))
BEGIN
    SELECT RAISE(ABORT, 'no such transition of this run');
END;

CREATE TRIGGER steps_frozen_update BEFORE UPDATE ON steps
WHEN OLD.status IN ('COMPLETED', 'FAILED', 'SKIPPED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this step has ended and is frozen');
END;

CREATE TRIGGER steps_frozen_delete BEFORE DELETE ON steps
WHEN OLD.status IN ('COMPLETED', 'FAILED', 'SKIPPED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this step has ended and is frozen');
END;

CREATE TRIGGER steps_moves BEFORE UPDATE OF status ON steps
WHEN OLD.status <> NEW.status AND NOT ((OLD.status = 'RUNNING' AND NEW.status IN ('COMPLETED', 'FAILED', 'SKIPPED')))
BEGIN
    SELECT RAISE(ABORT, 'no such transition of this step');
END;

CREATE TRIGGER effects_frozen_update BEFORE UPDATE ON effects
WHEN OLD.status IN ('CANCELLED', 'COMPLETED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this effect has ended and is frozen');
END;

CREATE TRIGGER effects_frozen_delete BEFORE DELETE ON effects
WHEN OLD.status IN ('CANCELLED', 'COMPLETED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this effect has ended and is frozen');
END;

CREATE TRIGGER effects_moves BEFORE UPDATE OF status ON effects
WHEN OLD.status <> NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'EXECUTING' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'FAILED' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'DEAD_LETTER' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')) OR (OLD.status = 'UNKNOWN' AND NEW.status IN ('CANCELLED', 'COMPLETED', 'DEAD_LETTER', 'EXECUTING', 'FAILED', 'PENDING', 'UNKNOWN')))
BEGIN
    SELECT RAISE(ABORT, 'no such transition of this effect');
END;

CREATE TRIGGER tool_calls_frozen_update BEFORE UPDATE ON tool_calls
WHEN OLD.status IN ('COMPLETED', 'FAILED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this tool call has ended and is frozen');
END;

CREATE TRIGGER tool_calls_frozen_delete BEFORE DELETE ON tool_calls
WHEN OLD.status IN ('COMPLETED', 'FAILED') AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'this tool call has ended and is frozen');
END;

CREATE TRIGGER tool_calls_moves BEFORE UPDATE OF status ON tool_calls
WHEN OLD.status <> NEW.status AND NOT ((OLD.status = 'PENDING' AND NEW.status IN ('COMPLETED', 'FAILED')))
BEGIN
    SELECT RAISE(ABORT, 'no such transition of this tool call');
END;
