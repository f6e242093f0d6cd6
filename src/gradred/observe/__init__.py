"""Observe ranks: their status, hang reports, and figures measured between hosts."""
