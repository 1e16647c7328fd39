-- Every statement of the SQLite store that is not a plain insert of rows.

-- name: head
-- A stream's head, for one tenant.
SELECT id, tenant_id, kind, last_seq, head, last_at, fence
FROM streams
WHERE id = :stream_id AND tenant_id = :tenant_id;

-- name: heads
-- The heads that a batch of commits is compared with, as one JSON value: a row of its own for each
-- would hand Python's lock back and forth as often.
SELECT json_group_array(json_array(id, tenant_id, last_seq, fence))
FROM streams
WHERE id IN (SELECT value FROM json_each(:stream_ids));

-- name: event_by_key
-- The event that a stream has under an idempotency key.
SELECT run_seq, event_type, CAST(event_data AS BLOB)
FROM orchestration_events
WHERE stream_id = :stream_id AND idempotency_key = :idempotency_key;

-- name: fetch
-- A page of a stream.
SELECT {event_columns}
FROM orchestration_events
WHERE stream_id = :stream_id AND tenant_id = :tenant_id AND run_seq > :after_seq
ORDER BY run_seq
LIMIT :limit;

-- name: load_many
-- The heads of many streams and their events as two JSON values, of one moment: a row of its own for each event would
-- hand Python's lock back and forth as often.
WITH places AS MATERIALIZED (
    SELECT
        key AS place,
        json_extract(value, '$[0]') AS of_tenant,
        json_extract(value, '$[1]') AS of_stream,
        json_extract(value, '$[2]') AS after_seq
    FROM json_each(:places)
)
SELECT
    (
        SELECT json_group_array(json_array(place, {head_columns}))
        FROM places
        CROSS JOIN streams
        WHERE id = of_stream AND tenant_id = of_tenant
    ),
    (
        SELECT json_group_array(json_array(place, {event_columns}))
        FROM places
        CROSS JOIN orchestration_events
        WHERE stream_id = of_stream AND tenant_id = of_tenant AND run_seq > after_seq
    );

-- name: feed
-- A page of the whole log in the order of commit.
SELECT {event_columns}
FROM orchestration_events
WHERE sequence_number > :after
ORDER BY sequence_number
LIMIT :limit;

-- name: dequeue
-- Runs that have ended leave the queue.
DELETE FROM run_queue WHERE run_id IN (SELECT value FROM json_each(:run_ids));

-- name: set_leases
-- What commits make of their runs' leases: [run, owner, attempts] of each.
UPDATE run_queue
SET owner = json_extract(lease.value, '$[1]'), attempts = json_extract(lease.value, '$[2]')
FROM json_each(:leases) AS lease
WHERE run_id = json_extract(lease.value, '$[0]');

-- name: extend_lease
-- The lease belongs to the worker: one row keeps all its runs.
INSERT INTO workers (id, lease_until) VALUES (:worker_id, :lease_until)
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until;

-- name: next_due_tenant
-- Walks the tenants that have something due, along the index.
SELECT tenant_id
FROM run_queue
WHERE tenant_id > :tenant_id AND wake_at <= :now
ORDER BY tenant_id
LIMIT 1;

-- name: claim
-- Takes one tenant's runs that are due and that no live worker owns, the earliest first. Counts the
-- attempt before anything runs. A run that has not started waits for its turn in its lane: those under
-- way and those before it in line are fewer than the lane's limit. Who has been claimed stands before who
-- has not, for ids of one millisecond are in no order; the others stand in the order of their creation. Who
-- is not due, for it waits to be approved, does not stand in line.
UPDATE run_queue
SET owner = :worker_id, attempts = attempts + 1
WHERE run_id IN (
    SELECT q.run_id
    FROM run_queue AS q
    LEFT JOIN workers AS w ON w.id = q.owner
    WHERE q.tenant_id = :tenant_id
        AND q.wake_at <= :now
        AND (q.owner IS NULL OR w.lease_until IS NULL OR w.lease_until <= :now)
        AND q.code_rank <= :code_rank
        AND q.handler IN (SELECT value FROM json_each(:handlers))
        AND (
            q.lane IS NULL
            OR q.started
            OR q.lane_limit > (
                SELECT count(*)
                FROM run_queue AS o
                WHERE o.tenant_id = q.tenant_id
                    AND o.lane = q.lane
                    AND (
                        o.started
                        OR (
                            o.wake_at <= :now
                            AND (o.owner IS NULL, o.run_id) < (q.owner IS NULL, q.run_id)
                        )
                    )
            )
        )
    ORDER BY q.wake_at
    LIMIT :limit
)
RETURNING run_id, tenant_id, handler, attempts, wake_at;

