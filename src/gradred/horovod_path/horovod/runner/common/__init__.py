"""Horovod's name for the modules that the parts of its launcher share."""
