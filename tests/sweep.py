"""How large a sweep was asked for: tests/conftest.py says it before a test is imported."""

full = False
