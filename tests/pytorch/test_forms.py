"""Every form in which torch.distributed's collectives are written, beside gloo."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sweep
from pytorch.forms_of_torch import (
    FUNCTIONS,
    NO_FORMS,
    NO_FORMS_OF_METHODS,
    Form,
    forms_of_function,
    forms_of_method,
    forms_with_operations,
    methods,
    public_functions,
    values_of,
    values_of_method,
)
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    since(2, 13),  # other versions have other parameters
    pytest.mark.skipif(SIZE == 1, reason="messages take two ranks"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SHARE = 10  # one of so many forms is tried every day

# Forms that gloo refuses and gradred serves, by a pattern of their text, with the reason. There is
# none that only gloo serves.
MORE_THAN_GLOO = {
    "AVG of int32": "gradred truncates a mean of integers",
    "^reduce.*PRODUCT of complex64": "torch refuses it for all_reduce alone; gloo everywhere",
}


@pytest.fixture(scope="module")
def peer(group_of_all: None) -> Iterator[Any]:
    group = dist.new_group(backend="gloo")
    yield group
    dist.destroy_process_group(group)


def outcome(call: Any, values: dict[str, Any], form: Form) -> Any:
    """The class of the call's error, or all values after the call."""
    by_position = [values[name] for name in form.by_position]
    by_keyword = {name: values[name] for name in form.by_keyword}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(*by_position, **by_keyword)
            if hasattr(found, "wait"):
                found.wait()
    except Exception as error:
        return error
    # torch leaves open what the other ranks' tensors hold.
    return [] if form.function == "reduce" and form.root != RANK else _data(list(values.values()))


def _data(values: Any) -> Any:
    if isinstance(values, (list, tuple)):
        return [_data(one) for one in values]
    if isinstance(values, torch.Tensor):
        return (str(values.dtype), values.tolist())
    return values if isinstance(values, (str, int, dict)) else None


def call_of_function(form: Form, group: Any) -> Any:
    """Call a function; a message has its counterpart."""
    function = getattr(dist, form.function)
    values = values_of(form, group)
    if "group" not in form.names:  # gloo's group is never the default one

        def called(*args: Any, **named: Any) -> Any:
            return function(*args, group=group, **named)

    else:
        called = function
    if form.function not in ("send", "isend", "recv", "irecv"):
        return outcome(called, values, form)
    return _beside_counterpart(form, called, values, group)


def _beside_counterpart(form: Form, called: Any, values: dict[str, Any], group: Any) -> Any:
    tag = 3 if "tag" in form.names else 0
    sends = form.function in ("send", "isend")
    names_peer = form.names & {"src", "dst", "group_src", "group_dst", "dstRank", "srcRank"}
    if "nonsense" in form.names or (sends and not names_peer):
        return outcome(called, values, form)
    other = torch.zeros(4) if sends else torch.arange(4.0) + RANK
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    if sends:
        pending = dist.irecv(other, left, group=group, tag=tag)
    else:
        pending = dist.isend(other, right, group=group, tag=tag)
    found = outcome(called, values, form)
    pending.wait()
    return [found, other.tolist()] if isinstance(found, list) else found


def compare(form: Form, ours: Any, gloos: Any) -> str:
    """What differs, or an empty text."""
    failed = [isinstance(one, Exception) for one in (ours, gloos)]
    if any(re.search(pattern, str(form)) for pattern in MORE_THAN_GLOO):
        well = failed == [False, True]
    else:
        well = isinstance(ours, type(gloos)) if all(failed) else ours == gloos
    return "" if well else f"{form}\n    gradred: {_text(ours)}\n    gloo:    {_text(gloos)}"


def _text(found: Any) -> str:
    named = f"{type(found).__name__}: {found}" if isinstance(found, Exception) else str(found)
    return named[:300]


def chosen(forms: list[Form]) -> list[Form]:
    return forms if sweep.full else forms[::SHARE]


def differences(forms: list[Form], call: Any, peer: Any) -> list[str]:
    found = []
    for form in chosen(forms):
        ours, gloos = call(form, dist.group.WORLD), call(form, peer)
        found.append(compare(form, ours, gloos))
    return [one for one in found if one]


@pytest.mark.wider
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, peer: Any) -> None:
    found = differences(forms_of_function(name), call_of_function, peer)
    assert not found, "\n".join(found)


@pytest.mark.wider
@pytest.mark.parametrize(
    "name", [one for one in FUNCTIONS if "reduce" in one and one != "reduce_scatter_tensor"]
)
def test_operations(name: str, peer: Any) -> None:
    found = differences(forms_with_operations(name), call_of_function, peer)
    assert not found, "\n".join(found)


def call_of_method(form: Form, group: Any) -> Any:
    method = getattr(group, form.function)
    values = values_of_method(form)
    if form.function not in ("send", "recv"):
        return outcome(method, values, form)
    return _beside_counterpart(form, method, values, group)


@pytest.mark.wider
@pytest.mark.parametrize("name", [one for one in methods() if one not in NO_FORMS_OF_METHODS])
def test_methods(name: str, peer: Any) -> None:
    found = differences(forms_of_method(name), call_of_method, peer)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_roots_of_methods_may_be_numbers_of_numpy(name: str, peer: Any) -> None:
    def call(form: Form, group: Any) -> Any:
        values = values_of_method(form)
        values["root"] = np.int64(values["root"])
        return outcome(getattr(group, name), values, form)

    forms = [
        one for one in forms_of_method(name) if "root" in one.names and "nonsense" not in one.names
    ]
    assert forms
    assert not differences(forms, call, peer)


def test_every_function_with_a_group_has_forms_or_a_reason() -> None:
    assert set(public_functions()) <= {*FUNCTIONS, *NO_FORMS}
    assert set(methods()) >= {*NO_FORMS_OF_METHODS}
