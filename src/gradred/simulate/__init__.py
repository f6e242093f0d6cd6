"""Predictions of allreduce and of training at scales nobody here has measured, with their error."""