-- name: raise_fence
-- A new owner shuts the old one out.
UPDATE streams SET fence = fence + 1 WHERE id = :stream_id RETURNING fence;

-- name: owned
-- The runs that a worker still owns, and the latest news of each.
SELECT run_id, news_seq FROM run_queue WHERE owner = :worker_id;

-- name: release
-- A worker gives runs back in good order.
UPDATE run_queue
SET owner = NULL, attempts = 0
WHERE owner = :worker_id AND (:run_ids IS NULL OR run_id IN (SELECT value FROM json_each(:run_ids)))
RETURNING run_id;

-- name: retire_worker
-- A worker that owns nothing any more needs no lease.
DELETE FROM workers WHERE id = :worker_id AND NOT EXISTS (SELECT 1 FROM run_queue WHERE owner = :worker_id);

-- name: next_tenant_with_effects
-- Walks the tenants that have something due in the outbox, along the index.
SELECT tenant_id
FROM outbox_events
WHERE tenant_id > :tenant_id
    AND max(coalesce(next_retry_at, created_at), held_until) <= :now
    AND status IN ('PENDING', 'FAILED', 'PROCESSING')
ORDER BY tenant_id
LIMIT 1;

-- name: claimable_effects
-- One tenant's outbox entries that are due and that nobody holds, those due longest first, as one JSON value. The index
-- has only what is left to do, and a lease moves its entry to the lease's end there: who is held is not even looked at.
SELECT json_group_array(id)
FROM (
    SELECT id
    FROM outbox_events
    WHERE tenant_id = :tenant_id
        AND max(coalesce(next_retry_at, created_at), held_until) <= :now
        AND status IN ('PENDING', 'FAILED', 'PROCESSING')
        AND event_type IN (SELECT value FROM json_each(:types))
    ORDER BY max(coalesce(next_retry_at, created_at), held_until), id
    LIMIT :limit
);

-- name: claim_effects
-- Leases of these all that are due and that nobody holds. To name the others, as RETURNING does, would hand Python's
-- lock back and forth for each.
UPDATE outbox_events
SET owner = :worker_id, fence = fence + 1, held_until = :held_until, claims = claims + 1
WHERE id IN (SELECT value FROM json_each(:effect_ids))
    AND max(coalesce(next_retry_at, created_at), held_until) <= :now
    AND status IN ('PENDING', 'FAILED', 'PROCESSING');

-- name: extend_effects
-- A worker keeps what is its own for another while.
UPDATE outbox_events
SET held_until = :held_until
WHERE owner = :worker_id AND id IN (SELECT value FROM json_each(:effect_ids))
RETURNING id;

-- name: held_effects
-- Effects as they are, with the fences and claims of a worker's outbox entries, as one JSON value.
SELECT json_group_array(json_array(o.fence, o.claims, r.signal_id, {effects}))
FROM effects AS e
JOIN outbox_events AS o ON o.id = e.id
LEFT JOIN runs AS r ON r.id = e.run_id
WHERE e.id IN (SELECT value FROM json_each(:effect_ids)) AND o.owner = :worker_id;

-- name: release_effects
-- A worker puts entries back, for now or for later, and shuts itself out.
UPDATE outbox_events
SET owner = NULL, fence = fence + 1, held_until = :held_until, claims = max(claims - 1, 0)
WHERE owner = :worker_id AND id IN (SELECT value FROM json_each(:effect_ids));

-- name: release_stray_effects
-- A worker puts back what it has in one tenant and does not know of. Along the index, beyond what is only due.
UPDATE outbox_events
SET owner = NULL, fence = fence + 1, held_until = 0, claims = max(claims - 1, 0)
WHERE tenant_id = :tenant_id
    AND max(coalesce(next_retry_at, created_at), held_until) > :since
    AND status IN ('PENDING', 'FAILED', 'PROCESSING')
    AND owner = :worker_id
    AND id NOT IN (SELECT value FROM json_each(:keeping));

-- name: effect_fences
-- The fences that the holds of a batch of commits are compared with, as one JSON value.
SELECT json_group_object(id, fence) FROM outbox_events WHERE id IN (SELECT value FROM json_each(:effect_ids));

