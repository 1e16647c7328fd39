"""For tests, ours and yours: a clock that stands still, legal histories, faults, the proof of a store.

Install it with `pip install runstone[testing]`.
"""
