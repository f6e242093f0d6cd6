"""States of an elastic training with PyTorch, to which it returns after a failure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gradred.horovod.elastic import state as any_state
from gradred.horovod.elastic.job import StateFormat
from gradred.horovod.elastic.state import ObjectState as ObjectState
from gradred.horovod.elastic.state import State as State
from gradred.torch.elastic.handlers import ModelStateHandler as ModelStateHandler
from gradred.torch.elastic.handlers import OptimizerStateHandler as OptimizerStateHandler
from gradred.torch.elastic.handlers import SamplerStateHandler as SamplerStateHandler
from gradred.torch.elastic.handlers import StateHandler as StateHandler
from gradred.torch.elastic.handlers import get_handler_registry as get_handler_registry
from gradred.torch.elastic.handlers import handlers_of
from gradred.torch.elastic.handlers import set_handler_registry as set_handler_registry

_FORMAT = StateFormat(torch.save, functools.partial(torch.load, weights_only=False))


class TorchState(ObjectState):
    """State of a model, an optimizer, samplers and plain values.

    Args:
        model: module whose parameters and buffers are saved.
        optimizer: optimizer whose state is saved.
        kwargs: further modules, optimizers, samplers (`ElasticSampler`) and plain values. Each
            becomes an attribute. `set_handler_registry` adds handlers for other types.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        self._parts = handlers = handlers_of(given)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: one for name, one in kwargs.items() if name not in handlers}
        super().__init__(**plain)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        handler = self.__dict__.get("_parts", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function whose first argument is a `State`.

    The function starts with a state that all ranks share. In an elastic job (`gradred run --min-np
    N`, `--elastic-dir`) this is the newest state, otherwise that of rank 0. If an operation fails,
    the state returns to its last commit, and the function is called again. The call includes all
    ranks or, if some have ended, the remaining ranks.

    An elastic job is restarted from its newest state if there is room for more ranks. It is also
    restarted after ranks have ended, if the remaining ones are on several hosts, have process sets,
    or are too few. `SystemExit` leaves the function in these cases.

    Raises:
        HorovodInternalError: ranks have ended, and the remaining ones cannot continue: they are on
            several hosts or have process sets, and the job is not elastic.
        ValueError: the newest state belongs to another program.
    """
    return run_fn(func)


def run_fn(
    func: Callable[..., Any], reset: Callable[[], object] | None = None
) -> Callable[..., Any]:
    """Like `run`. `reset` replaces `shutdown` and `init` if no rank has ended."""
    return any_state.run_fn(func, reset, file_format=_FORMAT)
