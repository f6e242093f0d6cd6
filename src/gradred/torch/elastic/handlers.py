"""How a `TorchState` keeps what is more than a plain value: one class for each kind."""

from __future__ import annotations

import copy
from typing import Any

import torch

from gradred.torch.elastic.sampler import ElasticSampler
from gradred.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler:
    """Keeps one value; subclass it, and name the class in `set_handler_registry`.

    Attributes:
        value: what it keeps.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def set_value(self, value: Any) -> None:
        """Keep another one from now on, as it is."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks what rank 0 has, which counts as saved."""
        raise NotImplementedError

    def saved(self) -> Any:
        """The copy, for a file of an elastic job; None: there is none to write."""

    def take(self, saved: Any) -> None:
        """Have what `saved` gave, perhaps in another process, as the copy."""

    def reset(self) -> None:
        """Adapt to the ranks that there are now."""


class _StateDictHandler(StateHandler):
    """Of what has `state_dict` and `load_state_dict`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Keep a copy."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the copy."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def saved(self) -> Any:
        """The copy."""
        return self._saved

    def take(self, saved: Any) -> None:
        """Have another one."""
        self._saved = saved


class ModelStateHandler(_StateDictHandler):
    """Parameters and buffers of a module."""

    def sync(self) -> None:
        """Give all ranks those of rank 0."""
        broadcast_parameters(self.value.state_dict(), 0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """An optimizer's state."""

    def sync(self) -> None:
        """Give all ranks that of rank 0."""
        broadcast_optimizer_state(self.value, 0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Where a sampler is."""

    def sync(self) -> None:
        """Have all ranks be where rank 0 is."""
        place = broadcast_object(self.value.state_dict(), 0, "elastic.sampler")
        self.value.load_state_dict(place)
        self.save()

    def reset(self) -> None:
        """Share out what is left anew."""
        self.value.reset()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Which class keeps values of which type; the first that fits does."""
    return list(_registry)


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Have others from now on, for a `TorchState` that is made."""
    _registry[:] = registry


def handlers_of(values: dict[str, Any]) -> dict[str, StateHandler]:
    """One for each value of a type that has one."""
    found = {}
    for name, value in values.items():
        kind = next((kind for known, kind in _registry if isinstance(value, known)), None)
        if kind is not None:
            found[name] = kind(value)
    return found
