"""The processor for this process: usable cores by affinity and cgroup quota, model, features."""

from __future__ import annotations

import math
import os
import pathlib
import time
from collections.abc import Callable

_CGROUPS = pathlib.Path("/sys/fs/cgroup")


def cores() -> int:
    """Return the cores this process may use: the affinity mask, limited by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_quota(
    root: pathlib.Path = _CGROUPS, membership: pathlib.Path = pathlib.Path("/proc/self/cgroup")
) -> float | None:
    """Return the smallest cgroup quota of all levels in cores; None if unlimited."""
    quotas: list[float] = []
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _quotas(root, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas(root / controllers, path, _quota_v1)
    return min(quotas, default=None)


def model() -> str:
    """Return the processor's name as the kernel reports it."""
    return _cpuinfo("model name") or _cpuinfo("CPU part") or os.uname().machine


def features() -> list[str]:
    """Return the vector extensions that matter to reductions, in the kernel's spelling."""
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    interesting = ("avx2", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "asimd", "sve")
    return [name for name in interesting if name in flags]


def numa_nodes() -> int:
    """Return the number of memory nodes of this host."""
    nodes = pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")
    return max(1, sum(1 for _ in nodes))


def _quotas(
    root: pathlib.Path, path: str, read: Callable[[pathlib.Path], float | None]
) -> list[float]:
    # In a container the path may be the host's and not exist here; then `root` is the cgroup.
    group = root / path.lstrip("/")
    levels = [group, *group.parents] if group.is_dir() else [root]
    found = (read(level) for level in levels if level == root or root in level.parents)
    return [quota for quota in found if quota is not None]


def _quota_v2(level: pathlib.Path) -> float | None:
    for line in _lines(level / "cpu.max"):
        quota, period = line.split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _quota_v1(level: pathlib.Path) -> float | None:
    quota = _lines(level / "cpu.cfs_quota_us")
    period = _lines(level / "cpu.cfs_period_us")
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None


def _cpuinfo(key: str) -> str:
    for line in _lines(pathlib.Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _lines(path: pathlib.Path) -> list[str]:
    """Return a kernel file's lines; empty if this kernel does not have the file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def load() -> float:
    """Return the number of programs that want a core: the load or the runnable ones, if more.

    The load is that of the last minute. The calling thread does not count. Call this before
    starting anything, or that counts too.
    """
    return max(os.getloadavg()[0], float(_runnable()))


def running(samples: int = 7) -> int:
    """Return the median number of other programs that want a core right now."""
    found = [_runnable()]
    while len(found) < samples:
        time.sleep(0.01)
        found.append(_runnable())
    return sorted(found)[samples // 2]


def _runnable() -> int:
    try:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):  # no /proc, or one in another format
        return 0


def busy(load: float) -> str | None:
    """Return a text about a load that makes programs wait for a core; None for a lower load."""
    cores = os.cpu_count() or 1
    if load < cores:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} core{'s' * (cores > 1)})"
