"""The programs that `gradred run` starts, and their hosts."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from gradred import launch
from gradred._util import cpu
from gradred._util.text import ranks_text
from gradred.cli.programs import Part
from gradred.errors import UsageError
from gradred.launch import allocation, foreground, hostfile, hosts
from gradred.launch.job import Order, Program

# An address that no host has; its route is that to any host that is not named.
_ANYWHERE = "192.0.2.1"

# The grace period without and with elastic: ranks that compute do not notice a failure soon.
_GRACE = {False: 5.0, True: 60.0}


class JobOrder:
    """The parts of a start that do not depend on the hosts."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        parts: Sequence[Part],
        variables: Sequence[Mapping[str, str]],
        carry: bool,
    ) -> None:
        self._arguments = arguments
        self._parts = parts
        self._variables = variables
        self._carry = carry if arguments.env is None else arguments.env
        self._mpi = launch.find_mpi()
        self._environment = launch.job_environment(self._mpi, arguments.bind)
        path = self._environment["PATH"]
        self._commands = [
            launch.program_command(part.words, path, part.folder or "") for part in parts
        ]
        texts = (shlex.split(text) for text in arguments.mpi_option)
        self.options = [word for words in texts for word in words]

    @property
    def several(self) -> bool:
        """Whether the job has more than one program."""
        return len(self._parts) > 1

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None if the hosts decide, with a single program."""
        asked = [part.ranks for part in self._parts]
        return None if None in asked else sum(count or 0 for count in asked)

    def _counts(self, ranks: int) -> list[int]:
        """Return the ranks of each program."""
        return [part.ranks or ranks for part in self._parts] if self.several else [ranks]

    def _launcher(self, placed: Sequence[hosts.Host], ranks: int) -> list[str]:
        return launch.job_command(
            self._mpi,
            self._counts(ranks),
            hosts=list(placed),
            options=self.options,
            binding=self._arguments.bind,
        )

    def commands(self, placed: Sequence[hosts.Host], ranks: int) -> list[str]:
        """Return the commands of mpiexec and of each rank."""
        lines = [shlex.join(self._launcher(placed, ranks))]
        begin = 0
        for count, command in zip(self._counts(ranks), self._commands, strict=True):
            those = ranks_text(range(begin, begin + count)) if self.several else "each rank"
            lines.append(f"{those}: {shlex.join(command)}")
            begin += count
        return lines

    def _programs(self, ranks: int, variables: Mapping[str, str]) -> list[Program]:
        folders = [os.path.abspath(part.folder or "") for part in self._parts]
        columns = (self._commands, self._counts(ranks), self._variables, folders, self._parts)
        return [
            Program(command, count, {**own, **variables}, folder, str(part))
            for command, count, own, folder, part in zip(*columns, strict=True)
        ]

    def order(
        self,
        placed: Sequence[hosts.Host],
        ranks: int,
        source: str,
        variables: Mapping[str, str] | None = None,
        again: int | None = None,
    ) -> Order:
        """Make the order to start on these hosts; if empty, on this host."""
        arguments, environment = self._arguments, self._environment
        if arguments.verbose:
            for line in (f"{self._mpi}, {ranks} ranks on {source}", *self.commands(placed, ranks)):
                print(f"gradred run: {line}", file=sys.stderr, flush=True)
        anywhere = launch.has_placement(self.options)
        remote = [_ANYWHERE] if anywhere else [one.name for one in placed]
        for_mpiexec, hidden = (
            (environment, {}) if remote else launch.without_allocation(environment)
        )
        meeting = launch.meeting_place(*(one.name for one in placed[:1]))
        return Order(
            launcher=self._launcher(placed, ranks),
            programs=self._programs(ranks, variables or {}),
            environment=for_mpiexec,
            carried=environment if self._carry else {},
            set={**meeting, **hidden},
            cores=cpu.cores(),
            remote=remote,
            stdin=foreground.has_input(),
            bound=arguments.bind != "none",
            grace=_GRACE[again is not None] if arguments.grace is None else arguments.grace,
            again=again,
        )

    def look(self, since: float = 0.0) -> foreground.Look:
        """Return the look of a start, so many seconds after the first start."""
        arguments = self._arguments
        limit = arguments.timeout
        return foreground.Look(
            prefix=arguments.prefix,
            folder=arguments.folder,
            timeout=None if limit is None else max(0.0, limit - since),
            verbose=arguments.verbose,
            goes_on=since > 0,
        )


def place(
    arguments: argparse.Namespace, options: list[str], ranks: int | None
) -> tuple[list[hosts.Host], int, str]:
    """Return the hosts with their ranks (empty if all are here), the ranks, and the source.

    `ranks` is None for one rank per slot. `options` are those of --mpi-option.
    """
    found: hosts.Hosts | None = None
    if arguments.hosts is not None:
        found = hosts.parse_list(arguments.hosts)
    elif arguments.hostfile is not None:
        found = hostfile.parse_file(arguments.hostfile)
    elif not launch.has_placement(options):
        found = allocation.granted(os.environ)
    if found is None:
        if ranks is None:
            raise UsageError(
                "starting a program", "the number of ranks is missing", "Add -np N, or -H"
            )
        return [], ranks, "this host"
    placed = hosts.place(found, ranks)
    ranks = sum(host.slots or 0 for host in placed)
    here = all(hosts.is_this(host.name) for host in placed)
    return [] if here else placed, ranks, found.source
