-- The system of record: entities as their last change left them (§ENT-26, §ENT-27). An entity belongs to no run; the
-- one that wrote to it last may be archived by now, so nothing refers to it.
CREATE TABLE entities (
    id              TEXT PRIMARY KEY,
    tenant_id       TEXT NOT NULL,
    entity_type     TEXT NOT NULL,
    entity_id       TEXT NOT NULL,
    version         INTEGER NOT NULL CHECK (version >= 1),
    data            TEXT NOT NULL,
    evidence_pack   TEXT NOT NULL,
    source_id       TEXT NOT NULL,
    source_hash     TEXT NOT NULL,
    timestamp       INTEGER NOT NULL,
    inference       INTEGER NOT NULL,
    run_id          TEXT NOT NULL,
    effect_id       TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    UNIQUE (tenant_id, entity_type, entity_id)
) STRICT, WITHOUT ROWID;

-- §TRN-36.
CREATE TRIGGER entities_rise BEFORE UPDATE ON entities
WHEN NEW.version <= OLD.version AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'the version of an entity only rises');
END;

CREATE TRIGGER entities_stay_themselves BEFORE UPDATE ON entities
WHEN (NEW.id, NEW.tenant_id, NEW.entity_type, NEW.entity_id) <> (OLD.id, OLD.tenant_id, OLD.entity_type, OLD.entity_id)
    AND NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'an entity stays the one that it is');
END;

CREATE TRIGGER entities_no_delete BEFORE DELETE ON entities
WHEN NOT EXISTS (SELECT 1 FROM maintenance)
BEGIN
    SELECT RAISE(ABORT, 'an entity does not vanish');
END;
