"""Measuring: what `gradred bench`, `gradred explain` and the programs in benchmarks/ share.

Times are taken on plain mpi4py communicators, so that nothing measured is also the measure.
"""
