"""`gradred info`: print what gradred finds on this machine, and each setting with its source."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from gradred import __version__, _core, config, horovod, launch
from gradred._util import cpu
from gradred.buffers import cuda_interface
from gradred.errors import DeviceError, UsageError
from gradred.launch import preload
from gradred.observe import figures

SCHEMA = "gradred-info/1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "key", nargs="?", metavar="KEY", help=f"print one value: {', '.join(FACTS)}, or a setting"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Print all facts and settings, or one."""
    settings = config.snapshot()
    if arguments.key is not None:
        return _print_one(arguments.key, arguments.json)
    facts = {name: value() for name, value in FACTS.items()}
    if arguments.json:
        shown = {
            name: {"value": config.show(name, entry.value), "source": entry.source}
            for name, entry in settings.items()
        }
        print(json.dumps({"schema": SCHEMA, **facts, "config": shown}, indent=2))
        return 0
    for name, text in facts.items():
        print(f"{name}: {text}")
    for name, entry in settings.items():
        value = config.show(name, entry.value)
        print(f"{config.variable(name)}: {value} ({entry.source})")
    return 0


def _print_one(key: str, as_json: bool) -> int:
    name = key.removeprefix(config.PREFIX).lower()
    if key in FACTS:
        value = FACTS[key]()
    elif name in config.snapshot():
        value = config.show(name, config.get(name))
    else:
        found = "there is no such key"
        raise UsageError(key, found, f"Take one of {', '.join(FACTS)}, or a setting")
    print(json.dumps({"schema": SCHEMA, key: value}) if as_json else value)
    return 0


def _or_why_not(find: Callable[[], object]) -> Callable[[], str]:
    """Return a function for the text of what is found, or why it is not available."""

    def text() -> str:
        try:
            return str(find())
        except (DeviceError, UsageError) as error:
            return f"not available: {error}"

    return text


def _cuda() -> str:
    driver = _core.cuda_driver()
    return f"driver {driver}; between ranks of one host arrays go from GPU to GPU"


def _nccl() -> str:
    found = [name for name in cuda_interface.libraries() if "libnccl" in name]
    if found:
        return f"{found[0]}: used where it is asked for (gradred explain -d cuda)"
    return "no package brings it; used where it is asked for and CuPy or PyTorch has loaded one"


def _cpu_line() -> str:
    features = " ".join(cpu.features()) or "no vector extension that gradred uses"
    return f"{cpu.model()}, {cpu.cores()} of {os.cpu_count()} cores usable, {features}"


def _topology() -> str:
    job = launch.inside_job()
    where = f"rank {job[0]} of {job[1]}" if job else "outside a job"
    return f"host {os.uname().nodename}, memory nodes {cpu.numa_nodes()}, {where}"


# The table of facts: for each key the function that returns its value as text.
FACTS: dict[str, Callable[[], str]] = {
    "version": lambda: f"{__version__} (Python {sys.version.split()[0]})",
    "mpi": _or_why_not(lambda: launch.find_mpi()),
    "launcher": _or_why_not(lambda: launch.find_mpi().launcher),
    "preload": _or_why_not(preload.library),
    "horovod_path": horovod.path,
    "cuda": _or_why_not(_cuda),
    "nccl": _nccl,
    "cpu": _cpu_line,
    "topology": _topology,
    "figures": figures.summary,
}