-- name: end_holds
-- Claims that end with their commit.
UPDATE outbox_events
SET owner = NULL, held_until = 0, claims = 0
WHERE id IN (SELECT value FROM json_each(:effect_ids));

-- name: effect_by_key
SELECT {effects} FROM effects AS e WHERE e.tenant_id = :tenant_id AND e.idempotency_key = :key;

-- name: list_effects
-- Ids are UUIDv7: their order is the order in which the effects were asked for.
SELECT {effects}
FROM effects AS e
WHERE e.tenant_id = :tenant_id
    AND (:status IS NULL OR e.status = :status)
    AND (:effect_type IS NULL OR e.effect_type = :effect_type)
    AND (:error_code IS NULL OR json_extract(e.error_details, '$.code') = :error_code)
    AND (:after IS NULL OR e.id < :after)
ORDER BY e.id DESC
LIMIT :limit;

-- name: effect_groups
SELECT status, effect_type, json_extract(error_details, '$.code') AS error_code, count(*)
FROM effects
WHERE tenant_id = :tenant_id AND (:status IS NULL OR status = :status)
GROUP BY status, effect_type, error_code
ORDER BY status, effect_type, coalesce(error_code, '');

-- name: list_entities
-- Along the index of their names.
SELECT {entities}
FROM entities
WHERE tenant_id = :tenant_id
    AND (entity_type, entity_id) > (:after_type, :after_id)
    AND (:entity_type IS NULL OR entity_type = :entity_type)
ORDER BY entity_type, entity_id
LIMIT :limit;

-- name: schedule_by_name
SELECT {schedules} FROM schedules WHERE tenant_id = :tenant_id AND name = :name;

-- name: list_schedules
-- Along the index of their names.
SELECT {schedules}
FROM schedules
WHERE tenant_id = :tenant_id
    AND name > :after
    AND (:status IS NULL OR status = :status)
    AND (:task IS NULL OR task = :task)
ORDER BY name
LIMIT :limit;

-- name: due_schedules
-- Schedules whose time has come or comes soon, each with the head of its stream, as of one moment.
SELECT {due_schedules}
FROM schedules AS d INDEXED BY schedules_due
CROSS JOIN streams AS s ON s.id = d.id
WHERE d.status = 'ACTIVE'
    AND d.next_at <= :until
    AND (d.next_at, d.id) > (:after_time, :after_id)
    AND d.task IN (SELECT value FROM json_each(:tasks))
ORDER BY d.next_at, d.id
LIMIT :limit;

-- name: checkpoints
-- A run's checkpoints that are still good, the newest first.
SELECT {checkpoint_columns}
FROM run_checkpoints
WHERE tenant_id = :tenant_id AND run_id = :run_id AND expires_at > :now
ORDER BY checkpoint_index DESC;

-- name: delete_checkpoints
-- Those of one run, or all that have expired.
DELETE FROM run_checkpoints
WHERE (:run_id IS NOT NULL AND run_id = :run_id) OR (:run_id IS NULL AND expires_at <= :now);

-- name: run_by_key
SELECT {runs} FROM runs WHERE tenant_id = :tenant_id AND key = :key;

-- name: signal_by_source
SELECT {signals}
FROM signals
WHERE tenant_id = :tenant_id AND source_channel = :source_channel AND source_id = :source_id;

-- name: list_runs
-- Ids are UUIDv7: their order is the order of creation.
SELECT {runs}
FROM runs
WHERE tenant_id = :tenant_id
    AND (:status IS NULL OR status = :status)
    AND (:handler IS NULL OR plan_id = :handler)
    AND (:after IS NULL OR id < :after)
ORDER BY id DESC
LIMIT :limit;

-- name: correlation_heads
-- The streams of a correlation, in the order in which they were opened.
SELECT s.id, s.tenant_id, s.kind, s.last_seq, s.head, s.last_at, s.fence
FROM streams AS s
JOIN (
    SELECT stream_id, min(sequence_number) AS opened
    FROM orchestration_events
    WHERE tenant_id = :tenant_id AND correlation_id = :correlation_id
    GROUP BY stream_id
) AS e ON e.stream_id = s.id
WHERE s.tenant_id = :tenant_id
ORDER BY e.opened;

-- name: next_correlation
-- Walks all correlations along their index, one step at a time.
SELECT tenant_id, correlation_id
FROM orchestration_events
WHERE (tenant_id, correlation_id) > (:tenant_id, :correlation_id)
    AND (:only IS NULL OR tenant_id = :only)
