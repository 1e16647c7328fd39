-- What is left of correlations that were archived, and what keeps it so (§STO-37, §STO-51 to §STO-53).

-- One row where a stream was: the proof of what was there, where that is now, and what a duplicate is known by.
CREATE TABLE tombstones (
    stream_id       TEXT PRIMARY KEY,
    tenant_id       TEXT NOT NULL,
    kind            TEXT NOT NULL,
    last_seq        INTEGER NOT NULL,
    head            TEXT NOT NULL,
    correlation_id  TEXT NOT NULL,
    source_channel  TEXT,
    source_id       TEXT,
    source_hash     TEXT,
    signal_id       TEXT,
    run_key         TEXT,
    archive         TEXT NOT NULL,
    bundle          TEXT NOT NULL,
    bundle_sha256   TEXT NOT NULL,
    removed_at      INTEGER NOT NULL,
    digest          TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_correlation ON tombstones (tenant_id, correlation_id);
CREATE UNIQUE INDEX tombstones_by_source ON tombstones (tenant_id, source_channel, source_id)
WHERE source_id IS NOT NULL;
CREATE UNIQUE INDEX tombstones_by_key ON tombstones (tenant_id, run_key) WHERE run_key IS NOT NULL;

-- Retention looks at the oldest first.
CREATE INDEX signals_by_age ON signals (ingested_at);

CREATE TRIGGER tombstones_no_update BEFORE UPDATE ON tombstones
BEGIN
    SELECT RAISE(ABORT, 'tombstones are immutable');
END;

-- It goes when its stream is back, and not before.
CREATE TRIGGER tombstones_no_delete BEFORE DELETE ON tombstones
WHEN NOT EXISTS (
    SELECT 1 FROM streams WHERE id = OLD.stream_id AND last_seq = OLD.last_seq AND head = OLD.head
)
BEGIN
    SELECT RAISE(ABORT, 'a tombstone stays until its stream is back');
END;

-- A stream that was removed comes back whole, or not at all. A row that is only updated does not ask.
CREATE TRIGGER streams_archived AFTER INSERT ON streams
WHEN EXISTS (SELECT 1 FROM tombstones WHERE stream_id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: tombstones.stream_id')
    WHERE NOT EXISTS (
        SELECT 1
        FROM tombstones
        WHERE stream_id = NEW.id AND tenant_id = NEW.tenant_id AND last_seq = NEW.last_seq AND head = NEW.head
    );
    DELETE FROM tombstones WHERE stream_id = NEW.id;
END;

-- The same signal is not processed twice, however late it comes.
CREATE TRIGGER signals_archived AFTER INSERT ON signals
WHEN EXISTS (
    SELECT 1
    FROM tombstones
    WHERE tenant_id = NEW.tenant_id
        AND source_channel = NEW.source_channel
        AND source_id = NEW.source_id
        AND stream_id <> NEW.id
)
BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: tombstones.source_channel, tombstones.source_id');
END;

-- A run's key stays its own.
CREATE TRIGGER runs_archived AFTER INSERT ON runs
WHEN NEW.key IS NOT NULL
    AND EXISTS (
        SELECT 1 FROM tombstones WHERE tenant_id = NEW.tenant_id AND run_key = NEW.key AND stream_id <> NEW.id
    )
BEGIN
    SELECT RAISE(ABORT, 'UNIQUE constraint failed: tombstones.run_key');
END;
