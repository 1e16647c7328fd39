-- The tables of the log and of what is folded from it.
-- Ids are UUIDs in text, times microseconds since 1970 in UTC, payloads JSON text exactly as written.

-- The append authority: every commit is compared with the row of each of its streams.
CREATE TABLE streams (
    id          TEXT PRIMARY KEY,
    tenant_id   TEXT NOT NULL,
    kind        TEXT NOT NULL,
    last_seq    INTEGER NOT NULL,
    head        TEXT NOT NULL,
    last_at     INTEGER NOT NULL,
    fence       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The log. An entity's events are found through its stream, so there is one index less to write for each
-- event than there are questions about it. The sequence number is the order of commit: one writer at a time holds the file.
CREATE TABLE orchestration_events (
    sequence_number     INTEGER PRIMARY KEY AUTOINCREMENT,
    id                  TEXT NOT NULL UNIQUE,
    tenant_id           TEXT NOT NULL,
    stream_id           TEXT NOT NULL,
    run_id              TEXT,
    run_seq             INTEGER NOT NULL,
    event_type          TEXT NOT NULL,
    event_version       INTEGER NOT NULL,
    aggregate_type      TEXT NOT NULL,
    aggregate_id        TEXT NOT NULL,
    event_data          TEXT NOT NULL,
    idempotency_key     TEXT NOT NULL,
    correlation_id      TEXT NOT NULL,
    causation_id        TEXT,
    actor               TEXT NOT NULL,
    occurred_at         INTEGER NOT NULL,
    step_key            TEXT,
    logical_attempt     INTEGER,
    engine_attempt      INTEGER,
    control_signal_id   TEXT,
    adapter_version     TEXT,
    engine_run_ref      TEXT,
    trace_id            TEXT NOT NULL,
    span_id             TEXT NOT NULL,
    prev_hash           TEXT NOT NULL,
    persisted_at        INTEGER NOT NULL,
    UNIQUE (stream_id, run_seq),
    UNIQUE (stream_id, idempotency_key)
) STRICT;
CREATE INDEX events_by_correlation ON orchestration_events (tenant_id, correlation_id, sequence_number);

CREATE TABLE signals (
    id                  TEXT PRIMARY KEY,
    tenant_id           TEXT NOT NULL,
    signal_type         TEXT NOT NULL,
    source_channel      TEXT NOT NULL,
    source_id           TEXT NOT NULL,
    source_hash         TEXT NOT NULL,
    normalized_payload  TEXT NOT NULL,
    received_at         INTEGER NOT NULL,
    ingested_at         INTEGER NOT NULL,
    processed_at        INTEGER,
    status              TEXT NOT NULL CHECK (status IN ('PENDING', 'PROCESSING', 'PROCESSED', 'FAILED')),
    correlation_id      TEXT NOT NULL,
    ingested_by         TEXT,
    UNIQUE (tenant_id, source_channel, source_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX signals_by_status ON signals (tenant_id, status, received_at);
CREATE INDEX signals_by_correlation ON signals (correlation_id);

CREATE TABLE runs (
    id                      TEXT PRIMARY KEY,
    tenant_id               TEXT NOT NULL,
    signal_id               TEXT NOT NULL REFERENCES signals (id),
    run_type                TEXT NOT NULL,
    project                 TEXT NOT NULL,
    environment             TEXT NOT NULL,
    plan_id                 TEXT NOT NULL,
    plan_version            TEXT NOT NULL,
    run_request_id          TEXT NOT NULL,
    key                     TEXT,
    created_at              INTEGER NOT NULL,
    started_at              INTEGER,
    completed_at            INTEGER,
    status                  TEXT NOT NULL CHECK (
        status IN ('PENDING', 'APPROVED', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
    ),
    exit_reason             TEXT,
    error_details           TEXT,
    result                  TEXT,
    correlation_id          TEXT NOT NULL,
    causation_id            TEXT,
    orchestrator_version    TEXT NOT NULL,
    engine_run_ref          TEXT,
    generation              INTEGER NOT NULL,
    total_steps             INTEGER NOT NULL,
    failed_steps            INTEGER NOT NULL,
    fold_version            INTEGER NOT NULL,
    metadata                TEXT,
    CHECK (status NOT IN ('FAILED', 'CANCELLED') OR exit_reason IS NOT NULL),
    UNIQUE (tenant_id, project, environment, plan_id, plan_version, run_request_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX runs_by_key ON runs (tenant_id, key) WHERE key IS NOT NULL;
CREATE INDEX runs_by_status ON runs (tenant_id, status, created_at);
CREATE INDEX runs_by_signal ON runs (signal_id);
CREATE INDEX runs_by_correlation ON runs (correlation_id);

CREATE TABLE steps (
    id                  TEXT PRIMARY KEY,
    tenant_id           TEXT NOT NULL,
    run_id              TEXT NOT NULL REFERENCES runs (id),
    step_index          INTEGER NOT NULL,
    step_type           TEXT NOT NULL,
    step_key            TEXT NOT NULL,
    generation          INTEGER NOT NULL,
    logical_attempt     INTEGER NOT NULL,
    engine_attempt      INTEGER,
    started_at          INTEGER NOT NULL,
    completed_at        INTEGER,
    status              TEXT NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')),
    input_context       TEXT NOT NULL,
    input_digest        TEXT NOT NULL,
    output_result       TEXT,
    specialist_id       TEXT,
    error_details       TEXT,
    skip_reason         TEXT,
    retry_count         INTEGER NOT NULL,
    artifacts           TEXT,
    wait_name           TEXT,
    wait_deadline       INTEGER,
    correlation_id      TEXT NOT NULL,
    metadata            TEXT,
    UNIQUE (run_id, step_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX steps_by_status ON steps (tenant_id, status, started_at);

CREATE TABLE step_corrections (
    id              TEXT PRIMARY KEY,
    tenant_id       TEXT NOT NULL,
    run_id          TEXT NOT NULL REFERENCES runs (id),
    step_id         TEXT NOT NULL REFERENCES steps (id),
    version         INTEGER NOT NULL,
    output_result   TEXT NOT NULL,
    reason          TEXT NOT NULL,
    corrected_at    INTEGER NOT NULL,
    corrected_by    TEXT NOT NULL,
    correlation_id  TEXT NOT NULL,
    UNIQUE (step_id, version)
) STRICT, WITHOUT ROWID;
CREATE INDEX step_corrections_by_run ON step_corrections (run_id);

CREATE TABLE effects (
    id                  TEXT PRIMARY KEY,
    tenant_id           TEXT NOT NULL,
    run_id              TEXT NOT NULL REFERENCES runs (id),
    step_id             TEXT NOT NULL REFERENCES steps (id),
    effect_type         TEXT NOT NULL,
    effect_spec         TEXT NOT NULL,
    idempotency_key     TEXT NOT NULL,
    requested_at        INTEGER NOT NULL,
    executed_at         INTEGER,
    status              TEXT NOT NULL CHECK (
        status IN ('PENDING', 'EXECUTING', 'FAILED', 'DEAD_LETTER', 'UNKNOWN', 'COMPLETED', 'CANCELLED')
    ),
    execution_result    TEXT,
    error_details       TEXT,
    retry_count         INTEGER NOT NULL,
    max_retries         INTEGER NOT NULL,
    next_retry_at       INTEGER,
    critical            INTEGER NOT NULL,
    delivery            TEXT NOT NULL,
    correlation_id      TEXT NOT NULL,
    metadata            TEXT,
    UNIQUE (tenant_id, idempotency_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX effects_by_status ON effects (tenant_id, status, requested_at);
CREATE INDEX effects_by_run ON effects (run_id);
CREATE INDEX effects_by_step ON effects (step_id);

-- The outbox: effects as the dispatcher sees them. `owner`, `fence` and `held_until`, before which nobody may claim
-- it, are its lease, and no history.
CREATE TABLE outbox_events (
    id                  TEXT PRIMARY KEY REFERENCES effects (id),
    tenant_id           TEXT NOT NULL,
    event_type          TEXT NOT NULL,
    payload             TEXT NOT NULL,
    idempotency_key     TEXT NOT NULL,
    created_at          INTEGER NOT NULL,
    processed_at        INTEGER,
    status              TEXT NOT NULL,
    retry_count         INTEGER NOT NULL,
    max_retries         INTEGER NOT NULL,
    next_retry_at       INTEGER,
    result              TEXT,
    error_details       TEXT,
    correlation_id      TEXT NOT NULL,
    aggregate_type      TEXT NOT NULL,
    aggregate_id        TEXT NOT NULL,
    owner               TEXT,
    fence               INTEGER NOT NULL DEFAULT 0,
    held_until          INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant_id, idempotency_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_by_status ON outbox_events (tenant_id, status, created_at);
CREATE INDEX outbox_due ON outbox_events (tenant_id, max(coalesce(next_retry_at, created_at), held_until))
WHERE status IN ('PENDING', 'FAILED', 'PROCESSING');

CREATE TABLE tool_calls (
    id                      TEXT PRIMARY KEY,
    tenant_id               TEXT NOT NULL,
    run_id                  TEXT NOT NULL REFERENCES runs (id),
    step_id                 TEXT NOT NULL REFERENCES steps (id),
    tool_name               TEXT NOT NULL,
    tool_args               TEXT NOT NULL,
    called_at               INTEGER NOT NULL,
    completed_at            INTEGER,
    status                  TEXT NOT NULL CHECK (status IN ('PENDING', 'COMPLETED', 'FAILED')),
    result                  TEXT,
    error_details           TEXT,
    execution_duration_ms   INTEGER,
    cache_hit               INTEGER NOT NULL,
    correlation_id          TEXT NOT NULL,
    metadata                TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX tool_calls_by_step ON tool_calls (step_id, called_at);
CREATE INDEX tool_calls_by_run ON tool_calls (run_id);
CREATE INDEX tool_calls_by_duration ON tool_calls (tool_name, execution_duration_ms);

-- One narrow row per unfinished run. `owner` and `attempts` are its lease, and no history.
CREATE TABLE run_queue (
    run_id      TEXT PRIMARY KEY REFERENCES runs (id),
    tenant_id   TEXT NOT NULL,
    handler     TEXT NOT NULL,
    code_rank   TEXT NOT NULL,
    lane        TEXT,
    lane_limit  INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    wake_at     INTEGER,
    news_seq    INTEGER NOT NULL,
    owner       TEXT,
    attempts    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX run_queue_due ON run_queue (tenant_id, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX run_queue_by_lane ON run_queue (tenant_id, lane, started, run_id) WHERE lane IS NOT NULL;
CREATE INDEX run_queue_by_owner ON run_queue (owner) WHERE owner IS NOT NULL;

-- Operational rows: safe to lose.
CREATE TABLE workers (
    id          TEXT PRIMARY KEY,
    lease_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE run_checkpoints (
    id                  TEXT PRIMARY KEY,
    tenant_id           TEXT NOT NULL,
    run_id              TEXT NOT NULL,
    checkpoint_index    INTEGER NOT NULL,
    checkpoint_data     BLOB NOT NULL,
    created_at          INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    size_bytes          INTEGER NOT NULL,
    compressed          INTEGER NOT NULL,
    correlation_id      TEXT NOT NULL,
    UNIQUE (run_id, checkpoint_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX checkpoints_by_expiry ON run_checkpoints (expires_at);

-- A row in here, in the transaction that does the work and in no other, lets maintenance past the triggers.
-- It refers to a row that cannot exist, which is looked at when the transaction ends: one that leaves its
-- row behind cannot be committed.
CREATE TABLE maintenance (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    reason  TEXT NOT NULL,
    over    INTEGER NOT NULL DEFAULT 2 REFERENCES maintenance (id) DEFERRABLE INITIALLY DEFERRED
) STRICT;

CREATE VIEW run_summary AS
SELECT
    id,
    tenant_id,
    status,
    started_at,
    completed_at,
    coalesce(completed_at / 1000000.0, (julianday('now') - 2440587.5) * 86400.0) - started_at / 1000000.0
        AS duration_seconds,
    total_steps,
    failed_steps,
    CAST(total_steps - failed_steps AS REAL) / nullif(total_steps, 0) AS success_rate
FROM runs;
