"""Small helpers that scripts written for Horovod import."""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from gradred.torch.basics import ccl_built, ddl_built, gloo_built, mpi_built, nccl_built

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")


def _cache(function: Callable[..., T]) -> Callable[..., T]:
    return functools.cache(function)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a front end for a framework, and the framework: for "torch" alone."""
    del verbose
    return ext_base_name == "torch" and importlib.util.find_spec("torch") is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Nothing: there is no extension that could be missing."""
    del ext_name, ext_env_var, pkg_path, args


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Nothing: no extension is compiled for a version."""
    del name, version, exception


def get_ext_suffix() -> str:
    """How the names of extensions end."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where Horovod would have an extension of this name; here there is none."""
    folder = os.path.dirname(pkg_path)
    return os.path.join(folder, *args[:-1], args[-1] + get_ext_suffix())


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[int | None, bool | None], int]:
    """A function that makes one operation of `op` and the deprecated `average`."""
    del reduce_ops

    def operation(op: int | None, average: bool | None) -> int:
        from gradred.torch.operations import reduction

        return reduction(op, average)

    return operation


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    import torch

    return bool(torch.cuda.is_available())


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Set variables of the environment for a while; None leaves one as it is."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def split_list(values: Sequence[T], parts: int) -> list[Sequence[T]]:
    """As many pieces, whose lengths differ by one at most."""
    each, more = divmod(len(values), parts)
    ends = [number * each + min(number, more) for number in range(parts + 1)]
    return [values[ends[part] : ends[part + 1]] for part in range(parts)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_iterable(value: Any) -> bool:
    """Whether one can loop over it."""
    return hasattr(value, "__iter__")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is at least another one, both like "2.13.0".

    Raises:
        ValueError: `target` has other than three parts.
    """
    if not isinstance(ver, str) or not isinstance(target, str) or target.count(".") != 2:
        raise ValueError(f"compare versions like '2.13.0', not {ver!r} and {target!r}")

    def numbers(text: str) -> list[int]:
        parts = text.split("+")[0].split(".")[:3]
        return [int("".join(filter(str.isdigit, part)) or 0) for part in parts]

    return numbers(ver) >= numbers(target)