ORDER BY tenant_id, correlation_id
LIMIT 1;

-- name: count_runs
SELECT status, count(*) FROM runs WHERE :tenant_id IS NULL OR tenant_id = :tenant_id GROUP BY status ORDER BY status;

-- name: count_events
SELECT count(*) FROM orchestration_events WHERE :tenant_id IS NULL OR tenant_id = :tenant_id;

-- name: headless
-- Streams without a head, and heads without a stream: what no other check would ever look at.
SELECT stream_id FROM (
    SELECT stream_id, tenant_id FROM orchestration_events EXCEPT SELECT id, tenant_id FROM streams
)
UNION
SELECT id FROM (
    SELECT id, tenant_id FROM streams EXCEPT SELECT stream_id, tenant_id FROM orchestration_events
);

-- name: schema
-- Tables, indexes and triggers as they were made; what SQLite keeps for itself has no text.
SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY 1;

-- name: begin_maintenance
INSERT INTO maintenance (reason) VALUES (:reason);

-- name: maintenance
-- What a reader must never see: whoever left this behind has switched the guards off.
SELECT reason FROM maintenance;

-- name: end_maintenance
DELETE FROM maintenance;

-- name: expired
-- Correlations that have rested for long enough, along the age of their first signals. Every run and every effect of
-- theirs has ended. CROSS JOIN keeps the order: from a signal to the streams of its correlation.
SELECT s.tenant_id, s.correlation_id, s.id, s.ingested_at, count(*), sum(h.last_seq), max(h.last_at)
FROM signals AS s
CROSS JOIN streams AS h
WHERE s.ingested_at <= max(:ended_before, :received_before)
    AND (:tenant_id IS NULL OR s.tenant_id = :tenant_id)
    AND (s.ingested_at, s.id) > (:began_at, :first_id)
    AND NOT EXISTS (
        SELECT 1
        FROM signals AS o
        WHERE o.correlation_id = s.correlation_id
            AND o.tenant_id = s.tenant_id
            AND (o.ingested_at, o.id) < (s.ingested_at, s.id)
    )
    AND NOT EXISTS (
        SELECT 1
        FROM runs AS r
        WHERE r.correlation_id = s.correlation_id
            AND r.tenant_id = s.tenant_id
            AND (
                r.status NOT IN ({ended_runs})
                OR EXISTS (
                    SELECT 1 FROM effects AS e WHERE e.run_id = r.id AND e.status NOT IN ({ended_effects})
                )
            )
    )
    AND h.id IN (
        SELECT id FROM signals WHERE correlation_id = s.correlation_id AND tenant_id = s.tenant_id
        UNION ALL
        SELECT id FROM runs WHERE correlation_id = s.correlation_id AND tenant_id = s.tenant_id
    )
GROUP BY s.ingested_at, s.id
HAVING max(h.last_at) <= CASE WHEN max(h.kind = 'RUN') THEN :ended_before ELSE :received_before END
ORDER BY s.ingested_at, s.id
LIMIT :limit;

-- name: expired_schedules
-- Schedules that are over and have rested, along their age.
SELECT d.tenant_id, d.id, d.id, d.created_at, 1, h.last_seq, h.last_at
FROM schedules AS d INDEXED BY schedules_over
CROSS JOIN streams AS h ON h.id = d.id
WHERE d.status IN ('CANCELLED', 'DONE')
    AND d.created_at <= :ended_before
    AND (:tenant_id IS NULL OR d.tenant_id = :tenant_id)
    AND (d.created_at, d.id) > (:began_at, :first_id)
    AND h.last_at <= :ended_before
ORDER BY d.created_at, d.id
LIMIT :limit;

-- name: unfinished
-- What of these streams has not ended, or never does.
SELECT 'run ' || r.id || ' has not ended'
FROM runs AS r
WHERE r.id IN (SELECT value FROM json_each(:stream_ids)) AND r.status NOT IN ({ended_runs})
UNION ALL
SELECT 'effect ' || e.id || ' of run ' || e.run_id || ' is ' || e.status
FROM effects AS e
WHERE e.run_id IN (SELECT value FROM json_each(:stream_ids)) AND e.status NOT IN ({ended_effects})
UNION ALL
SELECT lower(s.kind) || ' ' || s.id || ' outlives the runs that write to it'
FROM streams AS s
WHERE s.id IN (SELECT value FROM json_each(:stream_ids)) AND s.kind IN ({endless})
UNION ALL
SELECT 'schedule ' || d.id || ' is active'
FROM schedules AS d
WHERE d.id IN (SELECT value FROM json_each(:stream_ids)) AND d.status = 'ACTIVE'
LIMIT 1;

