"""Runs that move through a declared graph of states and live in a folder (`specs/pipeline.md`)."""
