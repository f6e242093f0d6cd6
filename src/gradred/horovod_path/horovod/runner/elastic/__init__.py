"""Horovod's names in elastic jobs' launcher."""
