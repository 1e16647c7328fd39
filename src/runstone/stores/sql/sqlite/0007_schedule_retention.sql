-- Schedules that are over go as runs do, once they have rested (§STO-56, §STO-57). Retention looks at the oldest first.
CREATE INDEX schedules_over ON schedules (created_at, id) WHERE status IN ('CANCELLED', 'DONE');
