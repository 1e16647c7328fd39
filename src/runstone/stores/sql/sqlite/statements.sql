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

-- name: feed
-- A page of the whole log in the order of commit.
SELECT {event_columns}
FROM orchestration_events
WHERE sequence_number > :after
ORDER BY sequence_number
LIMIT :limit;

-- name: dequeue
-- A run that has ended leaves the queue.
DELETE FROM run_queue WHERE run_id = :run_id;

-- name: set_lease
-- What a commit makes of its run's lease.
UPDATE run_queue SET owner = :owner, attempts = :attempts WHERE run_id = :run_id;

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
-- has not, for ids of one millisecond are in no order; the others stand in the order of their creation.
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
                    AND (o.started OR (o.owner IS NULL, o.run_id) < (q.owner IS NULL, q.run_id))
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
