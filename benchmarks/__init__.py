"""Benchmarks: one interface for all of them, `python -m benchmarks NAME`.

A benchmark reports ratios, taken in one run on one machine, so that they mean something on another:
`report.py` says what a report is, `suite/` has one module for each benchmark.
"""
