"""Metrics: one table, counted purely, exposed late.

    spec        what a declaration is (name, kind, labels, part, meaning) and what an equality is
    worker      the worker's declarations          \\
    leader      the leader's declarations           } plain data, read top to bottom
    engine      the engines' declarations          /
    table       all of them joined and checked; look-up by name
    counters    plain numbers that a pure core adds to (no prometheus import)
    equalities  what must add up, checked against such numbers
    reports     engines' numbers as they travel to the worker and stand there
    exposition  the only file that knows prometheus-client: numbers read at scrape time
    docs        docs/metrics.md, written from the table

This file imports nothing, so that a core which counts does not load an HTTP client library.
"""
