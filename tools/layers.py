"""The layers of the C++ core and of the Python package, and what lies below each.

tests/unit/test_layers.py holds the code to these tables; tools/since.py chooses tests by them.
"""

from __future__ import annotations

# What each folder of csrc includes, beside itself: the nearest layers below, which may include what
# those include. Exactly so: an include that is not needed any more leaves no line here.
CXX_LAYERS: dict[str, list[str]] = {
    "base": [],
    "mpi": ["base"],
    "reduce": ["base"],
    "schedule": ["base"],
    "liveness": ["mpi"],
    "memory": ["reduce"],
    "device": ["memory"],
    "node": ["liveness", "memory", "schedule"],
    "plan": ["memory", "schedule"],  # a family says which memory it reads
    "transport": ["memory", "mpi"],
    "engine": ["liveness", "schedule", "transport"],
    "comm": ["engine", "node", "plan"],
    "coordinator": ["comm"],
    "runtime": ["comm"],
    "python": ["coordinator", "device", "runtime"],
    "testing": ["python"],
    "tests": ["testing"],
}

# What each module or package of gradred imports, beside itself: the nearest layers below, which may
# import what those import. Exactly so: an import that is not needed any more leaves no line here.
PYTHON_LAYERS: dict[str, list[str]] = {
    "_util": [],
    "errors": [],
    "_core": ["errors"],
    "config": ["_core"],
    "element_types": ["_core"],
    "user_ops": ["element_types"],
    "ops": ["user_ops"],
    "streams": ["_core"],
    "request": ["streams"],
    "schedules": ["_core"],
    "buffers": ["ops"],
    "launch": ["_util", "config"],
    "persistent": ["request"],
    "plans": ["schedules"],
    "observe": ["launch"],
    "_rank": ["observe"],
    "comm": ["_rank", "buffers", "persistent"],
    "calls": ["comm", "plans"],
    "memory": ["buffers"],
    "named": ["comm"],
    "hashing": ["buffers"],
    "torch_backend": [],
    "trained_by": ["launch"],
    "torch": ["memory", "named", "torch_backend", "without_mpi"],
    "without_mpi": ["comm"],
    "__init__": ["calls", "hashing", "memory", "without_mpi"],
    "bench": ["__init__"],
    "doctor": ["__init__"],
    "horovod": ["__init__"],
    "simulate": ["errors"],
    "horovod_path": ["cli", "torch"],
    "cli": ["bench", "doctor", "horovod", "simulate"],
    "__main__": ["cli"],
}

# In two files, of which each needs the other.
PYTHON_PARTS = {"memory_comm": "comm"}

# What a module uses of the extension, where that is one layer of the core alone.
OF_THE_CORE = {
    "config": "runtime",
    "element_types": "base",
    "schedules": "schedule",
}

# They start others by name, which have tests of their own.
BY_NAME = {"__main__", "cli"}


def below(layer: str, graph: dict[str, list[str]]) -> set[str]:
    """The layer itself, all that it uses, and what that uses."""
    return {layer}.union(*(below(lower, graph) for lower in graph[layer]))


def used_by(layer: str) -> tuple[set[str], set[str]]:
    """What a layer of the Python package uses: layers of it, and layers of the core."""
    found: set[str] = set()
    core = below("python", CXX_LAYERS) if layer == "_core" else set()
    waiting = [layer]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for lower in [] if name in BY_NAME else PYTHON_LAYERS[name]:
            if lower == "_core":
                core |= below(OF_THE_CORE.get(name, "python"), CXX_LAYERS)
            waiting.append(lower)
    return found, core
