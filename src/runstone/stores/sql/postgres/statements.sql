-- Every statement of the PostgreSQL store. Braces are filled in with names of columns, and nothing else.
--
-- Where an id says all, the tenant is compared by IS NOT DISTINCT FROM, which no index answers: while a table looks
-- empty, the planner would as soon read all rows of the tenant as the one of the id, and keep to that as it grows.

-- name: commit
-- Group commit, one statement a batch. Each commit has its place in the batch. The streams are locked in the
-- order of their ids, so that batches never wait for each other in a circle; NO KEY UPDATE, because foreign
-- keys take a share of the key. A place of which one stream is elsewhere than it was decided on, carries
-- another fence, or belongs to somebody else, is lost whole: nothing of it is written, and it is what comes
-- back. A new stream that another transaction is opening at the same time breaks the key of `streams`, after
-- that transaction has ended: then the batch is submitted again, and sees it.
WITH
asked AS MATERIALIZED (
    SELECT * FROM unnest($1::runstone.batch_streams[])
),
locked AS MATERIALIZED (
    SELECT id, tenant_id, last_seq, fence
    FROM runstone.streams
    WHERE id = ANY (ARRAY(SELECT id FROM asked))
    ORDER BY id
    FOR NO KEY UPDATE
),
{held}lost AS MATERIALIZED (
    SELECT a.place, a.id, l.tenant_id, coalesce(l.last_seq, 0) AS last_seq, coalesce(l.fence, 0) AS fence
    FROM asked AS a
    LEFT JOIN locked AS l ON l.id = a.id
    WHERE coalesce(l.last_seq, 0) <> a.expected_seq
        OR coalesce(l.fence, 0) <> a.fence
        OR l.tenant_id <> a.tenant_id{stale_holds}
),
{opened}{moved}logged AS (
    INSERT INTO runstone.orchestration_events ({event_columns}, persisted_at)
    SELECT {event_columns}, $3::timestamptz
    FROM unnest($2::runstone.batch_events[]) WITH ORDINALITY AS x (place, {event_columns}, line)
    WHERE place NOT IN (SELECT place FROM lost)
    ORDER BY line
){parts}
SELECT place, id::text, tenant_id::text, last_seq, fence FROM lost;

-- name: opened
-- Streams that are new.
opened AS (
    INSERT INTO runstone.streams (id, tenant_id, kind, last_seq, head, last_at, fence)
    SELECT id, tenant_id, kind, last_seq, head, last_at, new_fence
    FROM asked
    WHERE expected_seq = 0 AND place NOT IN (SELECT place FROM lost)
    ORDER BY id
),

-- name: moved
-- Streams that go on.
moved AS (
    UPDATE runstone.streams AS s
    SET last_seq = a.last_seq, head = a.head, last_at = a.last_at, fence = a.new_fence
    FROM asked AS a
    WHERE s.id = a.id
        AND a.expected_seq > 0
        AND a.place NOT IN (SELECT place FROM lost)
),

-- name: insert_part
-- The rows of a table that are new. Two batches that take the same keys take them in the same order.
{part}_part AS (
    INSERT INTO {table} ({columns})
    SELECT {columns}
    FROM unnest({rows}) AS x
    WHERE place NOT IN (SELECT place FROM lost)
    ORDER BY {order}
)

-- name: upsert_part
-- The rows of a table that may be there already: then only what a fold can change is written.
{part}_part AS (
    INSERT INTO {table} ({columns})
    SELECT {columns}
    FROM unnest({rows}) AS x
    WHERE place NOT IN (SELECT place FROM lost)
    ORDER BY {order}
    ON CONFLICT (id, tenant_id) DO UPDATE SET {changes}
)

-- name: change_part
-- The rows of a table that are there.
{part}_part AS (
    UPDATE {table} AS t
    SET {changes}
    FROM unnest({rows}) AS x
    WHERE t.id = x.id
        AND t.tenant_id IS NOT DISTINCT FROM x.tenant_id
        AND x.place NOT IN (SELECT place FROM lost)
)

-- name: requeue_part
-- Runs that stay in the queue, and what becomes of their leases. A step that changes neither writes nothing.
{part}_part AS (
    UPDATE runstone.run_queue AS t
    SET {changes},
        owner = CASE WHEN x.leased THEN x.owner ELSE t.owner END,
        attempts = CASE WHEN x.leased THEN x.attempts ELSE t.attempts END
    FROM unnest({rows}) AS x
    WHERE t.run_id = x.run_id
        AND t.tenant_id IS NOT DISTINCT FROM x.tenant_id
        AND x.place NOT IN (SELECT place FROM lost)
        AND (
            ({old}) IS DISTINCT FROM ({new})
            OR x.leased AND (t.owner IS DISTINCT FROM x.owner OR t.attempts <> x.attempts)
        )
)

-- name: held
-- Outbox entries that commits hold: each has to have the fence of its claim still.
held AS MATERIALIZED (
    SELECT id, fence
    FROM runstone.outbox_events
    WHERE id = ANY (ARRAY(SELECT id FROM unnest({rows})))
    ORDER BY id
    FOR NO KEY UPDATE
),

-- name: stale_holds
-- The places that lose by a claim; the effect stands where the stream would.

    UNION ALL
    SELECT h.place, h.id, NULL, NULL, o.fence
    FROM unnest({rows}) AS h
    LEFT JOIN held AS o ON o.id = h.id
    WHERE o.fence IS DISTINCT FROM h.fence

-- name: release_part
-- Outbox entries whose claim ends with what became of them.
{part}_part AS (
    UPDATE {table} AS t
    SET {changes}, owner = NULL, held_until = 'epoch', claims = 0
    FROM unnest({rows}) AS x
    WHERE t.id = x.id
        AND t.tenant_id IS NOT DISTINCT FROM x.tenant_id
        AND x.place NOT IN (SELECT place FROM lost)
)

-- name: end_holds_part
-- Outbox entries whose claim ends, and nothing else.
{part}_part AS (
    UPDATE {table} AS t
    SET owner = NULL, held_until = 'epoch', claims = 0
    FROM unnest({rows}) AS x
    WHERE t.id = x.id AND x.place NOT IN (SELECT place FROM lost)
)

-- name: dequeue_part
-- Runs that have ended.
{part}_part AS (
    DELETE FROM {table} AS t
    USING unnest({rows}) AS x
    WHERE t.run_id = x.id AND x.place NOT IN (SELECT place FROM lost)
)

-- name: shapes
-- Lets the driver learn all the shapes of rows at once, and not in the middle of somebody's commit.
SELECT {shapes};

