"""Horovod's name for what its launcher's parts share."""
