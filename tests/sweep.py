"""The size of the requested sweep: tests/conftest.py sets it before a test is imported."""

full = False
