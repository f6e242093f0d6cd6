"""Looking at ranks: where they are, reports of hangs, what was measured between hosts."""
