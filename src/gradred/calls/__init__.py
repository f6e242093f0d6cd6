"""Calls on arrays: they take any array and return the same kind of array."""
