"""Small helpers that scripts written for Horovod import."""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from gradred.horovod.basics import ccl_built as ccl_built
from gradred.horovod.basics import ddl_built as ddl_built
from gradred.horovod.basics import gloo_built as gloo_built
from gradred.horovod.basics import mpi_built as mpi_built
from gradred.horovod.basics import nccl_built as nccl_built
from gradred.horovod.front_end import FRONT_ENDS
from gradred.horovod.operations import reduction

T = TypeVar("T")


_cache = functools.cache


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework and a front end for it are installed; FRONT_ENDS lists them."""
    return ext_base_name in FRONT_ENDS and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Do nothing: there is no extension that could be missing."""


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Do nothing: no extension is built for a certain version."""


def get_ext_suffix() -> str:
    """The file name suffix of Python extensions."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """The path at which Horovod would have this extension. gradred has none there."""
    folder = os.path.dirname(pkg_path)
    return os.path.join(folder, *args[:-1], args[-1] + get_ext_suffix())


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[int | None, bool | None], int]:
    """Return a function that combines `op` and the deprecated `average` to one operation."""
    return reduction


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework can use a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    return bool(importlib.import_module(f"gradred.{ext_base_name}").gpu_available())


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Context that sets environment variables. None leaves a variable unchanged."""
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
    """Split a list into `parts` pieces whose lengths differ by at most one."""
    each, more = divmod(len(values), parts)
    ends = [number * each + min(number, more) for number in range(parts + 1)]
    return [values[ends[part] : ends[part + 1]] for part in range(parts)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether `num_rank` is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_iterable(value: Any) -> bool:
    """Whether the value can be iterated over."""
    return hasattr(value, "__iter__")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is at least `target`; both are written like "2.13.0".

    Raises:
        ValueError: `target` does not have three parts.
    """
    if not isinstance(ver, str) or not isinstance(target, str) or target.count(".") != 2:
        raise ValueError(f"compare versions like '2.13.0', not {ver!r} and {target!r}")

    def numbers(text: str) -> list[int]:
        parts = text.split("+")[0].split(".")[:3]
        return [int("".join(filter(str.isdigit, part)) or 0) for part in parts]

    return numbers(ver) >= numbers(target)
