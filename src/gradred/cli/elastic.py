"""The options of elastic jobs; `gradred.launch.elastic` runs the jobs."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Sequence

from gradred import launch
from gradred.cli.job_order import JobOrder, place
from gradred.cli.option_types import duration, positive
from gradred.errors import UsageError
from gradred.launch import elastic, foreground, hostfile, hosts, state_files
from gradred.launch.discovery import Discovery, DiscoveryScript, FixedHosts
from gradred.launch.job import Order

_WAIT_LIMIT = 600.0  # seconds


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    what = parser.add_argument_group(
        "elastic jobs (any of these options makes a job elastic; see gradred.torch.elastic)"
    )
    hidden = argparse.SUPPRESS
    what.add_argument(
        "--min-np",
        type=positive,
        metavar="N",
        dest="least",
        help="minimum number of ranks, after others were lost (default: -np)",
    )
    what.add_argument("--min-num-proc", type=positive, dest="least", default=hidden, help=hidden)
    what.add_argument(
        "--max-np",
        type=positive,
        metavar="N",
        dest="most",
        help="maximum number of ranks (default: one per slot)",
    )
    what.add_argument("--max-num-proc", type=positive, dest="most", default=hidden, help=hidden)
    what.add_argument(
        "--host-discovery-script",
        metavar="FILE",
        dest="script",
        help="executable that prints the available hosts, one per line: `h1:2`",
    )
    what.add_argument(
        "--slots-per-host",
        type=positive,
        metavar="N",
        help="number of ranks of a host for which the script prints none (default: 1)",
    )
    what.add_argument(
        "--elastic-dir",
        metavar="DIR",
        help="folder for the states with which the job starts again; all hosts share it (default "
        "on one host: a temporary folder)",
    )
    what.add_argument(
        "--elastic-timeout",
        type=duration(None),
        metavar="SECONDS",
        help="time limit of waiting for hosts (default: 600)",
    )
    what.add_argument(
        "--reset-limit", type=positive, metavar="N", help="maximum number of restarts"
    )


def is_asked(arguments: argparse.Namespace) -> bool:
    """Return whether an option makes the job elastic."""
    given = (
        *(arguments.least, arguments.most, arguments.script, arguments.slots_per_host),
        *(arguments.elastic_dir, arguments.elastic_timeout, arguments.reset_limit),
    )
    return any(one is not None for one in given)


def run(arguments: argparse.Namespace, job: JobOrder) -> int:
    """Run the job to its end; returns the status to exit with."""
    if job.several:
        found = "there are several, and which ranks would leave is not known"
        raise UsageError("the programs of an elastic job", found, "Name one program")
    if launch.has_placement(job.options):
        remedy = "Name the hosts with -H, --hostfile or --host-discovery-script"
        raise UsageError("an elastic job", "--mpi-option places the ranks", remedy)
    discovery, start, source = _elastic_hosts(arguments, job.options)
    here = isinstance(discovery, FixedHosts) and all(
        hosts.is_this(host.name) for host in discovery.first()
    )
    if arguments.elastic_dir is None and not here:
        found = "its ranks may be on several hosts, where they have to find the state"
        raise UsageError("an elastic job", found, "Add --elastic-dir DIR, which all hosts share")
    least = min(start, arguments.most or start) if arguments.least is None else arguments.least
    if arguments.most is not None and least > arguments.most:
        found = f"--min-np {least} is more than --max-np {arguments.most}"
        raise UsageError("an elastic job", found, "Ask for fewer")
    if arguments.ranks is not None and least > arguments.ranks:
        found = f"-np {arguments.ranks} is less than --min-np {least}"
        raise UsageError("an elastic job", found, "Start with as many at least")
    limits = elastic.Limits(
        start=start if arguments.most is None else min(start, arguments.most),
        least=least,
        most=arguments.most,
        resets=arguments.reset_limit,
        wait_limit=_WAIT_LIMIT if arguments.elastic_timeout is None else arguments.elastic_timeout,
    )
    with contextlib.ExitStack() as until_the_end:
        folder = arguments.elastic_dir
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="gradred-elastic-")
            folder = until_the_end.enter_context(made)
        folder = os.path.abspath(folder)
        state_files.require(folder)
        variables = {"HOROVOD_ELASTIC": "1", state_files.VARIABLE: f"{least} {folder}"}

        def make(placed: Sequence[hosts.Host], since: float) -> tuple[Order, foreground.Look]:
            ranks = sum(host.slots or 0 for host in placed)
            all_here = all(hosts.is_this(host.name) for host in placed)
            known = [] if all_here else placed
            order = job.order(known, ranks, source, variables, state_files.AGAIN)
            return order, job.look(since)

        if arguments.dry_run:
            placed = elastic.plan(limits, discovery.first())
            ranks = sum(host.slots or 0 for host in placed)
            print(*job.commands([] if here else placed, ranks), sep="\n")
            return 0
        return elastic.run(limits, discovery, folder, make)


def _elastic_hosts(arguments: argparse.Namespace, options: list[str]) -> tuple[Discovery, int, str]:
    """Return the source of hosts, the ranks of the first start, and the source in words."""
    if arguments.script is not None:
        if arguments.hosts is not None or arguments.hostfile is not None:
            remedy = "Leave one of them out"
            raise UsageError("--host-discovery-script", "hosts are given as well", remedy)
        if arguments.ranks is None and arguments.least is None:
            remedy = "Add -np N, or --min-np N"
            raise UsageError("an elastic job", "the number of ranks is missing", remedy)
        script = DiscoveryScript(arguments.script, arguments.slots_per_host or 1)
        return script, arguments.ranks or arguments.least, f"hosts of {arguments.script}"
    if arguments.slots_per_host is not None:
        found = "there is no --host-discovery-script, whose hosts it counts"
        raise UsageError("--slots-per-host", found, "Say -H HOST:SLOTS")
    placed, ranks, source = place(arguments, options, arguments.ranks)
    usable = placed or [hosts.Host("localhost", ranks)]
    if arguments.hosts is not None or arguments.hostfile is not None:
        listed = hosts.parse_list(arguments.hosts) if arguments.hosts else None
        listed = listed or hostfile.parse_file(arguments.hostfile)
        if all(host.slots is not None for host in listed.hosts):
            usable = list(listed.hosts)  # includes the slots that the first start leaves free
    return FixedHosts(usable), ranks, source
