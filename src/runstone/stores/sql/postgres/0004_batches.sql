-- The shapes in which a batch of commits comes: rows of a table, each behind the place of its commit in the
-- batch. They follow the structs of the core, in the order of their fields. A shape is never changed, or writers of
-- two versions could not work side by side: whoever needs another gives it another name.

CREATE TYPE runstone.batch_streams AS (
    place        int,
    id           uuid,
    tenant_id    uuid,
    kind         text,
    expected_seq bigint,
    last_seq     bigint,
    head         bytea,
    last_at      timestamptz,
    fence        bigint,
    new_fence    bigint
);

CREATE TYPE runstone.batch_events AS (
    place             int,
    id                uuid,
    tenant_id         uuid,
    stream_id         uuid,
    run_id            uuid,
    event_type        text,
    event_version     bigint,
    aggregate_type    text,
    aggregate_id      uuid,
    event_data        json,
    idempotency_key   bytea,
    correlation_id    uuid,
    causation_id      uuid,
    actor             text,
    occurred_at       timestamptz,
    step_key          text,
    logical_attempt   bigint,
    engine_attempt    bigint,
    control_signal_id uuid,
    adapter_version   text,
    engine_run_ref    json,
    trace_id          text,
    span_id           text,
    run_seq           bigint,
    prev_hash         bytea
);

CREATE TYPE runstone.batch_signals AS (
    place              int,
    id                 uuid,
    tenant_id          uuid,
    signal_type        text,
    source_channel     text,
    source_id          text,
    source_hash        text,
    normalized_payload json,
    received_at        timestamptz,
    ingested_at        timestamptz,
    processed_at       timestamptz,
    status             text,
    correlation_id     uuid,
    ingested_by        text
);

CREATE TYPE runstone.batch_signals_changed AS (
    place        int,
    id           uuid,
    tenant_id    uuid,
    processed_at timestamptz,
    status       text
);

CREATE TYPE runstone.batch_runs AS (
    place                int,
    id                   uuid,
    tenant_id            uuid,
    signal_id            uuid,
    run_type             text,
    project              text,
    environment          text,
    plan_id              text,
    plan_version         text,
    run_request_id       text,
    key                  text,
    created_at           timestamptz,
    started_at           timestamptz,
    completed_at         timestamptz,
    status               text,
    exit_reason          text,
    error_details        json,
    result               json,
    correlation_id       uuid,
    causation_id         uuid,
    orchestrator_version text,
    engine_run_ref       json,
    generation           bigint,
    total_steps          bigint,
    failed_steps         bigint,
    fold_version         bigint,
    metadata             json
);

CREATE TYPE runstone.batch_runs_changed AS (
    place                int,
    id                   uuid,
    tenant_id            uuid,
    started_at           timestamptz,
    completed_at         timestamptz,
    status               text,
    exit_reason          text,
    error_details        json,
    result               json,
    orchestrator_version text,
    engine_run_ref       json,
    generation           bigint,
    total_steps          bigint,
    failed_steps         bigint,
    fold_version         bigint
);

CREATE TYPE runstone.batch_steps AS (
    place           int,
    id              uuid,
    tenant_id       uuid,
    run_id          uuid,
    step_index      bigint,
    step_type       text,
    step_key        text,
    generation      bigint,
    logical_attempt bigint,
    engine_attempt  bigint,
    started_at      timestamptz,
    completed_at    timestamptz,
    status          text,
    input_context   json,
    input_digest    text,
    output_result   json,
    specialist_id   text,
    error_details   json,
    skip_reason     text,
    retry_count     bigint,
    artifacts       json,
    wait_name       text,
    wait_deadline   timestamptz,
    correlation_id  uuid,
    metadata        json
);

CREATE TYPE runstone.batch_step_corrections AS (
    place          int,
    id             uuid,
    tenant_id      uuid,
    run_id         uuid,
    step_id        uuid,
    version        bigint,
    output_result  json,
    reason         text,
    corrected_at   timestamptz,
    corrected_by   text,
    correlation_id uuid
);

CREATE TYPE runstone.batch_effects AS (
    place            int,
    id               uuid,
    tenant_id        uuid,
    run_id           uuid,
    step_id          uuid,
    effect_type      text,
    effect_spec      json,
    idempotency_key  text,
    requested_at     timestamptz,
    executed_at      timestamptz,
    status           text,
    execution_result json,
    error_details    json,
    retry_count      bigint,
    max_retries      bigint,
    next_retry_at    timestamptz,
    critical         boolean,
    delivery         text,
    correlation_id   uuid,
    metadata         json
);

CREATE TYPE runstone.batch_outbox_events AS (
    place           int,
    id              uuid,
    tenant_id       uuid,
    event_type      text,
    payload         json,
    idempotency_key text,
    created_at      timestamptz,
    processed_at    timestamptz,
    status          text,
    retry_count     bigint,
    max_retries     bigint,
    next_retry_at   timestamptz,
    result          json,
    error_details   json,
    correlation_id  uuid,
    aggregate_type  text,
    aggregate_id    uuid
);

CREATE TYPE runstone.batch_outbox_released AS (
    place         int,
    id            uuid,
    tenant_id     uuid,
    processed_at  timestamptz,
    status        text,
    retry_count   bigint,
    next_retry_at timestamptz,
    result        json,
    error_details json
);

CREATE TYPE runstone.batch_tool_calls AS (
    place                 int,
    id                    uuid,
    tenant_id             uuid,
    run_id                uuid,
    step_id               uuid,
    tool_name             text,
    tool_args             json,
    called_at             timestamptz,
    completed_at          timestamptz,
    status                text,
    result                json,
    error_details         json,
    execution_duration_ms bigint,
    cache_hit             boolean,
    correlation_id        uuid,
    metadata              json
);

CREATE TYPE runstone.batch_queued AS (
    place      int,
    run_id     uuid,
    tenant_id  uuid,
    handler    text,
    code_rank  text,
    lane       text,
    lane_limit bigint,
    started    boolean,
    wake_at    timestamptz,
    news_seq   bigint,
    owner      text,
    attempts   bigint
);

CREATE TYPE runstone.batch_requeued AS (
    place      int,
    run_id     uuid,
    tenant_id  uuid,
    handler    text,
    code_rank  text,
    lane       text,
    lane_limit bigint,
    started    boolean,
    wake_at    timestamptz,
    news_seq   bigint,
    leased     boolean,
    owner      text,
    attempts   bigint
);

CREATE TYPE runstone.batch_ids AS (
    place int,
    id    uuid
);

CREATE TYPE runstone.batch_holds AS (
    place int,
    id    uuid,
    fence bigint
);
