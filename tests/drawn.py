"""Settings of hypothesis for this project, for the few files that draw their inputs.

They are not in conftest.py, because the import takes longer than all other imports of a rank's
tests together.
"""

import sweep
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

__all__ = ["Phase", "assume", "given", "settings", "st"]

# Derandomized: ranks that draw different examples would make different collective calls.
settings.register_profile(
    "gradred",
    max_examples=500 if sweep.full else 25,
    deadline=None,
    derandomize=True,
    database=None,
)
settings.load_profile("gradred")
