"""hypothesis with this project's settings, for the few files that draw their inputs.

Not in conftest.py: the import would take longer than all other imports of a rank's tests.
"""

import sweep
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

__all__ = ["Phase", "assume", "given", "settings", "st"]

# Derandomized, because ranks that draw different examples do not make the same collective calls.
settings.register_profile(
    "gradred",
    max_examples=500 if sweep.full else 25,
    deadline=None,
    derandomize=True,
    database=None,
)
settings.load_profile("gradred")
