"""Simulated time: what plans take on clusters that need not be here."""
