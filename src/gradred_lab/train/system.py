"""The system of a measurement: hosts, processors, topology, versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gradred._util import cpu
from gradred.bench import machine
from gradred_lab.train.framework import Session

_CPUS = Path("/sys/devices/system/cpu")


def describe(comm: Any, session: Session, load: float) -> dict[str, Any]:
    """Hosts, processors, versions and devices. Collective on `comm`.

    Args:
        comm: of all ranks.
        session: of the framework.
        load: of this host before the job began.
    """
    found = machine.describe(comm, {})
    del found["arguments"]
    found["versions"] |= session.versions()
    found["topology"] = topology()
    found["cores_of_ranks"] = comm.allgather(sorted(os.sched_getaffinity(0)))
    found["devices"] = comm.allgather(session.devices())
    found["load_before"] = load
    return found


def topology(folder: Path = _CPUS) -> dict[str, Any]:
    """Sockets, cores, threads, memory nodes and caches of this host, as Linux has them.

    Numbers are 0 where the kernel does not say.
    """
    packages: set[str] = set()
    cores: set[tuple[str, str]] = set()
    threads = 0
    for one in folder.glob("cpu[0-9]*"):
        package, core = (_text(one / f"topology/{name}") for name in _TOPOLOGY)
        if package and core:
            packages.add(package)
            cores.add((package, core))
            threads += 1
    caches = [
        f"L{_text(one / 'level')} {_text(one / 'type').lower()} {_text(one / 'size')}, "
        f"cores {_text(one / 'shared_cpu_list')}"
        for one in sorted(folder.glob("cpu0/cache/index[0-9]*"))
    ]
    return {
        "sockets": len(packages),
        "cores": len(cores),
        "threads": threads,
        "memory_nodes": cpu.numa_nodes(),
        "caches_of_core_0": caches,
        "features": cpu.features(),
    }


_TOPOLOGY = ("physical_package_id", "core_id")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
