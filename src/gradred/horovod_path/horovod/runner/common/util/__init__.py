"""Horovod's names for helpers of its launcher that other programs import."""
