"""Telling others what happens: adapters of the telemetry port."""
