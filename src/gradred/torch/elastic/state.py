"""What training can go back to."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradred.torch import basics
from gradred.torch.elastic.sampler import ElasticSampler
from gradred.torch.errors import HorovodInternalError, HostsUpdatedInterrupt
from gradred.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class State:
    """What is saved, restored, and made the same on all ranks; subclass it, or use `TorchState`."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Have these called after each new beginning."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """After a new beginning."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Save the state, to which a failure goes back."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Whether hosts have come or gone: here none do."""

    def save(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks what rank 0 has."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to the ranks that there are now."""


class ObjectState(State):
    """Plain values, by name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._names = list(kwargs)
        self._saved: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._keep()

    def _keep(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def save(self) -> None:
        """Keep a copy."""
        self._keep()

    def restore(self) -> None:
        """Go back to the copy."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Give all ranks what rank 0 has, which counts as saved."""
        values = {name: getattr(self, name) for name in self._names}
        for name, value in broadcast_object(values, 0, "elastic.state").items():
            setattr(self, name, value)
        self._keep()


class TorchState(ObjectState):
    """A model, an optimizer, samplers and plain values.

    Args:
        model: of which parameters and buffers are kept.
        optimizer: of which the state is kept.
        kwargs: further modules, optimizers, samplers (`ElasticSampler`), and plain values; each
            is an attribute.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        kinds = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)
        self._handled = {name: one for name, one in given.items() if isinstance(one, kinds)}
        self._states: dict[str, Any] = {}
        for name, one in self._handled.items():
            object.__setattr__(self, name, one)
        plain = {name: one for name, one in kwargs.items() if name not in self._handled}
        super().__init__(**plain)
        self._keep_handled()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        handled = self.__dict__.get("_handled", {})
        if name in handled and handled[name] is not value:
            handled[name] = value
            self._states[name] = copy.deepcopy(value.state_dict())

    def _keep_handled(self) -> None:
        for name, one in self._handled.items():
            self._states[name] = copy.deepcopy(one.state_dict())

    def save(self) -> None:
        """Keep a copy."""
        self._keep_handled()
        super().save()

    def restore(self) -> None:
        """Go back to the copy."""
        for name, one in self._handled.items():
            one.load_state_dict(copy.deepcopy(self._states[name]))
        super().restore()

    def sync(self) -> None:
        """Give all ranks what rank 0 has; of samplers, what any rank has used counts as used."""
        for one in self._handled.values():
            if isinstance(one, torch.nn.Module):
                broadcast_parameters(one.state_dict(), 0)
            elif isinstance(one, ElasticSampler):
                used = allgather_object(one.state_dict(), "elastic.sampler")
                one.load_state_dict(max(used, key=lambda s: (s["epoch"], s["processed_num"])))
            else:
                broadcast_optimizer_state(one, 0)
        self._keep_handled()
        super().sync()

    def reset(self) -> None:
        """Samplers share out what is left anew."""
        for one in self._handled.values():
            if isinstance(one, ElasticSampler):
                one.reset()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, whose first argument is a `State`.

    It begins with a state that all ranks share. Where an operation fails while all ranks live, the
    state goes back to its last commit, and the function begins anew.

    Raises:
        HorovodInternalError: a rank has ended: it is not replaced.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skips = False
        while True:
            if not skips:
                state.sync()
            try:
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                if _is_lost(error):
                    raise
                state.restore()
                skips = False
            except HostsUpdatedInterrupt as interrupt:
                skips = interrupt.skip_sync
            basics.shutdown()
            basics.init()
            state.on_reset()

    return wrapper


def _is_lost(error: HorovodInternalError) -> bool:
    from gradred.errors import TransportError

    return isinstance(error.__cause__, TransportError)
