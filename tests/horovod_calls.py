"""Every way of writing a call of Horovod's, made from the signatures of a front end's functions.

A form is a function, the arguments given by position, and those given by keyword.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Given = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Form:
    """One way to write a call; the values are those of its table."""

    function: str
    first: str
    """The name of the first parameter."""
    by_position: Given
    by_keyword: Given
    dtype: Any
    first_by_keyword: bool = False

    def __str__(self) -> str:
        words = [f"{self.first}=x" if self.first_by_keyword else "x"]
        words += [str(value) for _, value in self.by_position]
        words += [f"{key}={value}" for key, value in self.by_keyword]
        return f"{self.function}({', '.join(words)}) of {self.dtype}"

    @property
    def given(self) -> dict[str, Any]:
        """All arguments but the first."""
        return dict((*self.by_position, *self.by_keyword))

    @property
    def kind(self) -> str:
        """The operation: "allreduce"."""
        return self.function.removeprefix("grouped_").split("_")[0]

    @property
    def is_async(self) -> bool:
        """Whether the call returns a handle."""
        return "_async" in self.function

    @property
    def in_place(self) -> bool:
        """Whether the result is written to the input."""
        return self.function.endswith("_")

    @property
    def is_grouped(self) -> bool:
        """Whether the call takes a list."""
        return self.function.startswith("grouped_")


@dataclass(frozen=True)
class Table:
    """The forms of a front end's functions."""

    module: Any
    values: Mapping[str, Sequence[Any]]
    """The values that a form gives to an argument, as the form's text shows them."""
    dtypes: Sequence[Any]

    def forms_of(self, function: str, *, full: bool, seed: int = 1) -> list[Form]:
        """All forms of a function, or some of them, the same on all ranks."""
        made = [one for one in self._all_forms(function) if is_legal(one)]
        if full:
            return made
        return random.Random(f"{seed} {function}").sample(made, min(14, len(made)))

    def _all_forms(self, function: str) -> Iterator[Form]:
        types = itertools.cycle(self.dtypes)
        first, *rest = self._parameters_of(function)

        def form(by_position: Given, by_keyword: Given, dtype: Any = None, **how: Any) -> Form:
            dtype = next(types) if dtype is None else dtype
            return Form(function, first.name, by_position, by_keyword, dtype, **how)

        named = [one for one in rest if one.default is one.empty]
        required = tuple((one.name, self.values[one.name][0]) for one in named)
        optional = [one for one in rest if one.default is not one.empty]
        choices = [(one.name, value) for one in optional for value in self.values[one.name]]
        for dtype in self.dtypes:
            yield form(required, (), dtype)
            yield form((), required, dtype, first_by_keyword=True)
        for one in choices:  # by keyword: each alone, each with each other
            yield form(required, (one,))
            yield form((), (*required, one), first_by_keyword=True)
            for other in choices:
                if other[0] != one[0]:
                    yield form(required, (one, other))
        for length in range(1, len(optional) + 1):  # by position: each value of the last one
            before = tuple((one.name, one.default) for one in optional[: length - 1])
            for value in self.values[optional[length - 1].name]:
                given = (*required, *before, (optional[length - 1].name, value))
                yield form(given, ())
                for one in choices:
                    if one[0] not in dict(given):
                        yield form(given, (one,))
        for value in self.values["root_rank"] if "root_rank" in dict(required) else ():
            yield form((("root_rank", value),), ())

    def _parameters_of(self, function: str) -> list[inspect.Parameter]:
        """The parameters of a function that Horovod has too."""
        found = inspect.signature(getattr(self.module, function)).parameters.values()
        return [one for one in found if one.kind is not inspect.Parameter.KEYWORD_ONLY]


def is_legal(form: Form) -> bool:
    """Whether Horovod takes these values together."""
    given = form.given
    both = given.get("average") is not None and given.get("op") is not None
    scatters = form.kind == "reducescatter" and given.get("op") in ("Min", "Max", "Product")
    return not both and not scatters
