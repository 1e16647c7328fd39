"""Peers: other systems, measured in the same run on the same disk, each in an environment of its own.

`environment.py` builds one from a lock file; the scripts beside it run inside theirs.
"""
