"""Make `import horovod` find gradred, for programs written for Horovod.

`gradred run --horovod -np 4 python train.py` does so for a job; `install()` for this process.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gradred.errors import UsageError, explain

VERSION = "0.28.1"
"""The version of Horovod whose functions gradred provides."""


def path() -> str:
    """Return the folder in which `import horovod` has to look first."""
    return str(Path(__file__).parent.with_name("horovod_path"))


def install() -> None:
    """Make `import horovod` find gradred in this process, even if Horovod is installed.

    Raises:
        gradred.UsageError: another horovod has been imported already.
    """
    loaded = sys.modules.get("horovod")
    if loaded is not None and not str(getattr(loaded, "__file__", "")).startswith(path()):
        found = f"{getattr(loaded, '__file__', 'another one')} has been imported"
        remedy = "Call gradred.horovod.install() before anything imports horovod"
        raise UsageError("gradred.horovod.install()", found, remedy)
    if path() not in sys.path:
        sys.path.insert(0, path())
        importlib.invalidate_caches()


_ABSENT = {
    "horovod.mxnet": "Write import gradred.mxnet as hvd",
    "horovod.spark": "Start ranks by gradred run or gradred.run",
    "horovod.ray": "Start ranks by gradred run or gradred.run",
}
"""Modules of Horovod that gradred does not provide, and what to use instead."""


def refuse(name: str) -> NoReturn:
    """Raise an error at the import of a module that gradred does not provide.

    Raises:
        ModuleNotFoundError: always.
    """
    has = "horovod.torch, horovod.tensorflow, horovod.keras, horovod.run"
    found = f"horovod is gradred here, which has {has} and no {name}"
    remedy = f"{_ABSENT[name]}, or run this program with Horovod itself: without --horovod of "
    remedy += "gradred run and gradred.horovod.install()"
    raise ModuleNotFoundError(explain(f"import {name}", found, remedy), name=name)


_WITHOUT_EFFECT = (
    *("slots", "reset_limit", "cooldown_range", "start_timeout", "ssh_port", "ssh_identity_file"),
    *("disable_cache", "verbose", "use_gloo", "use_mpi", "mpi_args"),
    *("network_interface", "network_interfaces"),
)
_REFUSED = (
    *("min_num_proc", "max_num_proc", "min_np", "max_np", "host_discovery_script"),
    *("hosts", "hostfile", "output_filename", "executable"),
)
"""Arguments of `run` that would change the job in a way that gradred does not support."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Start ranks on this host that each call `func(*args, **kwargs)`; returns results by rank.

    Blocks. The arguments are Horovod's, in its order. `func` is pickled with cloudpickle.
    `num_proc` is the number of ranks, and `np` Horovod's older name for it. `hosts` may name this
    host alone, as `localhost:4`. The ranks run this interpreter, and their output appears in this
    process's: `hostfile`, `output_filename` and `executable` are refused. So are
    `host_discovery_script`, `min_num_proc` and `max_num_proc`, older names `min_np` and `max_np`:
    `gradred run --min-np` starts elastic jobs. The other arguments have no effect. One warning
    names those given.

    Raises:
        ValueError: `hosts` and `hostfile`, or `use_gloo` and `use_mpi`, are both given.
        gradred.UsageError: an argument asks for a job that this function cannot start: several
            hosts, an elastic job, files for the output, another interpreter.
    """
    asked = locals()
    known = (*_WITHOUT_EFFECT, *_REFUSED)
    _check_arguments({name: asked[name] for name in known if asked[name] not in (None, False)})
    import gradred

    return gradred.run(func, tuple(args), kwargs=dict(kwargs or {}), np=np or num_proc or 1)


def _check_arguments(given: Mapping[str, Any]) -> None:
    for one, other in (("hosts", "hostfile"), ("use_gloo", "use_mpi")):
        if one in given and other in given:
            raise ValueError(explain("horovod.run", f"{one} and {other} are given", "Pass one"))
    refused = [name for name in _REFUSED if name in given]
    if refused == ["hosts"] and _is_this_host(given["hosts"]):
        refused = []
    if refused:
        found = f"it starts ranks of this host, and has no {', '.join(refused)}"
        remedy = "Leave them out, or start the program by gradred run"
        raise UsageError("horovod.run", found, remedy)
    ignored = [name for name in _WITHOUT_EFFECT if name in given]
    if ignored:
        text = f"horovod.run: without effect here: {', '.join(ignored)}"
        warnings.warn(text, stacklevel=3)


def _is_this_host(hosts: str) -> bool:
    names = {part.strip().partition(":")[0] for part in hosts.split(",")}
    return names <= {"localhost", "127.0.0.1", socket.gethostname()}
