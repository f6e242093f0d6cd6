"""Submission of allreduces of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradred.errors import Error, UsageError
from gradred.horovod import basics
from gradred.horovod.errors import internal_error
from gradred.horovod.operations import engine_of, reducing, submit
from gradred.horovod.process_sets import ProcessSet
from gradred.horovod.state import state
from gradred.torch_tensors import described


def submit_tensor(
    tensor: torch.Tensor,
    out: torch.Tensor,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int = 0,
) -> int:
    """Like `submit`, for an allreduce of one tensor."""
    engine, how = engine_of(process_set), (op, prescale, postscale, priority)
    if name is None:
        name = engine.next_name("allreduce")
        handle = state.handles.start_allreduce(engine, tensor, out, name, *how)
        if handle is not None:
            return handle
    asked = (prescale, postscale, process_set, out, priority)
    try:
        return submit_tensors([tensor], [out], name, op, *asked)
    except UsageError:
        raise
    except Error as error:
        raise internal_error(error) from error


def submit_tensors(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    result: Any,
    priority: int,
) -> int:
    """Like `submit`, for an allreduce of several tensors, or of one that C++ does not accept."""
    engine = engine_of(process_set)
    if op == basics.Adasum:
        from gradred.torch import adasum

        return adasum.start(inputs, outputs, name, prescale, postscale, process_set, result)
    operation = reducing(op)
    return submit(
        engine,
        "allreduce",
        name,
        [described(x, y, "allreduce") for x, y in zip(inputs, outputs, strict=True)],
        lambda _: result,
        (inputs, outputs),
        op=operation,
        prescale=prescale,
        postscale=postscale,
        priority=priority,
    )
