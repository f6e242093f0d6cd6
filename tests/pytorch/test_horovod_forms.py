"""Every way in which Horovod's documentation writes a call, checked against plain PyTorch.

`horovod_forms.py` makes the forms from the signatures, and says what is not served. A small share
runs by default, all of them with --full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sweep
from pytorch.given import RANKS, hvd, name, torch
from pytorch.horovod_forms import FUNCTIONS, NOT_SERVED, TABLE, Carried, Form

pytestmark = pytest.mark.usefixtures("initialised")


@pytest.fixture(scope="module")
def half(initialised: None) -> Iterator[Any]:
    """This rank's set of ranks: the even or the odd ones."""
    if RANKS == 1:
        yield None
        return
    ranks = range(hvd.size())
    sets = [hvd.add_process_set([r for r in ranks if r % 2 == odd]) for odd in (0, 1)]
    yield sets[hvd.rank() % 2]
    hvd.barrier()
    for one in sets:
        hvd.remove_process_set(one)


def what_is_wrong(form: Form, half: Any) -> str:
    carried = Carried(form, half)
    try:
        found = carried.call()
        for one, expected in zip(found, carried.expected(), strict=True):
            exact = form.dtype is not torch.float16 and form.given.get("compression") != "fp16"
            close = {"rtol": 1e-6, "atol": 0.0} if exact else {"rtol": 4e-3, "atol": 1e-3}
            torch.testing.assert_close(one, expected, **close)
    except (AssertionError, TypeError, ValueError, hvd.HorovodInternalError) as error:
        return f"{form}: {type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_form_gives_what_plain_pytorch_computes(function: str, half: Any) -> None:
    problems = [what_is_wrong(form, half) for form in TABLE.forms_of(function, full=sweep.full)]
    problems = [one for one in problems if one]
    assert not problems, "\n".join([f"{len(problems)} forms:", *problems[:10]])


def test_the_table_has_a_reason_for_each_form_that_is_not_served() -> None:
    assert all(NOT_SERVED.values())


# ---- refused forms ------------------------------------------------------------------------------


def x(rows: int = 2) -> Any:
    return torch.ones(rows * max(RANKS, 1), 3)


def sgd(**given: Any) -> Any:
    w = torch.nn.Parameter(torch.ones(2))
    return hvd.DistributedOptimizer(torch.optim.SGD([w], 0.1), [("w", w)], **given)


