"""What carries effects out, one module per kind of peer.

Each imports the library it speaks with, so that a program needs only those whose executors it uses.
All of them leave through `gate`, but for `entities` and `schedules`, whose effects stay in our own store.
"""
