"""Horovod's names for small helpers of its launcher."""
