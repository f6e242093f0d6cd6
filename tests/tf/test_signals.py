"""Signal handlers during a blocking call; see tests/mpi/test_signals.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from signalled import during
from tf.given import hvd, tf

pytestmark = pytest.mark.usefixtures("initialised")


@pytest.mark.parametrize("count", [1, 1000, 100_000])
@pytest.mark.parametrize("way", [lambda call: call, tf.function], ids=["eager", "graph"])
def test_handler_that_writes_changes_the_result_of_no_rank(way: Any, count: int) -> None:
    x = tf.Variable(np.full(count, hvd.rank() + 1.0))
    call = way(lambda: hvd.allreduce(x, op=hvd.Sum))
    call()  # TensorFlow traces the function
    result = during(call, lambda: x.assign(np.zeros(count)))
    assert (result.numpy() == hvd.size() * (hvd.size() + 1) // 2).all()
