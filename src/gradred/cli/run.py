"""`gradred run`: start a program as the ranks of an MPI job, on this host or several."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
from collections.abc import Callable

from gradred import _cpu, config, horovod, launch
from gradred.cli import horovod_flags
from gradred.errors import UsageError, explain
from gradred.launch import foreground, hosts, job

# An address that no host has: what leads there leads to any host that is not named.
_ANYWHERE = "192.0.2.1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "gradred run [-np N] [-H host:slots,...] [options] program [arguments...]"
    parser.epilog = (
        "The launcher is that of the MPI which mpi4py loads in this interpreter. A program that "
        "ends in .py runs with this interpreter, and `python` names it. The exit status is that of "
        "the first rank that failed; 128 + N if signal N ended it."
    )
    _configure_place(parser)
    _configure_environment(parser)
    _configure_output(parser)
    _configure_end(parser)
    horovod_flags.configure(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _configure_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_argument_group("where")
    place.add_argument(
        "-np",
        "-n",
        type=_positive,
        metavar="N",
        dest="ranks",
        help="ranks to start (default: one per slot of the hosts; needed where none are given)",
    )
    where = place.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts with the ranks that each can take (default: what Slurm, PBS or LSF granted, "
        "else this host)",
    )
    where.add_argument(
        "--hostfile",
        metavar="FILE",
        help="the same, a line per host: `h1`, `h1:2` or `h1 slots=2`",
    )
    # As horovodrun spells them.
    hidden = argparse.SUPPRESS
    place.add_argument("--num-proc", type=_positive, dest="ranks", default=hidden, help=hidden)
    place.add_argument(
        "--mpi-args", action="append", dest="mpi_option", default=hidden, help=hidden
    )
    # As users of either mpiexec spell them.
    for dest, names in (
        ("hosts", ("--host", "-host", "-hosts")),
        ("hostfile", ("-hostfile", "--machinefile", "-machinefile")),
    ):
        where.add_argument(*names, dest=dest, help=argparse.SUPPRESS)
    place.add_argument(
        "--bind",
        choices=("none", "core", "numa"),
        default="none",
        help="bind each rank to one core or memory node (default: none)",
    )
    place.add_argument(
        "--mpi-option",
        action="append",
        default=[],
        metavar="=OPTION",
        help="pass this on to mpiexec, for example --mpi-option='-iface eth1'; may be repeated",
    )


def _configure_environment(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("environment (by default all of it goes to every rank)")
    what.add_argument(
        "-x",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        dest="variables",
        help="give this variable to the ranks; may be repeated",
    )
    what.add_argument(
        "--horovod",
        action="store_true",
        help="`import horovod.torch` finds gradred: for programs written for Horovod",
    )
    what.add_argument(
        "--env",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="carry all to other hosts, unencrypted, or none but those of -x "
        f"(default: all, unless {config.variable('carry_env')}=0)",
    )


def _with_horovod(variables: dict[str, str]) -> None:
    """Have the ranks find gradred where they import horovod."""
    before = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [horovod.path(), before]))


def _configure_output(parser: argparse.ArgumentParser) -> None:
    look = parser.add_argument_group("output")
    look.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="begin each line with its [rank] (default: if several ranks print to a terminal)",
    )
    look.add_argument(
        "--output-filename",
        metavar="DIR",
        dest="folder",
        help="also keep what each rank prints, in a file DIR/rank.N.txt on this host",
    )
    look.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print what mpiexec and the ranks run, and all that mpiexec says",
    )


def _configure_end(parser: argparse.ArgumentParser) -> None:
    end = parser.add_argument_group("end")
    end.add_argument(
        "--grace",
        type=_duration(0.0),
        default=5.0,
        metavar="SECONDS",
        help="what the other ranks have to end by themselves after one failed (default: 5)",
    )
    end.add_argument(
        "--timeout",
        type=_duration(None),
        metavar="SECONDS",
        help=f"end the job after so long, with status {foreground.TIMED_OUT}",
    )
    end.add_argument(
        "--dry-run", action="store_true", help="print what mpiexec and the ranks would run, and end"
    )


def main(arguments: argparse.Namespace) -> int:
    """Start the job; the first failing rank's exit status."""
    values = config.load()  # a misspelt knob ends here, once, and not in every rank
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise UsageError(
            explain("no program", "there is nothing to start", "Name one after the options")
        )
    variables = {**horovod_flags.variables(arguments), **_variables(arguments.variables)}
    if arguments.horovod:
        _with_horovod(variables)
    launch.refuse_inside_job("starting a job")
    options = [word for text in arguments.mpi_option for word in shlex.split(text)]
    placed, ranks, source = _place(arguments, options)
    mpi = launch.find_mpi()
    environment = launch.job_environment(mpi, arguments.bind)
    program = launch.program_command(program, environment["PATH"])
    launcher = launch.launcher_command(
        mpi, ranks, hosts=placed, options=options, binding=arguments.bind
    )
    launcher += launch.proxy_command(mpi.family)
    commands = [launch.quoted(launcher), f"each rank: {launch.quoted(program)}"]
    if arguments.dry_run:
        print(*commands, sep="\n")
        return 0
    if arguments.verbose:
        for line in (f"{mpi}, {ranks} ranks on {source}", *commands):
            print(f"gradred run: {line}", file=sys.stderr, flush=True)
    remote = [_ANYWHERE] if launch.has_placement(options) else [one.name for one in placed]
    for_mpiexec, hidden = (environment, {}) if remote else launch.without_allocation(environment)
    carry = values.carry_env if arguments.env is None else arguments.env
    order = job.Order(
        launcher=launcher,
        program=program,
        ranks=ranks,
        environment=for_mpiexec,
        carried=environment if carry else {},
        set={**_meeting_place(placed), **hidden, **variables},
        cores=_cpu.cores(),
        remote=remote,
        stdin=foreground.has_input(),
        bound=arguments.bind != "none",
        grace=arguments.grace,
    )
    look = foreground.Look(
        prefix=arguments.prefix,
        folder=arguments.folder,
        timeout=arguments.timeout,
        verbose=arguments.verbose,
    )
    return foreground.run(order, look)