same = torch.ones(3)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "allreduce(x, True, op=Sum)": (lambda: hvd.allreduce(x(), True, op=hvd.Sum), ValueError),
    "allreduce_async_(x, average=False, op=Sum)": (
        lambda: hvd.allreduce_async_(x(), average=False, op=hvd.Sum),
        ValueError,
    ),
    "grouped_allreduce([x], True, op=Average)": (
        lambda: hvd.grouped_allreduce([x()], True, op=hvd.Average),
        ValueError,
    ),
    "allreduce(x, op=99)": (lambda: hvd.allreduce(x(), op=99), ValueError),
    "allreduce(x, op='sum')": (lambda: hvd.allreduce(x(), op="sum"), TypeError),
    "allreduce([x])": (lambda: hvd.allreduce([x()]), TypeError),
    "allreduce(x[::2])": (lambda: hvd.allreduce(torch.ones(8)[::2]), ValueError),
    "allreduce_(x[::2])": (lambda: hvd.allreduce_(torch.ones(8)[::2]), ValueError),
    "broadcast_async_(x[::2], 0)": (
        lambda: hvd.broadcast_async_(torch.ones(8)[::2], 0),
        ValueError,
    ),
    "allreduce(bool, op=Sum)": (
        lambda: hvd.allreduce(torch.ones(3, dtype=torch.bool), op=hvd.Average),
        ValueError,
    ),
    "grouped_allreduce([])": (lambda: hvd.grouped_allreduce([]), ValueError),
    "grouped_allgather([])": (lambda: hvd.grouped_allgather([]), ValueError),
    "grouped_reducescatter([])": (lambda: hvd.grouped_reducescatter([]), ValueError),
    "grouped_allreduce_([x, x])": (lambda: hvd.grouped_allreduce_([same, same]), ValueError),
    "grouped_allreduce_([x, x[1:]])": (
        lambda: hvd.grouped_allreduce_([same, same[1:]]),
        ValueError,
    ),
    "broadcast(x, -1)": (lambda: hvd.broadcast(x(), -1), ValueError),
    "broadcast(x, size())": (lambda: hvd.broadcast(x(), hvd.size()), ValueError),
    "allgather(scalar)": (lambda: hvd.allgather(torch.tensor(1.0)), ValueError),
    "alltoall(scalar)": (lambda: hvd.alltoall(torch.tensor(1.0)), ValueError),
    "reducescatter(scalar)": (lambda: hvd.reducescatter(torch.tensor(1.0)), ValueError),
    "reducescatter(x, op=Max)": (
        lambda: hvd.reducescatter(x(), op=hvd.Max),
        hvd.HorovodInternalError,
    ),
    "alltoall(x, floats)": (
        lambda: hvd.alltoall(x(), torch.full((hvd.size(),), 2.0)),
        ValueError,
    ),
    "alltoall(x, 2-D splits)": (
        lambda: hvd.alltoall(x(), torch.full((hvd.size(), 1), 2, dtype=torch.int32)),
        ValueError,
    ),
    "alltoall(x, too many splits)": (lambda: hvd.alltoall(x(), [0] * 50), ValueError),
    "alltoall(x, splits over the rows)": (
        lambda: hvd.alltoall(x(), [100] * hvd.size()),
        ValueError,
    ),
    "allreduce(x, process_set=ProcessSet([0]))": (
        lambda: hvd.allreduce(x(), process_set=hvd.ProcessSet([0])),
        ValueError,
    ),
    "poll(unknown)": (lambda: hvd.poll(10**9), ValueError),
    "broadcast_parameters(generator)": (
        lambda: hvd.broadcast_parameters((one for one in [x()]), 0),
        ValueError,
    ),
    "broadcast_parameters(tuple)": (lambda: hvd.broadcast_parameters((x(),), 0), ValueError),
    "broadcast_optimizer_state(LBFGS)": (
        lambda: hvd.broadcast_optimizer_state(
            torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]), 0
        ),
        ValueError,
    ),
    "DistributedOptimizer(backward_passes_per_step=0)": (
        lambda: sgd(backward_passes_per_step=0),
        ValueError,
    ),
    "DistributedOptimizer(groups=-1)": (lambda: sgd(groups=-1), ValueError),
    "DistributedOptimizer(gradient_predivide_factor=2, op=Sum)": (
        lambda: sgd(gradient_predivide_factor=2.0, op=hvd.Sum),
        ValueError,
    ),
    "DistributedOptimizer(process_set=ProcessSet([0]))": (
        lambda: sgd(process_set=hvd.ProcessSet([0])),
        ValueError,
    ),
    "ProcessSet(['0'])": (lambda: hvd.ProcessSet(["0"]), ValueError),
}


@pytest.mark.parametrize("form", REFUSED)
def test_refused_forms_raise_horovods_class_of_error(form: str) -> None:
    call, expected = REFUSED[form]
    with pytest.raises(expected):
        call()
    total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name=name())
    assert total.tolist() == [float(hvd.size())] * 2  # everything else goes on


@pytest.mark.skipif(RANKS == 1, reason="one rank's operation ends at once")
def test_a_name_in_flight_is_refused() -> None:
    one = name()
    if hvd.rank() == 0:
        first = hvd.allreduce_async(x(), name=one)
        with pytest.raises(ValueError, match="has been submitted and has not ended"):
            hvd.allreduce_async(x(), name=one)
    hvd.barrier()
    if hvd.rank() != 0:
        first = hvd.allreduce_async(x(), name=one)
    assert hvd.synchronize(first).shape == x().shape
    assert hvd.synchronize(first) is None
