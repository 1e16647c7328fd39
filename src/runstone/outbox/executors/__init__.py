"""What does effects outside, one module per kind of peer.

Each imports the library it speaks with, so that a program needs only those whose executors it uses.
All of them leave through `gate`.
"""
