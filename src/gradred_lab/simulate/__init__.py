"""Predictions: times of allreduce and training on clusters that need not be here."""