-- name: stretches
-- Stretches of streams, to compare with what was submitted. Their heads were seen beyond them under lock, and
-- events never change, so this needs no lock of its own.
SELECT {event_selected}
FROM runstone.orchestration_events
JOIN unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS s (of_stream, first_seq, last_seq)
    ON stream_id = of_stream AND run_seq BETWEEN first_seq AND last_seq
ORDER BY stream_id, run_seq;

-- name: session
-- What our sessions are like. Set here and not when connecting, for not every pool lets that through. One plan for
-- ever, and by index: the tables are empty when the first plan is made, and grow. Ours never hold a lock for long;
-- whose transaction does, is somebody else's.
SET application_name = 'runstone';
SET default_transaction_isolation = 'read committed';
SET idle_in_transaction_session_timeout = '60s';
SET lock_timeout = '2s';
SET timezone = 'UTC';
SET plan_cache_mode = 'force_generic_plan';
SET enable_seqscan = off;
SET enable_mergejoin = off;
SET jit = off;

-- name: server
-- What a server has to be like.
SELECT
    current_setting('server_version_num')::int AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    CASE
        WHEN to_regnamespace('runstone') IS NULL THEN false
        WHEN NOT has_schema_privilege(to_regnamespace('runstone')::oid, 'USAGE') THEN true -- a stranger, who cannot look
        ELSE to_regclass('runstone.feed_epochs') IS NOT NULL
    END AS migrated;

-- name: login
-- Who we are. Row-level security shows every tenant to the engine's role and to who stands above it, one tenant of the
-- transaction's to the api's, and to others nothing, without a word. A role that is not there has no members.
SELECT
    rolname::text AS name,
    rolsuper OR rolbypassrls OR coalesce(pg_has_role(rolname, to_regrole('runstone_engine')::oid, 'USAGE'), false)
        AS sees_all,
    coalesce(pg_has_role(rolname, to_regrole('runstone_api')::oid, 'USAGE'), false) AS sees_one,
    coalesce(pg_has_role(rolname, to_regrole('runstone_engine')::oid, 'MEMBER'), false) AS member
FROM pg_roles
WHERE rolname = current_user;

-- name: epoch
-- The feed's epoch; begins one if this is another cluster, or another timeline, than the last.
SELECT runstone.feed_epoch();

-- name: claim
-- Takes runs that are due and that no live worker owns, and counts the attempt before anything runs. Tenants
-- are found by walking the index; each has an equal share, the earliest first. Row and stream are locked
-- together, and what somebody else holds is skipped: a commit locks the stream first and the row after, so a
-- claim must not wait for either. A row that another claim has changed since this statement began is looked at
-- again as it is now, but `seen` stays as it was: that is how this claim knows, for of the other's worker it may
-- know nothing. A run that has not started waits for its turn in its lane: those under way
-- and those before it in line are fewer than the lane's limit. Who has been claimed stands before who has
-- not, for ids of one millisecond are in no order; who is not due, for it waits to be approved, does not
-- stand in line. Without $7, runs that stand in line are left out, and
-- `lanes` says that there are some.
WITH RECURSIVE
beat AS (
    INSERT INTO runstone.workers (id, lease_until) VALUES ($1, $2)
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
),
tenants (tenant_id) AS (
    (SELECT tenant_id FROM runstone.run_queue WHERE wake_at IS NOT NULL ORDER BY tenant_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT q.tenant_id
        FROM runstone.run_queue AS q
        WHERE q.wake_at IS NOT NULL AND q.tenant_id > t.tenant_id
        ORDER BY q.tenant_id
        LIMIT 1
    )
    FROM tenants AS t
    WHERE t.tenant_id IS NOT NULL
),
due AS MATERIALIZED (
    SELECT t.tenant_id
    FROM tenants AS t
    WHERE EXISTS (
        SELECT 1 FROM runstone.run_queue AS q WHERE q.tenant_id = t.tenant_id AND q.wake_at <= $3
    )
),
share AS MATERIALIZED (
    SELECT greatest(1, $6::bigint / greatest(1, count(*))) AS most FROM due
),
found AS MATERIALIZED (
    SELECT c.run_id, c.wake_at
    FROM due AS d
    CROSS JOIN LATERAL (
        SELECT q.run_id, q.wake_at
        FROM runstone.run_queue AS q
        JOIN LATERAL (
            SELECT o.owner, o.attempts
            FROM runstone.run_queue AS o
            WHERE o.run_id = q.run_id AND o.tenant_id = q.tenant_id
            OFFSET 0
        ) AS seen ON seen.attempts = q.attempts AND seen.owner IS NOT DISTINCT FROM q.owner
        JOIN runstone.streams AS s ON s.id = q.run_id
        LEFT JOIN runstone.workers AS w ON w.id = q.owner
        WHERE q.tenant_id = d.tenant_id
            AND q.wake_at <= $3
            AND (q.owner IS NULL OR w.lease_until IS NULL OR w.lease_until <= $3)
            AND q.code_rank <= $5 COLLATE "C"
            AND q.handler = ANY ($4::text[])
            AND (
                q.lane IS NULL
                OR q.started
                OR (
                    $7::boolean
                    AND q.lane_limit > (
                        SELECT count(*)
                        FROM runstone.run_queue AS o
                        WHERE o.tenant_id = q.tenant_id
                            AND o.lane = q.lane
                            AND (
                                o.started
                                OR (
                                    o.wake_at <= $3
                                    AND (o.owner IS NULL, o.run_id) < (q.owner IS NULL, q.run_id)
                                )
                            )
                    )
                )
            )
        ORDER BY q.wake_at
        LIMIT (SELECT most FROM share)
        FOR NO KEY UPDATE OF q, s SKIP LOCKED
    ) AS c
),
chosen AS MATERIALIZED (
    SELECT run_id FROM found ORDER BY wake_at LIMIT $6
),
taken AS (
    UPDATE runstone.run_queue
    SET owner = $1, attempts = attempts + 1
    WHERE run_id = ANY (ARRAY(SELECT run_id FROM chosen))
    RETURNING run_id, tenant_id, handler, attempts, wake_at
),
raised AS (
    UPDATE runstone.streams
    SET fence = fence + 1
    WHERE id = ANY (ARRAY(SELECT run_id FROM chosen))
    RETURNING id, fence
)
SELECT
    share.most AS share,
    EXISTS (
        SELECT 1
        FROM runstone.run_queue AS q
        WHERE q.lane IS NOT NULL AND NOT q.started AND q.wake_at <= $3
    ) AS lanes,
    t.run_id::text AS run_id,
    t.tenant_id::text AS tenant_id,
    t.handler,
    t.attempts,
    t.wake_at,
    r.fence
FROM share
LEFT JOIN (taken AS t JOIN raised AS r ON r.id = t.run_id) ON true;

