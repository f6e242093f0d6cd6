"""How long a test waits for what follows a real kill, stop or signal.

Other users of the machine decide when ranks get a core, so a bound in seconds would measure that.
Tests enforce the times that gradred promises only if the variable TESTS_STRICT_TIMES is 1, on a
machine that does nothing else. The nightly run sets it in two stages that run alone.
`csrc/tests/in_time.h` is the same for C++.
"""

import os

GENEROUS = 30.0  # seconds that a test allows in addition
STRICT = os.environ.get("TESTS_STRICT_TIMES") == "1"


def within(seconds: float) -> float:
    """The bound that a test asserts for something that gradred does within `seconds`."""
    return seconds if STRICT else seconds + GENEROUS
