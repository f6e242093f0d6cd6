"""Every way in which Horovod's documentation writes a call for TensorFlow and Keras.

`horovod_forms.py` makes the forms from the signatures, and says what is not served. A small share
runs by default, all of them with --full.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sweep
from horovod_calls import Form
from tf.given import hvd, tf
from tf.horovod_forms import (
    FUNCTIONS,
    NOT_SERVED,
    TABLES,
    TAPES,
    VALUES,
    WAYS,
    Carried,
    Tape,
    forms_of_tapes,
)

pytestmark = pytest.mark.usefixtures("initialised")


@pytest.fixture(scope="module")
def half(initialised: None) -> Iterator[Any]:
    """This rank's set of ranks: the even or the odd ones."""
    if hvd.size() == 1:
        yield None
        return
    ranks = range(hvd.size())
    sets = [hvd.add_process_set([r for r in ranks if r % 2 == odd]) for odd in (0, 1)]
    yield sets[hvd.rank() % 2]
    hvd.barrier()
    for one in sets:
        hvd.remove_process_set(one)


def what_is_wrong(front_end: str, form: Form, way: str, half: Any) -> str:
    try:
        carried = Carried(front_end, form, way, half)
        exact = form.dtype != "float16" and form.given.get("compression") != "fp16"
        close = {"rtol": 1e-6} if exact else {"rtol": 4e-3, "atol": 1e-3}
        for one, expected in zip(carried.call(), carried.expected(), strict=True):
            np.testing.assert_allclose(one, expected, **close)
    except (AssertionError, TypeError, ValueError, tf.errors.OpError) as error:
        return f"{form}, {way}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.wider
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("front_end", "function"), FUNCTIONS)
def test_each_form_gives_what_numpy_computes(front_end: str, function: str, half: Any) -> None:
    forms = TABLES[front_end].forms_of(function, full=sweep.full)
    assert len(forms) > 4
    problems = [
        problem
        for form, way in zip(forms, itertools.cycle(WAYS), strict=False)
        if (problem := what_is_wrong(front_end, form, way, half))
    ]
    assert not problems, "\n".join([f"{len(problems)} forms:", *problems[:10]])


@pytest.mark.wider
@pytest.mark.timeout(600)
def test_each_form_of_a_tape_gives_the_mean_or_sum_of_gradients(half: Any) -> None:
    problems = []
    forms = forms_of_tapes(full=sweep.full)
    for form, way in zip(forms, itertools.cycle(["eager", "graph"]), strict=False):
        tape = Tape(form, way, half)
        for one, expected in zip(tape.gradients(), tape.gradients_expected(), strict=True):
            if not np.allclose(one, expected, rtol=1e-3, atol=1e-3):
                problems.append(
                    f"{form}, {way}: {one.reshape(-1)[0]}, not {expected.reshape(-1)[0]}"
                )
    assert not problems, "\n".join([f"{len(problems)} forms:", *problems[:10]])


def test_the_table_has_values_of_all_arguments_and_reasons_for_what_is_not_served() -> None:
    for front_end, function in (*FUNCTIONS, *(("tensorflow", tape) for tape in TAPES)):
        called = getattr(TABLES[front_end].module, function)
        _, *rest = inspect.signature(called).parameters
        assert set(rest) <= set(VALUES), function
    assert all(NOT_SERVED.values())


REFUSED: dict[str, Any] = {
    "allreduce(x, True, op=Sum)": lambda x: hvd.allreduce(x, True, op=hvd.Sum),
    "allreduce(x, op=99)": lambda x: hvd.allreduce(x, op=99),
    "grouped_allreduce([x], True, op=Sum)": lambda x: hvd.grouped_allreduce([x], True, op=hvd.Sum),
    "reducescatter(x, op=Max)": lambda x: hvd.reducescatter(x, op=hvd.Max),
    "grouped_reducescatter([x], op=Max)": lambda x: hvd.grouped_reducescatter([x], op=hvd.Max),
    "broadcast(x, -1)": lambda x: hvd.broadcast(x, -1),
    "broadcast(x, size())": lambda x: hvd.broadcast(x, hvd.size()),
    "broadcast_([v], size())": lambda x: hvd.broadcast_([tf.Variable(x)], hvd.size()),
    "allgather(scalar)": lambda x: hvd.allgather(x[0, 0]),
    "alltoall(scalar)": lambda x: hvd.alltoall(x[0, 0]),
    "reducescatter(scalar)": lambda x: hvd.reducescatter(x[0, 0]),
    "alltoall(x, too many splits)": lambda x: hvd.alltoall(x, [0] * 50),
    "alltoall(x, splits over the rows)": lambda x: hvd.alltoall(x, [100] * hvd.size()),
    "allreduce(x, process_set=ProcessSet([0]))": lambda x: hvd.allreduce(
        x, process_set=hvd.ProcessSet([0])
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_refused_forms_are_errors_and_everything_else_goes_on(form: str) -> None:
    errors = (ValueError, tf.errors.OpError, hvd.elastic.HorovodInternalError)
    with pytest.raises(errors):
        REFUSED[form](tf.ones([2 * hvd.size(), 3]))
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()
