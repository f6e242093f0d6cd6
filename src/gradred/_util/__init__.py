"""Helpers that several packages share: this machine's cores, output files, text, the clock."""
