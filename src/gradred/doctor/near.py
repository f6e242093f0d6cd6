"""Find ranks whose memory lies on a memory node (NUMA) that has none of their cores."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gradred._util.text import ranges

FIX = "Let each rank take its memory where it runs (numactl --localalloc), and permit mbind there"
_MAPS = pathlib.Path("/proc/self/numa_maps")
_NODES = pathlib.Path("/sys/devices/system/node")
_LITTLE = 0.5
"""The share of its memory that a rank may have on other nodes."""


def memory_of(
    cores: Collection[int], maps: pathlib.Path = _MAPS, nodes: pathlib.Path = _NODES
) -> dict[str, Any]:
    """Return where this process's memory lies, for `far`.

    `near` has the nodes of these cores; `own` and `shared` the KiB on each node, of its private
    memory and of what it has used of gradred's shared memory.
    """
    found: dict[str, Any] = {"near": _nodes_of(cores, nodes), "own": {}, "shared": {}}
    try:
        lines = maps.read_text().splitlines()
    except OSError:  # a kernel without memory nodes
        return found
    for line in lines:
        page = re.search(r" kernelpagesize_kB=(\d+)", line)
        part = "shared" if "memfd:gradred" in line else "own" if " anon=" in line else None
        if part is None or page is None:
            continue
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            found[part][node] = found[part].get(node, 0) + int(pages) * int(page[1])
    return found


def far(memory: Sequence[Mapping[str, Any]]) -> str:
    """Return what to say of ranks whose memory is far, by the reports of all; empty if none is."""
    lines = []
    for rank, one in enumerate(memory):
        on = f"rank {rank} runs on memory node {ranges(one['near'])}, but"
        away = {int(node): kib for node, kib in one["own"].items() if int(node) not in one["near"]}
        share = sum(away.values()) / max(1, sum(one["own"].values()))
        if one["near"] and share > _LITTLE:
            lines.append(f"{on} {share:.0%} of its memory lies on node {ranges(away)}")
        shared = {int(node) for node in one["shared"]}
        if one["near"] and shared and not shared & set(one["near"]):
            lines.append(f"{on} all memory shared with others lies on node {ranges(shared)}")
    return "; ".join(lines)


def _nodes_of(cores: Collection[int], folder: pathlib.Path) -> list[int]:
    lists = {int(path.parent.name[4:]): path for path in folder.glob("node[0-9]*/cpulist")}
    return sorted(node for node, path in lists.items() if _numbers(path.read_text()) & set(cores))


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list of the kernel's, such as `0-3,8`."""
    pairs = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {one for first, last in pairs for one in range(int(first), int(last or first) + 1)}
