"""Runstone: a durable, event-sourced orchestration runtime for agents and workflows."""

__version__ = "0.1.0"
