"""The engine: durable functions, executed, replayed, suspended and resumed."""