-- name: forget
-- A table's rows of streams that are archived.
DELETE FROM {table} WHERE {own_id} IN (SELECT value FROM json_each(:stream_ids));

-- name: forget_outbox
DELETE FROM outbox_events
WHERE id IN (SELECT id FROM effects WHERE run_id IN (SELECT value FROM json_each(:stream_ids)));

-- name: find_tombstone
SELECT {tombstones}
FROM tombstones
WHERE tenant_id = :tenant_id
    AND (
        stream_id = :stream_id
        OR (source_channel = :source_channel AND source_id = :source_id)
        OR run_key = :run_key
    )
LIMIT 1;

-- name: tombstones
SELECT {tombstones}
FROM tombstones
WHERE tenant_id = :tenant_id AND correlation_id = :correlation_id
ORDER BY stream_id;

-- name: graveyard
-- A page of all tombstones.
SELECT {tombstones}
FROM tombstones
WHERE stream_id > :after AND (:tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY stream_id
LIMIT :limit;

-- name: half_archived
-- Streams of which a part of the correlation was archived, and streams that stand beside their own tombstone.
SELECT DISTINCT t.stream_id
FROM tombstones AS t
WHERE EXISTS (SELECT 1 FROM streams AS s WHERE s.id = t.stream_id)
    OR EXISTS (
        SELECT 1
        FROM orchestration_events AS e
        WHERE e.tenant_id = t.tenant_id AND e.correlation_id = t.correlation_id
    );

-- name: latest
-- When the newest event was persisted.
SELECT persisted_at FROM orchestration_events ORDER BY sequence_number DESC LIMIT 1;

-- name: lost_workers
-- Workers whose lease is over while they still own runs.
SELECT q.owner, w.lease_until, count(*)
FROM run_queue AS q
LEFT JOIN workers AS w ON w.id = q.owner
WHERE q.owner IS NOT NULL AND coalesce(w.lease_until, 0) <= :now
GROUP BY q.owner
ORDER BY q.owner;

-- name: due_runs
-- Runs that are due and free, by what a worker has to have for them, and of each the one that has been so longest.
SELECT q.handler, r.orchestrator_version, count(*), min(q.wake_at), q.run_id, q.tenant_id
FROM run_queue AS q
JOIN runs AS r ON r.id = q.run_id
LEFT JOIN workers AS w ON w.id = q.owner
WHERE q.wake_at <= :now AND (q.owner IS NULL OR coalesce(w.lease_until, 0) <= :now)
GROUP BY q.handler, r.orchestrator_version
ORDER BY q.handler, r.orchestrator_version;

-- name: due_effects
-- Effects that are due and free, and the one that has been so longest.
SELECT count(*), min(max(coalesce(next_retry_at, created_at), held_until)), id, tenant_id
FROM outbox_events
WHERE max(coalesce(next_retry_at, created_at), held_until) <= :now
    AND status IN ('PENDING', 'FAILED', 'PROCESSING');

-- name: effects_by_tenant
-- How many effects of each tenant have that status.
SELECT tenant_id, count(*) FROM effects WHERE status = :status GROUP BY tenant_id ORDER BY tenant_id;

-- name: runs_by_tenant
-- Along the index of their status, which begins with the tenant.
SELECT tenant_id, count(*) FROM runs GROUP BY tenant_id ORDER BY tenant_id;

-- name: paused
-- Why runs are paused, how many for each reason, and one of them.
SELECT reason, count(*), min(id), tenant_id
FROM (
    SELECT r.id, r.tenant_id, (
        SELECT json_extract(e.event_data, '$.reason')
        FROM orchestration_events AS e
        WHERE e.stream_id = r.id AND e.event_type = 'RUN_PAUSED'
        ORDER BY e.run_seq DESC
        LIMIT 1
    ) AS reason
    FROM runs AS r
    WHERE r.status = 'PAUSED'
)
GROUP BY reason
ORDER BY reason;

-- name: unfired
-- Schedules that are due and that nobody has fired, by their task, and of each the one that has been so longest.
SELECT task, count(*), min(next_at), name, tenant_id
FROM schedules
WHERE status = 'ACTIVE' AND next_at <= :now
GROUP BY task
ORDER BY task;
