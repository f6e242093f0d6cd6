"""Find the network that the MPI uses, from the text that it prints when it starts."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence

from gradred import launch
from gradred.doctor.findings import Finding, NotKnown, ok, warn

# The variables that make each MPI print its network, with their values.
TALKATIVE: Mapping[launch.Family, Mapping[str, str]] = {
    "Open MPI": {"OMPI_MCA_pml_base_verbose": "10"},
    "MPICH": {"MPIR_CVAR_DEBUG_SUMMARY": "1"},
    "Intel MPI": {"I_MPI_DEBUG": "2"},
}
_SAYS = (
    r"libfabric provider: (\S+)",  # MPICH and Intel MPI
    r"==== (UCX) netmod",  # MPICH
    r"select: component (\w+) selected",  # Open MPI
)
_ORDINARY = {"tcp", "sockets", "udp", "shm", "ob1"}
_ADAPTERS = (pathlib.Path("/sys/class/infiniband"), pathlib.Path("/sys/class/cxi"))


def fabric(output: str, adapters: Sequence[pathlib.Path] = _ADAPTERS) -> Finding:
    """Report the network in the MPI's output, and whether this host has a faster adapter."""
    matches = (re.search(pattern, output) for pattern in _SAYS)
    network = next((match[1].split(";")[0] for match in matches if match is not None), None)
    if network is None:
        fix = "Ask the MPI's own documentation how to make it tell"
        raise NotKnown("the MPI does not say which network it uses", fix)
    fast = sorted(
        device.name for folder in adapters if folder.is_dir() for device in folder.iterdir()
    )
    found = f"between hosts the MPI uses {_NAMES.get(network, network)}"
    if fast and network in _ORDINARY:
        fix = "Use an MPI that was built for it (with UCX, or libfabric and its verbs provider)"
        return warn(f"{found}, although this host has {', '.join(fast)}", fix)
    return ok(found)


_NAMES = {
    "ucx": "UCX",
    "ob1": "TCP (ob1)",
    "tcp": "TCP (libfabric)",
    "sockets": "TCP (libfabric's sockets)",
}
