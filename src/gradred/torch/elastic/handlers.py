"""Handlers of a `TorchState`: one class for each type that is not a plain value."""

from __future__ import annotations

import copy
from typing import Any

import torch

from gradred.horovod.elastic.state import Saved
from gradred.horovod.objects import broadcast_object
from gradred.torch.elastic.sampler import ElasticSampler
from gradred.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler(Saved):
    """Saves and restores one value. Register subclasses with `set_handler_registry`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def set_value(self, value: Any) -> None:
        """Handle another value from now on, and save it."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Handler of objects with `state_dict` and `load_state_dict`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Save a copy of the state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Restore the state from the copy."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def saved(self) -> Any:
        """The copy."""
        return self._saved

    def take(self, saved: Any) -> None:
        """Replace the copy."""
        self._saved = saved


class ModelStateHandler(_StateDictHandler):
    """Handler of the parameters and buffers of a module."""

    def sync(self) -> None:
        """Broadcast the parameters and buffers of rank 0."""
        broadcast_parameters(self.value.state_dict(), 0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Handler of an optimizer's state."""

    def sync(self) -> None:
        """Broadcast the state of rank 0."""
        broadcast_optimizer_state(self.value, 0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Handler of a sampler's position."""

    def sync(self) -> None:
        """Broadcast the position of rank 0."""
        place = broadcast_object(self.value.state_dict(), 0, "elastic.sampler")
        self.value.load_state_dict(place)
        self.save()

    def reset(self) -> None:
        """Divide the remaining samples among the current ranks."""
        self.value.reset()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The registered types and their handlers. The first type that matches a value is used."""
    return list(_registry)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replace the registered handlers. This affects each `TorchState` made afterwards."""
    _registry[:] = registry


def handlers_of(values: dict[str, Any]) -> dict[str, StateHandler]:
    """A handler for each value whose type has one, by name."""
    found = {}
    for name, value in values.items():
        kind = next((kind for known, kind in _registry if isinstance(value, known)), None)
        if kind is not None:
            found[name] = kind(value)
    return found
