"""Horovod's names in the launcher of elastic jobs."""
