"""Measurements: the code that `gradred bench`, `gradred explain` and benchmarks/ share.

Barriers and exchanges of results use plain mpi4py communicators, so that gradred does not measure
with its own calls.
"""
