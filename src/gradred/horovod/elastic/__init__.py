"""Elastic training: states, and the job that restarts ranks."""
