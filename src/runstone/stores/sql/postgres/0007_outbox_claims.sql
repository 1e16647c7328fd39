-- How often an outbox entry was claimed without an outcome, beside its lease, and no history.
ALTER TABLE runstone.outbox_events ADD COLUMN claims bigint NOT NULL DEFAULT 0;
