-- How often an outbox entry was claimed without an outcome, beside its lease, and no history.
ALTER TABLE outbox_events ADD COLUMN claims INTEGER NOT NULL DEFAULT 0;
