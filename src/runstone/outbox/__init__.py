"""Effects on their way out: claimed from the outbox, executed outside, their outcomes recorded."""