def _meeting_place(placed: list[hosts.Host]) -> dict[str, str]:
    """Where torch.distributed's ranks find each other, unless the environment says it."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = placed[0].name if placed else "127.0.0.1"
    chosen = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def _place(arguments: argparse.Namespace, options: list[str]) -> tuple[list[hosts.Host], int, str]:
    """The hosts with their ranks (none where all run here), their number, where that is from."""
    found: hosts.Hosts | None = None
    if arguments.hosts is not None:
        found = hosts.parse_list(arguments.hosts)
    elif arguments.hostfile is not None:
        found = hosts.parse_file(arguments.hostfile)
    elif not launch.has_placement(options):
        found = hosts.allocation(os.environ)
    if found is None:
        if arguments.ranks is None:
            raise UsageError(
                explain("starting a program", "nobody has said how many ranks", "Add -np N, or -H")
            )
        return [], arguments.ranks, "this host"
    placed = hosts.place(found, arguments.ranks)
    ranks = sum(host.slots or 0 for host in placed)
    here = all(hosts.is_this(host.name) for host in placed)
    return [] if here else placed, ranks, found.source


def _variables(texts: list[str]) -> dict[str, str]:
    """What -x names, and what lets Python's output appear while it is made."""
    found = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not (equals or name in os.environ):
            found_text = "there is no such variable here"
            raise UsageError(explain(f"-x {text}", found_text, "Write -x NAME=VALUE, or set it"))
        found[name] = value if equals else os.environ[name]
    config.check(found)  # here, once, and not in every rank
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, which is 1 or more")
    return int(text)


def _duration(zero: float | None) -> Callable[[str], float]:
    """Parses a duration; 0 only where it means something."""

    def parse(text: str) -> float:
        if zero is not None and text == "0":
            return zero
        try:
            return config.parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return parse