-- name: lanes_in_turn
-- Claims of lanes come one after the other; the lock ends with the transaction.
SELECT pg_advisory_xact_lock(hashtext('runstone.lanes'));

-- name: heartbeat
-- The lease belongs to the worker: one row keeps all its runs. The runs that it still owns, the latest news of
-- each, and the time here.
WITH beat AS (
    INSERT INTO runstone.workers (id, lease_until) VALUES ($1, $2)
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
SELECT o.now, q.run_id::text AS run_id, q.news_seq
FROM (SELECT clock_timestamp() AS now) AS o
LEFT JOIN runstone.run_queue AS q ON q.owner = $1;

-- name: release
-- A worker gives runs back in good order, and shuts itself out. Streams before rows, as a commit does. A
-- worker that owns nothing any more needs no lease.
WITH mine AS MATERIALIZED (
    SELECT s.id
    FROM runstone.streams AS s
    WHERE s.id = ANY (
        ARRAY(
            SELECT q.run_id
            FROM runstone.run_queue AS q
            WHERE q.owner = $1 AND ($2::uuid[] IS NULL OR q.run_id = ANY ($2::uuid[]))
        )
    )
    ORDER BY s.id
    FOR NO KEY UPDATE
),
released AS (
    UPDATE runstone.run_queue AS q
    SET owner = NULL, attempts = 0
    WHERE q.run_id = ANY (ARRAY(SELECT id FROM mine)) AND q.owner = $1
    RETURNING q.run_id
),
raised AS (
    UPDATE runstone.streams AS s
    SET fence = s.fence + 1
    WHERE s.id = ANY (ARRAY(SELECT run_id FROM released))
),
retired AS (
    DELETE FROM runstone.workers
    WHERE id = $1
        AND NOT EXISTS (
            SELECT 1 FROM runstone.run_queue AS q
            WHERE q.owner = $1 AND q.run_id NOT IN (SELECT run_id FROM released)
        )
)
SELECT count(*) FROM released;

-- name: head
-- A stream's head, for one tenant.
SELECT {head_selected} FROM runstone.streams WHERE id = $1 AND tenant_id = $2;

-- name: keyed
-- A stream's head, and the event that it has under an idempotency key.
SELECT s.*, e.run_seq, e.event_type, e.event_data
FROM (SELECT {head_selected} FROM runstone.streams WHERE id = $1 AND tenant_id = $2) AS s
LEFT JOIN runstone.orchestration_events AS e ON e.stream_id = $1 AND e.idempotency_key = $3;

-- name: load
-- A stream's head beside each of its events: one statement sees one moment, and one round trip is all it takes.
SELECT s.*, e.*
FROM (SELECT {head_selected} FROM runstone.streams WHERE id = $1 AND tenant_id = $2) AS s
LEFT JOIN LATERAL (
    SELECT {event_selected}
    FROM runstone.orchestration_events
    WHERE stream_id = $1 AND tenant_id IS NOT DISTINCT FROM $2 AND run_seq > $3
    ORDER BY run_seq
) AS e ON true;

-- name: load_many
-- The same for many streams: each place has its number, from 1. Only the first row of each has the head, for to write it
-- and to read it costs as much as a quarter of an event.
SELECT p.place, {head_once}, e.*
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) WITH ORDINALITY AS p (of_tenant, of_stream, after_seq, place)
CROSS JOIN LATERAL (
    SELECT {head_selected} FROM runstone.streams WHERE id = p.of_stream AND tenant_id = p.of_tenant
) AS s ({head_columns})
LEFT JOIN LATERAL (
    SELECT {event_selected}, row_number() OVER (ORDER BY run_seq) AS nth
    FROM runstone.orchestration_events
    WHERE stream_id = p.of_stream AND tenant_id IS NOT DISTINCT FROM p.of_tenant AND run_seq > p.after_seq
    ORDER BY run_seq
) AS e ON true;

-- name: fetch
-- A page of a stream.
SELECT {event_selected}
FROM runstone.orchestration_events
WHERE stream_id = $1 AND tenant_id IS NOT DISTINCT FROM $2 AND run_seq > $3
ORDER BY run_seq
LIMIT $4;

-- name: one
SELECT {selected} FROM {table} WHERE id = $1 AND tenant_id IS NOT DISTINCT FROM $2;

-- name: of_stream
-- A table's rows of one stream.
SELECT {selected} FROM {table} WHERE {belongs} AND tenant_id IS NOT DISTINCT FROM $2 ORDER BY {order};

-- name: belongs
{own_id} = $1

-- name: belongs_to_effects
id IN (SELECT e.id FROM runstone.effects AS e WHERE e.run_id = $1)

-- name: run_by_key
SELECT {run_selected} FROM runstone.runs WHERE tenant_id = $1 AND key = $2;

-- name: signal_by_source
SELECT {signal_selected}
FROM runstone.signals
WHERE tenant_id = $1 AND source_channel = $2 AND source_id = $3;

-- name: list_runs
-- Ids are UUIDv7: their order is the order of creation. The newest of each status that is asked for, and the newest
-- of these: a page reads a few pages of the index, however much there is of other tenants, and needs no index of its own.
SELECT {run_selected}
FROM unnest($2::text[]) AS wanted (one_status)
CROSS JOIN LATERAL (
    SELECT *
    FROM runstone.runs
    WHERE tenant_id = $1
        AND status = one_status
        AND ($3::text IS NULL OR plan_id = $3)
        AND id < coalesce($4::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY id DESC
    LIMIT $5
) AS r
ORDER BY r.id DESC
LIMIT $5;

-- name: correlation_heads
-- The streams of a correlation, in the order in which they were opened.
SELECT {head_selected}
FROM runstone.streams
JOIN (
    SELECT stream_id, min(sequence_number) AS opened
    FROM runstone.orchestration_events
    WHERE tenant_id = $1 AND correlation_id = $2
    GROUP BY stream_id
) AS e ON e.stream_id = id
WHERE tenant_id = $1
ORDER BY opened;

-- name: next_correlations
-- Walks all correlations, or those of one tenant, along their index, a hundred steps at a time. Where it begins and
-- ends is a condition that the index answers: else every page would read again what those before have read.
WITH RECURSIVE walk (tenant_id, correlation_id, steps) AS (
    (
        SELECT tenant_id, correlation_id, 1
        FROM runstone.orchestration_events
        WHERE (tenant_id, correlation_id) > (
                coalesce($1::uuid, $3, '00000000-0000-0000-0000-000000000000'),
                coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
            )
            AND tenant_id <= coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        ORDER BY tenant_id, correlation_id
        LIMIT 1
    )
    UNION ALL
    SELECT n.tenant_id, n.correlation_id, w.steps + 1
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT e.tenant_id, e.correlation_id
        FROM runstone.orchestration_events AS e
        WHERE (e.tenant_id, e.correlation_id) > (w.tenant_id, w.correlation_id)
            AND e.tenant_id <= coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
        ORDER BY e.tenant_id, e.correlation_id
        LIMIT 1
    ) AS n
    WHERE w.steps < 100
)
SELECT tenant_id::text, correlation_id::text FROM walk;

