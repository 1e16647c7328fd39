"""Ports: what Runstone asks of the outside. Their docstrings are the contract."""
