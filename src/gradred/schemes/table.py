"""The schemes of data-parallel training, and the options of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gradred.compression import Compressor
from gradred.errors import UsageError
from gradred.schemes.layout import AGGREGATES, Aggregate

TRANSPORTS = {
    "mpi": "MPI's messages; `bsp` then is gradred's own allreduce",
    "tcp": "plain TCP connections, as frameworks with gRPC have them",
}
"""What carries messages, by name."""


@dataclass(frozen=True)
class Scheme:
    """One row of the table of schemes."""

    about: str
    by: str
    """What workers do: a name of `strategies.STRATEGIES`."""
    by_over_tcp: str = ""
    """What workers do over TCP, if that is another strategy."""
    servers: bool = False
    """Whether it has ranks that are servers of parameters."""
    together: bool = False
    """Whether servers make one update of all gradients of a step."""
    synchronous: bool = True
    """Whether p workers with batch b do what one does with batch p b, but for rounding."""
    messages: bool = True
    """Whether it sends messages of its own over MPI."""
    own: tuple[str, ...] = ()
    """The options that it has, and not every other scheme."""


SCHEMES = {
    "bsp": Scheme(
        "gradred's allreduce averages gradients; over TCP a schedule of it",
        by="allreduce",
        by_over_tcp="schedule",
        messages=False,
        own=("plan",),
    ),
    "ps": Scheme(
        "synchronous parameter server (Li et al., 2014), sharded among --servers",
        by="servers",
        servers=True,
        together=True,
        own=("servers",),
    ),
    "ssp": Scheme(
        "stale-synchronous: no worker reads parameters older than --staleness steps "
        "(Ho et al., 2013)",
        by="servers",
        servers=True,
        synchronous=False,
        own=("servers", "staleness"),
    ),
    "asp": Scheme(
        "asynchronous: no worker waits for another (Dean et al., 2012)",
        by="servers",
        servers=True,
        synchronous=False,
        own=("servers",),
    ),
    "mesh": Scheme("every worker sends its gradient to every other one", by="mesh"),
    "hierarchical": Scheme(
        "gradients go to the leaders of --groups groups, from leader to leader, and back",
        by="levels",
        own=("groups",),
    ),
    "local": Scheme(
        "local SGD: --every steps, then an average of parameters among --groups workers "
        "(Stich, 2019)",
        by="oneself",
        synchronous=False,
        own=("groups", "every"),
    ),
}
"""The table of schemes, by name."""


@dataclass(frozen=True)
class Options:
    """How to train; `check` raises an error if that is impossible."""

    scheme: str = "bsp"
    transport: str = "mpi"
    servers: int = 1
    staleness: int = 3
    aggregate: Aggregate = "layer"
    merge_bytes: int = 1 << 18
    contiguous: bool = True
    """Whether the model computes in one vector each for parameters and gradients. Else gradients
    are copied to it. Parameters that are NumPy arrays are copied from it in any case."""
    priority: bool = False
    """Whether the first tensors of the model go first: the next forward pass needs them first."""
    compression: str = "none"
    plan: str = ""
    groups: int = 2
    every: int = 8

    @property
    def row(self) -> Scheme:
        """The scheme's row of the table."""
        return SCHEMES[self.scheme]

    @property
    def server_ranks(self) -> int:
        """How many ranks are servers."""
        return self.servers if self.row.servers else 0

    @property
    def needs_messages(self) -> bool:
        """Whether it needs a transport."""
        return self.row.messages or self.transport != "mpi"

    @property
    def bound(self) -> float:
        """The staleness that a server allows."""
        return {"ssp": float(self.staleness), "asp": math.inf}.get(self.scheme, 0.0)

    @property
    def by(self) -> str:
        """What workers do: a name of `strategies.STRATEGIES`."""
        return (self.transport == "tcp" and self.row.by_over_tcp) or self.row.by

    def check(self) -> None:
        """Raise UsageError for options that are impossible together."""
        _choose("scheme", self.scheme, SCHEMES)
        _choose("transport", self.transport, TRANSPORTS)
        _choose("aggregate", self.aggregate, AGGREGATES)
        Compressor(self.compression)
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise UsageError(name, f"it is {getattr(self, name)}", f"Give at least {least}")
        self._check_together()

    def _check_together(self) -> None:
        asked = f"scheme {self.scheme!r}"
        compresses = self.compression != "none"
        if self.by in ("oneself", "schedule") and compresses:
            what = "parameters" if self.by == "oneself" else "sums of several ranks"
            found = f"it sends {what}, and compression is for gradients"
            raise UsageError(asked, found, "Leave compression out")
        if name := foreign(self.scheme, vars(self)):
            having = ", ".join(other for other, row in SCHEMES.items() if name in row.own)
            found = f"it has no {name}, which is an option of {having}"
            raise UsageError(asked, found, f"Leave {name} out")
        if self.plan and self.transport == "mpi" and (compresses or self.priority):
            found = "operations of one plan are neither compressed nor in order of priority"
            raise UsageError(asked, found, "Leave the plan out")
        if self.priority and self.by in ("oneself", "schedule", "levels"):
            found = "its buckets do not go independently of each other"
            raise UsageError(asked, found, "Leave priority out")


def foreign(scheme: str, options: Mapping[str, object]) -> str:
    """Return the first option that another scheme has and this one has not; empty if none.

    An option with its default counts as not given.
    """
    for name in dict.fromkeys(name for row in SCHEMES.values() for name in row.own):
        given = name in options and options[name] != getattr(Options, name)
        if given and name not in SCHEMES[scheme].own:
            return name
    return ""


_LEAST = {"servers": 1, "staleness": 0, "merge_bytes": 1, "groups": 1, "every": 1}


def _choose(name: str, value: str, known: object) -> None:
    assert isinstance(known, dict)
    if value not in known:
        raise UsageError(f"{name} {value!r}", "there is none", f"Use one of {', '.join(known)}")