-- name: count_events
SELECT count(*) FROM runstone.orchestration_events WHERE $1::uuid IS NULL OR tenant_id = $1;

-- name: count_runs
SELECT status, count(*) FROM runstone.runs WHERE $1::uuid IS NULL OR tenant_id = $1 GROUP BY status ORDER BY status;

-- name: checkpoints
-- A run's checkpoints that are still good, the newest first.
SELECT {checkpoint_selected}
FROM runstone.run_checkpoints
WHERE tenant_id = $1 AND run_id = $2 AND expires_at > $3
ORDER BY checkpoint_index DESC;

-- name: put_checkpoint
-- Keeps a checkpoint in the place of an older one with its index.
INSERT INTO runstone.run_checkpoints ({checkpoint_columns}) VALUES ({marks})
ON CONFLICT (run_id, tenant_id, checkpoint_index) DO UPDATE SET {changes};

-- name: delete_checkpoints
-- Those of one run, or all that have expired.
WITH deleted AS (
    DELETE FROM runstone.run_checkpoints
    WHERE ($1::uuid IS NOT NULL AND run_id = $1) OR ($1::uuid IS NULL AND expires_at <= $2)
    RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: epochs
-- The feed's epochs, the sequence numbers that each of them has, and the transaction that comes next.
SELECT
    epoch,
    first_sequence,
    lead(first_sequence) OVER (ORDER BY epoch) - 1 AS last_sequence,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction
FROM runstone.feed_epochs
ORDER BY epoch;

-- name: feed
-- A page of the log in the order of commit: below the oldest transaction that is still under way, of which
-- nobody knows yet what it will have written. Ordered by the columns of the table, as the index is: by a bare name
-- it would be the transaction as a number, and everything that is left would be sorted for every page.
SELECT transaction_id::text::bigint, {event_selected}
FROM runstone.orchestration_events AS e
WHERE (transaction_id, sequence_number) > ($1::text::xid8, $2::bigint)
    AND transaction_id < pg_snapshot_xmin(pg_current_snapshot())
    AND sequence_number >= $3
ORDER BY e.transaction_id, e.sequence_number
LIMIT $4;

-- name: feed_of_past_epoch
-- A page of an epoch that is over: whatever is there of it was committed.
SELECT transaction_id::text::bigint, {event_selected}
FROM runstone.orchestration_events AS e
WHERE (transaction_id, sequence_number) > ($1::text::xid8, $2::bigint)
    AND sequence_number BETWEEN $3 AND $4
ORDER BY e.transaction_id, e.sequence_number
LIMIT $5;

-- name: feed_is_held
-- Whether there are committed events that the feed does not show yet. Those of past epochs do not count, nor are they
-- read: after a restore, millions of them may have higher transaction ids than this server has reached.
SELECT EXISTS (
    SELECT 1
    FROM runstone.orchestration_events
    WHERE transaction_id >= pg_snapshot_xmin(pg_current_snapshot())
        AND transaction_id < pg_snapshot_xmax(pg_current_snapshot())
        AND sequence_number >= (SELECT max(first_sequence) FROM runstone.feed_epochs)
);

-- name: feed_status
-- How many events wait, since when, and the process that has the oldest transaction. Locks are for all to
-- see; the rest of a process only for its own user and for members of pg_read_all_stats.
WITH held AS (
    SELECT count(*) AS held_events, min(persisted_at) AS held_since
    FROM runstone.orchestration_events
    WHERE transaction_id >= pg_snapshot_xmin(pg_current_snapshot())
        AND transaction_id < pg_snapshot_xmax(pg_current_snapshot())
        AND sequence_number >= (SELECT max(first_sequence) FROM runstone.feed_epochs)
),
oldest AS (
    SELECT l.pid
    FROM pg_locks AS l
    WHERE l.locktype = 'transactionid'
        AND l.granted
        AND l.transactionid = pg_snapshot_xmin(pg_current_snapshot())::xid
    LIMIT 1
)
SELECT
    (SELECT max(epoch) FROM runstone.feed_epochs) AS epoch,
    held.held_events,
    held.held_since,
    oldest.pid,
    a.application_name,
    a.state,
    a.query,
    a.xact_start
FROM held
LEFT JOIN oldest ON true
LEFT JOIN pg_stat_activity AS a ON a.pid = oldest.pid;

-- name: claim_effects
-- Leases outbox entries that are due and that nobody holds, each tenant's share of those due longest first, and
-- no more of a tenant than it has room for. The index has only what is left to do, and a lease moves its
-- entry to the lease's end there. What somebody else has locked is skipped.
WITH RECURSIVE
tenants (tenant_id) AS (
    (
        SELECT tenant_id
        FROM runstone.outbox_events
        WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')
        ORDER BY tenant_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT o.tenant_id
        FROM runstone.outbox_events AS o
        WHERE o.status IN ('PENDING', 'FAILED', 'PROCESSING') AND o.tenant_id > t.tenant_id
        ORDER BY o.tenant_id
        LIMIT 1
    )
    FROM tenants AS t
    WHERE t.tenant_id IS NOT NULL
),
due AS MATERIALIZED (
    SELECT t.tenant_id, $6::bigint - coalesce(h.holding, 0) AS room
    FROM tenants AS t
    LEFT JOIN unnest($7::uuid[], $8::bigint[]) AS h (tenant_id, holding) ON h.tenant_id = t.tenant_id
    WHERE ($6::bigint IS NULL OR $6::bigint > coalesce(h.holding, 0))
        AND EXISTS (
            SELECT 1
            FROM runstone.outbox_events AS o
            WHERE o.tenant_id = t.tenant_id
                AND greatest(coalesce(o.next_retry_at, o.created_at), o.held_until) <= $3
                AND o.status IN ('PENDING', 'FAILED', 'PROCESSING')
        )
),
share AS MATERIALIZED (
    SELECT greatest(1, $5::bigint / greatest(1, count(*))) AS most FROM due
),
found AS MATERIALIZED (
    SELECT c.id, c.due_at
    FROM due AS d
    CROSS JOIN share AS s
    CROSS JOIN LATERAL (
        SELECT o.id, greatest(coalesce(o.next_retry_at, o.created_at), o.held_until) AS due_at
        FROM runstone.outbox_events AS o
        WHERE o.tenant_id = d.tenant_id
            AND greatest(coalesce(o.next_retry_at, o.created_at), o.held_until) <= $3
            AND o.status IN ('PENDING', 'FAILED', 'PROCESSING')
            AND o.event_type = ANY ($4::text[])
        ORDER BY greatest(coalesce(o.next_retry_at, o.created_at), o.held_until), o.id
        LIMIT least(s.most, d.room)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
),
taken AS (
    UPDATE runstone.outbox_events
    SET owner = $1, fence = fence + 1, held_until = $2, claims = claims + 1
    WHERE id = ANY (ARRAY(SELECT id FROM found ORDER BY due_at, id LIMIT $5))
    RETURNING id, tenant_id
)
SELECT share.most AS share, taken.id::text AS id, taken.tenant_id::text AS tenant_id
FROM taken
CROSS JOIN share;

-- name: extend_effects
-- A worker keeps what is its own for another while.
WITH mine AS MATERIALIZED (
    SELECT id FROM runstone.outbox_events WHERE id = ANY ($3::uuid[]) AND owner = $1 ORDER BY id FOR NO KEY UPDATE
)
UPDATE runstone.outbox_events
SET held_until = $2
WHERE id = ANY (ARRAY(SELECT id FROM mine)) AND owner = $1
RETURNING id::text;

-- name: held_effects
-- Effects as they are, with the fences and claims of their outbox entries.
SELECT o.fence, o.claims, r.signal_id::text, e.*
FROM (SELECT {effect_selected} FROM runstone.effects WHERE id = ANY ($1::uuid[])) AS e
JOIN runstone.outbox_events AS o ON o.id = e.id::uuid
LEFT JOIN runstone.runs AS r ON r.id = e.run_id::uuid
ORDER BY coalesce(e.next_retry_at, e.requested_at), e.id;

-- name: release_effects
-- A worker puts entries back, for now or for later, and shuts itself out.
WITH mine AS MATERIALIZED (
    SELECT id FROM runstone.outbox_events WHERE id = ANY ($2::uuid[]) AND owner = $1 ORDER BY id FOR NO KEY UPDATE
),
released AS (
    UPDATE runstone.outbox_events
    SET
        owner = NULL,
        fence = fence + 1,
        held_until = coalesce($3::timestamptz, 'epoch'),
        claims = greatest(claims - 1, 0)
    WHERE id = ANY (ARRAY(SELECT id FROM mine)) AND owner = $1
    RETURNING 1
)
SELECT count(*) FROM released;

-- name: release_stray_effects
-- A worker puts back what it has and does not know of. Tenant by tenant along the index, beyond what is only due.
WITH RECURSIVE
tenants (tenant_id) AS (
    (
        SELECT tenant_id
        FROM runstone.outbox_events
        WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')
        ORDER BY tenant_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT o.tenant_id
        FROM runstone.outbox_events AS o
        WHERE o.status IN ('PENDING', 'FAILED', 'PROCESSING') AND o.tenant_id > t.tenant_id
        ORDER BY o.tenant_id
        LIMIT 1
    )
    FROM tenants AS t
    WHERE t.tenant_id IS NOT NULL
),
strays AS MATERIALIZED (
    SELECT o.id
    FROM tenants AS t
    CROSS JOIN LATERAL (
        SELECT id
        FROM runstone.outbox_events
        WHERE tenant_id = t.tenant_id
            AND greatest(coalesce(next_retry_at, created_at), held_until) > $2
            AND status IN ('PENDING', 'FAILED', 'PROCESSING')
            AND owner = $1
            AND id <> ALL ($3::uuid[])
        ORDER BY id
        FOR NO KEY UPDATE
    ) AS o
),
released AS (
    UPDATE runstone.outbox_events
    SET owner = NULL, fence = fence + 1, held_until = 'epoch', claims = greatest(claims - 1, 0)
    WHERE id = ANY (ARRAY(SELECT id FROM strays)) AND owner = $1
    RETURNING 1
)
SELECT count(*) FROM released;

-- name: effect_by_key
SELECT {effect_selected} FROM runstone.effects WHERE tenant_id = $1 AND idempotency_key = $2;

-- name: list_effects
-- The same for effects.
SELECT {effect_selected}
FROM unnest($2::text[]) AS wanted (one_status)
CROSS JOIN LATERAL (
    SELECT *
    FROM runstone.effects
    WHERE tenant_id = $1
        AND status = one_status
        AND ($3::text IS NULL OR effect_type = $3)
        AND ($4::text IS NULL OR error_details ->> 'code' = $4)
        AND id < coalesce($5::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY id DESC
    LIMIT $6
) AS e
ORDER BY e.id DESC
LIMIT $6;

-- name: effect_groups
SELECT status, effect_type, error_details ->> 'code' AS error_code, count(*)
FROM runstone.effects
WHERE tenant_id = $1 AND ($2::text IS NULL OR status = $2)
GROUP BY 1, 2, 3
ORDER BY status, effect_type COLLATE "C", coalesce(error_details ->> 'code', '') COLLATE "C";

-- name: list_entities
-- Along the index of their names.
SELECT {entity_selected}
FROM runstone.entities
WHERE tenant_id = $1
    AND (entity_type, entity_id) > ($3::text COLLATE "C", $4::text COLLATE "C")
    AND ($2::text IS NULL OR entity_type = $2)
ORDER BY entity_type, entity_id
LIMIT $5;

-- name: schedule_by_name
SELECT {schedule_selected} FROM runstone.schedules WHERE tenant_id = $1 AND name = $2;

-- name: list_schedules
-- Along the index of their names.
SELECT {schedule_selected}
FROM runstone.schedules
WHERE tenant_id = $1
    AND name > $4::text COLLATE "C"
    AND ($2::text IS NULL OR status = $2)
    AND ($3::text IS NULL OR task = $3)
ORDER BY name
LIMIT $5;

-- name: due_schedules
-- Schedules whose time has come or comes soon, each with the head of its stream, as of one moment. Ordered by the
-- columns themselves, not by what is selected of them: so a page ends where it is full, however many are due.
SELECT h.*, d.*
FROM (
    SELECT {schedule_selected}
    FROM runstone.schedules
    WHERE status = 'ACTIVE'
        AND next_at <= $2
        AND (next_at, id) > (
            coalesce($3::timestamptz, '-infinity'), coalesce($4::uuid, '00000000-0000-0000-0000-000000000000')
        )
        AND task = ANY ($1)
    ORDER BY schedules.next_at, schedules.id
    LIMIT $5
) AS d
CROSS JOIN LATERAL (
    SELECT {head_selected} FROM runstone.streams WHERE id = d.id::uuid
) AS h
ORDER BY d.next_at, d.id;

-- name: begin_rebuild
SELECT runstone.begin_rebuild($1);

-- name: defer_keys
-- Children may stand without parents until the transaction ends.
SET CONSTRAINTS ALL DEFERRED;

-- name: end_rebuild
SELECT runstone.end_rebuild();

-- name: lock_head
-- Nobody writes to a stream whose rows are being made again.
SELECT {head_selected} FROM runstone.streams WHERE id = $1 AND tenant_id = $2 FOR NO KEY UPDATE;

-- name: delete_of_stream
-- A table's rows of a stream, and those that are wanted, wherever they strayed: they are made again.
DELETE FROM {table} WHERE {belongs} OR {key} = ANY ($2::uuid[]);

-- name: delete_unwanted_of_stream
-- The same where rows stand beside a lease: those that are wanted stay, to be overwritten.
DELETE FROM {table} WHERE {belongs} AND NOT {key} = ANY ($2::uuid[]);

-- name: replace_row
INSERT INTO {table} ({columns}) VALUES ({marks})
ON CONFLICT ({key}, tenant_id) DO UPDATE SET {changes};

-- name: delete_strays
-- Rows of which neither heads nor events know.
WITH deleted AS (
    DELETE FROM {table} AS t
    WHERE NOT EXISTS (SELECT 1 FROM runstone.streams AS s WHERE s.id = {origin})
        AND NOT EXISTS (SELECT 1 FROM runstone.orchestration_events AS e WHERE e.stream_id = {origin})
    RETURNING 1
)
SELECT count(*) FROM deleted;

-- name: origin_of_outbox
(SELECT f.run_id FROM runstone.effects AS f WHERE f.id = t.id AND f.tenant_id = t.tenant_id)

-- name: orphans
-- Rows that belong to no stream of their tenant.
SELECT t.{key}::text
FROM {table} AS t
WHERE NOT EXISTS (SELECT 1 FROM runstone.streams AS s WHERE s.id = {origin} AND s.tenant_id = t.tenant_id);

-- name: headless
-- Streams without a head, and heads without a stream: what no other check would ever look at.
SELECT stream_id::text
FROM (SELECT stream_id, tenant_id FROM runstone.orchestration_events EXCEPT SELECT id, tenant_id FROM runstone.streams)
    AS events
UNION
SELECT id::text
FROM (SELECT id, tenant_id FROM runstone.streams EXCEPT SELECT stream_id, tenant_id FROM runstone.orchestration_events)
    AS heads;

-- name: maintenance
-- What a reader must never see: whoever left this behind has switched the guards off.
SELECT reason FROM runstone.maintenance;

-- name: guards
-- Triggers and foreign keys of ours that are switched off, and constraints that were never checked; what to do about
-- each. Only all triggers together bring back one of the server's own.
SELECT
    format('trigger %s of %s is switched off', tgname, tgrelid::regclass),
    format('ALTER TABLE %s ENABLE TRIGGER %s', tgrelid::regclass, CASE WHEN tgisinternal THEN 'ALL' ELSE tgname END)
        || '; then see with `runstone verify` what was written meanwhile'
FROM pg_trigger
WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'runstone'::regnamespace) AND tgenabled = 'D'
UNION ALL
SELECT
    format('constraint %s of %s was never checked', conname, conrelid::regclass),
    format('ALTER TABLE %s VALIDATE CONSTRAINT %s', conrelid::regclass, conname)
FROM pg_constraint
WHERE connamespace = 'runstone'::regnamespace AND NOT convalidated
UNION ALL
SELECT format('index %s is not valid', indexrelid::regclass), format('REINDEX INDEX %s', indexrelid::regclass)
FROM pg_index
WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'runstone'::regnamespace) AND NOT indisvalid;

-- name: missing_roles
SELECT name
FROM unnest(ARRAY['runstone_owner', 'runstone_migrator', 'runstone_engine', 'runstone_api']) AS name
WHERE to_regrole(name) IS NULL;

-- name: tenants_together
-- Tables with data of tenants in which the wall between them has a gap, and how to close it. A policy that somebody
-- made for a role of his own is his affair.
WITH kept AS (
    SELECT c.oid AS id, c.oid::regclass AS relation, c.relrowsecurity AS enabled, c.relforcerowsecurity AS forced
    FROM pg_class AS c
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
    WHERE c.relnamespace = 'runstone'::regnamespace AND c.relkind = 'r'
), wanted (policy, roles, rule) AS (
    VALUES
        ('every_tenant', ARRAY['runstone_engine'], 'true'),
        ('one_tenant', ARRAY['runstone_api', 'runstone_owner'], '(tenant_id = ( SELECT %tenant()%))')
), policies AS (
    SELECT
        polrelid AS id,
        polname AS policy,
        polpermissive AND polcmd = '*' AS whole,
        polpermissive AS adds,
        ARRAY(SELECT rolname::text FROM pg_roles WHERE oid = ANY (polroles) ORDER BY 1) AS roles,
        0 = ANY (polroles) AS for_all,
        pg_get_expr(polqual, polrelid) AS seen,
        pg_get_expr(polwithcheck, polrelid) AS written
    FROM pg_policy
), gaps AS (
    SELECT id, 'row-level security is switched off' AS gap FROM kept WHERE NOT enabled
    UNION ALL
    SELECT id, 'row-level security is not forced for the owner' FROM kept WHERE NOT forced
    UNION ALL
    SELECT k.id, format('policy %s is missing or was changed', w.policy)
    FROM kept AS k
    CROSS JOIN wanted AS w
    WHERE NOT EXISTS (
        SELECT 1
        FROM policies AS p
        WHERE p.id = k.id
            AND p.policy = w.policy
            AND p.whole
            AND p.roles = w.roles
            AND p.seen LIKE w.rule
            AND p.written LIKE w.rule
    )
    UNION ALL
    SELECT id, format('policy %s is none of ours', policy)
    FROM policies
    WHERE adds
        AND policy NOT IN (SELECT w.policy FROM wanted AS w)
        AND (for_all OR roles && ARRAY['runstone_api', 'runstone_owner'])
)
SELECT
    format('tenants are not kept apart in %s: %s', k.relation, string_agg(g.gap, ', ' ORDER BY g.gap)),
    format(
        'DROP POLICY IF EXISTS every_tenant ON %1$s; DROP POLICY IF EXISTS one_tenant ON %1$s; '
        'SELECT runstone.keep_tenants_apart(''%1$s''); and drop what is none of ours',
        k.relation
    )
FROM kept AS k
JOIN gaps AS g ON g.id = k.id
GROUP BY k.id, k.relation
ORDER BY k.relation::text;

-- name: strange_owners
-- What does not belong to the owner whom nobody logs in as.
SELECT
    format('%s belongs to %s', oid::regclass, relowner::regrole),
    format('ALTER TABLE %s OWNER TO runstone_owner', oid::regclass)
FROM pg_class
WHERE relnamespace = 'runstone'::regnamespace AND relkind IN ('r', 'v') AND relowner <> to_regrole('runstone_owner')
UNION ALL
SELECT
    format('%s belongs to %s', oid::regprocedure, proowner::regrole),
    format('ALTER FUNCTION %s OWNER TO runstone_owner', oid::regprocedure)
FROM pg_proc
WHERE pronamespace = 'runstone'::regnamespace AND proowner <> to_regrole('runstone_owner')
ORDER BY 1;

-- name: strange_grants
-- What the roles of processes may not and need, and what they may and must not: to change the log.
WITH asked AS (
    SELECT c.oid AS id, c.oid::regclass AS relation, r.role, p.privilege, w.allowed
    FROM pg_class AS c
    CROSS JOIN unnest(ARRAY['runstone_engine', 'runstone_api']) AS r (role)
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p (privilege)
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN p.privilege = 'SELECT' THEN true
            WHEN c.relname = 'orchestration_events' THEN p.privilege = 'INSERT'
            WHEN c.relname IN ('run_queue', 'run_checkpoints') AND p.privilege = 'DELETE' THEN true
            WHEN p.privilege IN ('INSERT', 'UPDATE') AND c.relname <> 'tombstones' THEN true
        END
    ) AS w (allowed)
    WHERE c.relnamespace = 'runstone'::regnamespace
        AND c.relkind = 'r'
        AND EXISTS (SELECT 1 FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id')
), wrong AS (
    SELECT relation, role, allowed, string_agg(privilege, ', ' ORDER BY privilege) AS privileges
    FROM asked
    WHERE has_table_privilege(to_regrole(role), id, privilege) <> allowed
    GROUP BY relation, role, allowed
)
SELECT
    format('%s may%s %s %s', role, CASE WHEN allowed THEN ' not' ELSE '' END, privileges, relation),
    CASE
        WHEN allowed THEN format('GRANT %s ON %s TO %s', privileges, relation, role)
        ELSE format('REVOKE %s ON %s FROM %s', privileges, relation, role)
    END
FROM wrong
UNION ALL
SELECT format('%s may not USE the schema runstone', role), format('GRANT USAGE ON SCHEMA runstone TO %s', role)
FROM unnest(ARRAY['runstone_engine', 'runstone_api']) AS role
WHERE NOT has_schema_privilege(to_regrole(role), 'runstone'::regnamespace, 'USAGE')
ORDER BY 1;

-- name: begin_part
-- In a transaction of somebody else's: what is refused from here on can be undone alone.
SAVEPOINT runstone;

-- name: end_part
RELEASE SAVEPOINT runstone;

-- name: undo_part
ROLLBACK TO SAVEPOINT runstone;
RELEASE SAVEPOINT runstone;

-- name: transaction
-- By what name to ask later how this transaction has ended.
SELECT pg_current_xact_id()::text;

-- name: isolation
SELECT current_setting('transaction_isolation');

-- name: ended_transactions
-- Those that are over; of one that ended very long ago nobody knows how.
SELECT id, pg_xact_status(id::xid8) AS status
FROM unnest($1::text[]) AS id
WHERE pg_xact_status(id::xid8) IS DISTINCT FROM 'in progress';

-- name: ring
-- A hint to all who listen.
SELECT pg_notify('runstone_bell', $1);

-- name: time
SELECT clock_timestamp();

-- name: expired
-- Correlations that have rested for long enough, along the age of their first signals. Every run and every effect of
-- theirs has ended. Each question about a correlation is a subquery of its own, which goes by an index; as joins they
-- would be asked about all correlations at once.
SELECT s.tenant_id::text, s.correlation_id::text, s.id::text, s.ingested_at, h.streams, h.events, h.last_at
FROM runstone.signals AS s
CROSS JOIN LATERAL (
    SELECT
        count(*) AS streams,
        sum(last_seq)::bigint AS events,
        max(last_at) AS last_at,
        bool_or(kind = 'RUN') AS has_runs
    FROM runstone.streams
    WHERE id = ANY (
        ARRAY(
            SELECT o.id
            FROM runstone.signals AS o
            WHERE o.correlation_id = s.correlation_id AND o.tenant_id = s.tenant_id
            UNION ALL
            SELECT r.id
            FROM runstone.runs AS r
            WHERE r.correlation_id = s.correlation_id AND r.tenant_id = s.tenant_id
        )
    )
) AS h
WHERE s.ingested_at <= greatest($1::timestamptz, $2::timestamptz)
    AND ($3::uuid IS NULL OR s.tenant_id = $3)
    AND (s.ingested_at, s.id) > (
        coalesce($4::timestamptz, '-infinity'),
        coalesce($5::uuid, '00000000-0000-0000-0000-000000000000')
    )
    AND s.id = (
        SELECT o.id
        FROM runstone.signals AS o
        WHERE o.correlation_id = s.correlation_id AND o.tenant_id = s.tenant_id
        ORDER BY o.ingested_at, o.id
        LIMIT 1
    )
    AND 0 = (
        SELECT count(*)
        FROM runstone.runs AS r
        WHERE r.correlation_id = s.correlation_id
            AND r.tenant_id = s.tenant_id
            AND r.status NOT IN ('CANCELLED', 'COMPLETED', 'FAILED')
    )
    AND 0 = (
        SELECT count(*)
        FROM runstone.effects AS e
        WHERE e.run_id = ANY (
                ARRAY(
                    SELECT r.id
                    FROM runstone.runs AS r
                    WHERE r.correlation_id = s.correlation_id AND r.tenant_id = s.tenant_id
                )
            )
            AND e.status NOT IN ('CANCELLED', 'COMPLETED')
    )
    AND h.last_at <= CASE WHEN h.has_runs THEN $1 ELSE $2 END
ORDER BY s.ingested_at, s.id
LIMIT $6;

-- name: expired_schedules
-- Schedules that are over and have rested, along their age.
SELECT d.tenant_id::text, d.id::text, d.id::text, d.created_at, 1, h.last_seq, h.last_at
FROM runstone.schedules AS d
CROSS JOIN LATERAL (SELECT last_seq, last_at FROM runstone.streams WHERE id = d.id) AS h
WHERE d.status IN ('CANCELLED', 'DONE')
    AND d.created_at <= $1
    AND ($2::uuid IS NULL OR d.tenant_id = $2)
    AND (d.created_at, d.id) > (
        coalesce($3::timestamptz, '-infinity'),
        coalesce($4::uuid, '00000000-0000-0000-0000-000000000000')
    )
    AND h.last_at <= $1
ORDER BY d.created_at, d.id
LIMIT $5;

-- name: forget
-- The retention function; all of it is in the database, for only its owner may delete.
SELECT outcome, of_stream::text, wanted, actual, why FROM runstone.forget_correlation($1, $2, $3);

-- name: find_tombstone
SELECT {tombstone_selected}
FROM runstone.tombstones
WHERE tenant_id = $1
    AND (stream_id = $2 OR (source_channel = $3 AND source_id = $4) OR run_key = $5)
LIMIT 1;

-- name: tombstones
SELECT {tombstone_selected} FROM runstone.tombstones AS t
WHERE t.tenant_id = $1 AND t.correlation_id = $2
ORDER BY t.stream_id;

-- name: graveyard
-- A page of all tombstones.
SELECT {tombstone_selected}
FROM runstone.tombstones AS t
WHERE t.stream_id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
    AND ($2::uuid IS NULL OR t.tenant_id = $2)
ORDER BY t.stream_id
LIMIT $3;

-- name: half_archived
-- Streams of which a part of the correlation was archived, and streams that stand beside their own tombstone.
SELECT t.stream_id::text
FROM runstone.tombstones AS t
WHERE EXISTS (SELECT 1 FROM runstone.streams AS s WHERE s.id = t.stream_id)
    OR EXISTS (
        SELECT 1
        FROM runstone.orchestration_events AS e
        WHERE e.tenant_id = t.tenant_id AND e.correlation_id = t.correlation_id
    );

-- name: vitals
-- How the work is going, over all tenants; $1 is the store's own time.
SELECT
    clock_timestamp() AS now,
    (
        SELECT persisted_at
        FROM runstone.orchestration_events
        ORDER BY transaction_id DESC, sequence_number DESC
        LIMIT 1
    ) AS latest;

-- name: effects_by_tenant
-- How many effects of each tenant have that status.
SELECT tenant_id::text, count(*) FROM runstone.effects WHERE status = $1 GROUP BY tenant_id ORDER BY tenant_id;

-- name: runs_by_tenant
SELECT tenant_id::text, count(*) FROM runstone.runs GROUP BY tenant_id ORDER BY tenant_id;

-- name: lost_workers
-- Workers whose lease is over while they still own runs.
SELECT q.owner, w.lease_until, count(*)
FROM runstone.run_queue AS q
LEFT JOIN runstone.workers AS w ON w.id = q.owner
WHERE q.owner IS NOT NULL AND coalesce(w.lease_until, 'epoch') <= $1
GROUP BY q.owner, w.lease_until
ORDER BY q.owner;

-- name: due_runs
-- Runs that are due and free, by what a worker has to have for them, and of each the one that has been so longest.
SELECT
    q.handler,
    r.orchestrator_version,
    count(*),
    min(q.wake_at),
    (array_agg(q.run_id::text ORDER BY q.wake_at, q.run_id))[1],
    (array_agg(q.tenant_id::text ORDER BY q.wake_at, q.run_id))[1]
FROM runstone.run_queue AS q
JOIN runstone.runs AS r ON r.id = q.run_id AND r.tenant_id = q.tenant_id
LEFT JOIN runstone.workers AS w ON w.id = q.owner
WHERE q.wake_at <= $1 AND (q.owner IS NULL OR coalesce(w.lease_until, 'epoch') <= $1)
GROUP BY q.handler, r.orchestrator_version
ORDER BY q.handler, r.orchestrator_version;

-- name: due_effects
-- Effects that are due and free, and the one that has been so longest.
SELECT
    count(*),
    min(due_at),
    (array_agg(id::text ORDER BY due_at, id))[1],
    (array_agg(tenant_id::text ORDER BY due_at, id))[1]
FROM (
    SELECT id, tenant_id, greatest(coalesce(next_retry_at, created_at), held_until) AS due_at
    FROM runstone.outbox_events
    WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')
) AS o
WHERE due_at <= $1;

-- name: paused
-- Why runs are paused, how many for each reason, and one of them.
SELECT reason, count(*), (array_agg(id::text ORDER BY id))[1], (array_agg(tenant_id::text ORDER BY id))[1]
FROM (
    SELECT r.id, r.tenant_id, (
        SELECT e.event_data ->> 'reason'
        FROM runstone.orchestration_events AS e
        WHERE e.stream_id = r.id AND e.event_type = 'RUN_PAUSED'
        ORDER BY e.run_seq DESC
        LIMIT 1
    ) AS reason
    FROM runstone.runs AS r
    WHERE r.status = 'PAUSED'
) AS p
GROUP BY reason
ORDER BY reason COLLATE "C";

-- name: unfired
-- Schedules that are due and that nobody has fired, by their task, and of each the one that has been so longest.
SELECT
    task,
    count(*),
    min(next_at),
    (array_agg(name ORDER BY next_at, id))[1],
    (array_agg(tenant_id::text ORDER BY next_at, id))[1]
FROM runstone.schedules
WHERE status = 'ACTIVE' AND next_at <= $1
GROUP BY task
ORDER BY task;

-- name: old_transactions
-- Transactions that have been open for longer than $1. Those of other users are for members of pg_read_all_stats.
SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::double precision AS seconds, state, application_name
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND clock_timestamp() - xact_start > $1
UNION ALL
SELECT NULL, extract(epoch FROM clock_timestamp() - prepared)::double precision, 'prepared', gid
FROM pg_prepared_xacts
WHERE database = current_database() AND clock_timestamp() - prepared > $1
ORDER BY 2 DESC;

-- name: dead_rows
-- Tables with more dead rows than $1, and than half of the live ones; when they were last vacuumed.
SELECT relname, n_dead_tup, n_live_tup, greatest(last_vacuum, last_autovacuum)
FROM pg_stat_user_tables
WHERE schemaname = 'runstone' AND n_dead_tup > $1::bigint AND n_dead_tup > n_live_tup / 2
ORDER BY relname;

-- name: settings_off
-- Settings among $1 that are off.
SELECT name FROM pg_settings WHERE name = ANY ($1::text[]) AND setting = 'off' ORDER BY name;

-- name: connections
-- How many connections there are, and how many there may be.
SELECT
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int;

-- name: schema_objects
-- Indexes and triggers that are there.
SELECT indexname AS name FROM pg_indexes WHERE schemaname = 'runstone'
UNION ALL
SELECT t.tgname
FROM pg_trigger AS t
JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'runstone'::regnamespace AND NOT t.tgisinternal;
