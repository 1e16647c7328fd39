"""Stores: adapters of the store port, each named after its technology."""
