"""Numbers for the uses of one traced collective within a program.

JAX traces a function once and uses the trace again: `jax.checkpoint` makes its calls again in the
backward pass, and a function under `jax.jit` may be called several times. All uses have the name of
the trace. So each gets a number, in the order of the program, which is equal on all ranks. The
numbers are set when JAX has lowered a whole program to MLIR, which it reports as an event.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
from jax.interpreters import mlir

from gradred.jax.ranks import TARGET

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""The event by which JAX reports that it has lowered a program."""

ATTRIBUTES = "mhlo.backend_config"
"""Where an operation of MLIR has the attributes of a foreign function."""


class _Lowering(threading.local):
    """The programs with collectives that this thread is lowering."""

    def __init__(self) -> None:
        self.modules: list[Any] = []


_lowering = _Lowering()


def number_later(module: Any) -> None:
    """Number the collectives of a program as soon as JAX has lowered it."""
    _listen()
    if not any(one is module for one in _lowering.modules):
        _lowering.modules.append(module)


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, *_: Any, **__: Any) -> None:
    if event != LOWERED:
        return
    modules, _lowering.modules = _lowering.modules, []
    for module in modules:
        with module.context:
            _Numbering(module).run()


class _Numbering:
    """Numbers the collectives of one module. A function that is called again gets a copy."""

    def __init__(self, module: Any) -> None:
        found = [one for one in module.body.operations if _is(one, "func.func")]
        self.functions = {_text(one, "sym_name"): one for one in found}
        self.reduces: dict[str, bool] = {}
        self.visited: set[str] = set()
        self.uses: Counter[str] = Counter()

    def run(self) -> None:
        called = {_callee(op) for one in self.functions.values() for op in _calls(one)}
        for name in [one for one in self.functions if one not in called]:
            self._visit(name)
        for name in list(self.functions):  # what something else than a call refers to
            if name not in self.visited:
                self._visit(name)

    def _visit(self, name: str) -> None:
        self.visited.add(name)
        if not self._has_collective(name):
            return
        for op in list(_operations(self.functions[name])):
            if _is_collective(op):
                self._number(op)
            elif _is(op, "func.call") and self._has_collective(_callee(op)):
                self._visit_callee(op)

    def _visit_callee(self, call: Any) -> None:
        name = _callee(call)
        if name in self.visited:
            name = self._copy(name)
            call.attributes["callee"] = mlir.ir.FlatSymbolRefAttr.get(name)
        self._visit(name)

    def _copy(self, name: str) -> str:
        number = 2
        while (made := f"{name}_use_{number}") in self.functions:
            number += 1
        original = self.functions[name].operation
        copy = original.clone(ip=mlir.ir.InsertionPoint(original))
        copy.attributes["sym_name"] = mlir.ir.StringAttr.get(made)
        self.functions[made] = copy
        return made

    def _has_collective(self, name: str) -> bool:
        if name not in self.reduces:
            self.reduces[name] = any(
                _is_collective(op) or (_is(op, "func.call") and self._has_collective(_callee(op)))
                for op in _operations(self.functions[name])
            )
        return self.reduces[name]

    def _number(self, op: Any) -> None:
        given = {one.name: one.attr for one in op.attributes[ATTRIBUTES]}
        name = mlir.ir.StringAttr(given["name"]).value
        self.uses[name] += 1
        given["use"] = mlir.ir.StringAttr.get(str(self.uses[name]))
        op.attributes[ATTRIBUTES] = mlir.ir.DictAttr.get(given)


def _operations(function: Any) -> Iterator[Any]:
    """All operations of a function in their order, those of branches and loops among them."""
    for region in function.operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _operations(op)


def _calls(function: Any) -> Iterator[Any]:
    return (op for op in _operations(function) if _is(op, "func.call"))


def _is(op: Any, kind: str) -> bool:
    return bool(op.operation.name == kind)


def _is_collective(op: Any) -> bool:
    return _is(op, "stablehlo.custom_call") and _text(op, "call_target_name") == TARGET


def _callee(call: Any) -> str:
    return str(mlir.ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _text(op: Any, name: str) -> str:
    return str(mlir.ir.StringAttr(op.operation.attributes[name]).value)
