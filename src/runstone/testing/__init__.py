"""For tests, ours and yours: a clock that tests set, legal histories, faults, and the suites that prove a store.

Install it with `pip install runstone[testing]`.
"""
