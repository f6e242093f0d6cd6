"""Calls on arrays: any array in, the same kind of array out."""
