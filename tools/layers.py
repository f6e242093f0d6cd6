"""The layers of the C++ core and of the Python package, with the layers below each.

tests/unit/test_layers.py checks the code against these tables. tools/since.py selects tests by
them.
"""

from __future__ import annotations

# The layers that each folder of csrc includes, except itself. Only the nearest layers are listed;
# the folder may include the layers below those too. Unused entries must be removed here.
CXX_LAYERS: dict[str, list[str]] = {
    "base": [],
    "mpi": ["base"],
    "reduce": ["base"],
    "schedule": ["base"],
    "liveness": ["mpi"],
    "memory": ["reduce"],
    "plan": ["schedule"],
    "simulate": ["schedule"],
    "device": ["memory"],
    "node": ["liveness", "memory", "schedule"],
    "transport": ["memory", "mpi"],
    "calls": ["plan", "transport"],
    "observe": ["calls", "node"],
    "engine": ["observe"],
    "families": ["engine"],
    "comm": ["families"],
    "named": ["comm"],
    "runtime": ["comm"],
    "python": ["device", "named", "runtime", "simulate"],
    "preload": ["device", "runtime"],
    "tensorflow": ["named"],
    "testing": ["python"],
    "tests": ["testing"],
}

# The layers that each module or package of gradred imports, except itself. Only the nearest layers
# are listed; it may import the layers below those too. Unused entries must be removed here.
PYTHON_LAYERS: dict[str, list[str]] = {
    "_util": [],
    "errors": [],
    "_core": ["errors"],
    "coded": ["_core"],
    "compression": ["errors"],
    "config": ["_core"],
    "element_types": ["_core"],
    "user_ops": ["element_types"],
    "ops": ["user_ops"],
    "streams": ["_core"],
    "request": ["streams"],
    "schedules": ["_core"],
    "wire": ["_core"],
    "buffers": ["ops", "wire"],
    "launch": ["_util", "config"],
    "persistent": ["_core"],
    "plans": ["schedules"],
    "observe": ["launch"],
    "_rank": ["observe"],
    "leaves": ["buffers", "config", "request", "schedules"],
    "comm": ["_rank", "leaves", "persistent"],
    "calls": ["comm", "plans"],
    "memory": ["buffers"],
    "named": ["comm"],
    "hashing": ["buffers"],
    "torch_backend": [],
    "torch_stand_in": [],
    "jax_stand_in": ["__init__"],
    "trained_by": ["launch"],
    "tensors": ["named"],
    "torch_tensors": ["tensors"],
    "torch_leaves": ["leaves"],
    "torch_wire": ["coded", "torch_leaves"],
    "without_mpi": ["comm"],
    "__init__": ["calls", "hashing", "memory", "without_mpi"],
    "bench": ["__init__"],
    "doctor": ["__init__"],
    "horovod": ["__init__", "tensors"],
    "jax": ["__init__", "named"],
    "torch": ["compression", "horovod", "torch_backend", "torch_tensors", "torch_wire"],
    "tensorflow": ["horovod"],
    "keras": ["tensorflow"],
    "mxnet": ["horovod"],
    "paddle": ["horovod"],
    "torch_distributed": ["memory", "torch_tensors", "without_mpi"],
    "torchft": ["torch_distributed"],
    "ray": ["torch_distributed"],
    "horovod_path": ["cli", "keras", "torch"],
    "simulate": ["_util", "schedules"],
    "schemes": ["calls", "compression", "named"],
    "cli": ["bench", "doctor", "horovod", "simulate"],
    "__main__": ["cli"],
}

# The same of the laboratory, gradred_lab.
LABORATORY_LAYERS: dict[str, list[str]] = {
    "__init__": [],
    "packages": [],
    "pictures": ["packages"],
    "simulate": ["pictures"],
    "schemes": ["pictures"],
    "train": ["simulate"],
    "cli": ["schemes", "train"],
}

# The names of gradred that the laboratory uses, by module. Unused entries must be removed here.
USED_BY_THE_LABORATORY: dict[str, list[str]] = {
    "gradred": ["__version__", "allreduce"],
    "gradred._util.cpu": ["cores", "features", "load", "model", "numa_nodes"],
    "gradred._util.files": ["create"],
    "gradred._util.text": ["width", "wrapped"],
    "gradred.bench.machine": ["describe"],
    "gradred.bench.options": ["byte_count", "positive", "require_writable"],
    "gradred.bench.rank_zero": ["say", "write_json", "write_so_far", "write_text"],
    "gradred.cli.bench": ["start"],
    "gradred.cli.info": ["FACTS"],
    "gradred.cli.laboratory": ["INSTALL"],
    "gradred.cli.option_types": ["duration"],
    "gradred.comm": ["Comm"],
    "gradred.compression": ["CODECS", "Floats"],
    "gradred.config": ["load"],
    "gradred.errors": ["Error", "UsageError"],
    "gradred.launch": ["refuse_inside_job"],
    "gradred.launch.variables": ["THREAD_VARIABLES"],
    "gradred.schemes.layout": ["AGGREGATES"],
    "gradred.schemes.store": ["Sgd"],
    "gradred.schemes.table": ["Options", "SCHEMES", "TRANSPORTS"],
    "gradred.schemes.training": ["Training"],
    "gradred.simulate.calibration": ["layout_of", "microseconds", "read_record"],
    "gradred.simulate.plans": ["Layout", "find", "layout_of", "simulate", "simulate_own"],
    "gradred.simulate.presets": ["NETWORKS", "Network", "UNLIMITED", "find"],
    "gradred.simulate.servers": ["parameter_servers"],
    "gradred.simulate.sweep": ["place_text", "size_text", "time_text"],
    "gradred.torch": ["DistributedOptimizer", "init", "local_rank"],
}

# A layer in two files that need each other.
PYTHON_PARTS = {"memory_comm": "comm"}

# The layer of the core that a module uses, if it uses only one.
OF_THE_CORE = {
    "config": "runtime",
    "element_types": "base",
    "schedules": "schedule",
    "simulate": "simulate",
}

# Modules that start others by name; those have tests of their own.
BY_NAME = {"__main__", "cli"}


def below(layer: str, graph: dict[str, list[str]]) -> set[str]:
    """Return the layer itself and all layers below it."""
    return {layer}.union(*(below(lower, graph) for lower in graph[layer]))


def used_by(layer: str) -> tuple[set[str], set[str]]:
    """Return the layers of the package, and of the core, that a layer of the package uses."""
    found: set[str] = set()
    core = below("python", CXX_LAYERS) if layer == "_core" else set()
    waiting = [layer]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in OF_THE_CORE:  # perhaps by a layer between, as the table of layers has it
            core |= below(OF_THE_CORE[name], CXX_LAYERS)
        for lower in [] if name in BY_NAME else PYTHON_LAYERS[name]:
            if lower == "_core" and name not in OF_THE_CORE:
                core |= below("python", CXX_LAYERS)
            waiting.append(lower)
    return found, core
