"""Effects on their way out: claimed from the outbox, carried out, their outcomes recorded."""
