"""`gradred run`: start a program as the ranks of an MPI job, on this host or several."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from gradred import config, horovod, launch
from gradred.cli import elastic, horovod_flags, job_order, programs
from gradred.cli.option_types import duration, positive
from gradred.errors import UsageError
from gradred.launch import foreground, preload


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "gradred run [-np N] [-H host:slots,...] [options] program [arguments...] "
        "[: -np N [-x NAME=VALUE] [--wdir DIR] program [arguments...]]..."
    )
    parser.epilog = (
        "The launcher is that of the MPI which mpi4py loads in this interpreter. A program that "
        "ends in .py runs with this interpreter, and `python` names it. Each `:` begins another "
        "program of the same job, unless `--` precedes the program that it follows. The exit "
        "status is that of the first rank that failed; 128 + N if signal N ended it."
    )
    _configure_place(parser)
    _configure_environment(parser)
    _configure_output(parser)
    _configure_end(parser)
    elastic.configure(parser)
    horovod_flags.configure(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _configure_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_argument_group("where")
    programs.configure(place)
    where = place.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, and the number of ranks of each (default: what Slurm, PBS or LSF granted, "
        "else this host)",
    )
    where.add_argument(
        "--hostfile",
        metavar="FILE",
        help="file that names the hosts, one per line: `h1`, `h1:2` or `h1 slots=2`",
    )
    # horovodrun's spellings.
    hidden = argparse.SUPPRESS
    place.add_argument(
        "--mpi-args", action="append", dest="mpi_option", default=hidden, help=hidden
    )
    # The spellings of both mpiexecs.
    for dest, names in (
        ("hosts", ("--host", "-host", "-hosts")),
        ("hostfile", ("-hostfile", "--machinefile", "-machinefile")),
    ):
        where.add_argument(*names, dest=dest, help=argparse.SUPPRESS)
    place.add_argument(
        "--bind",
        choices=("none", "core", "numa"),
        default="none",
        help="bind each rank to a core or memory node (default: none)",
    )
    place.add_argument(
        "--mpi-option",
        action="append",
        default=[],
        metavar="=OPTION",
        help="option for mpiexec, for example --mpi-option='-iface eth1'; may be repeated",
    )


_SERVES = {
    "horovod": "make `import horovod.torch` find gradred, for programs written for Horovod",
    "torch": "let gradred carry out what programs request from torch.distributed's backends gloo "
    f"and mpi ({config.variable('torch')}=1)",
    "preload": "let gradred carry out the MPI calls of a program that does not know it, in C, C++, "
    "Fortran or Python",
}
"""Options for programs that do not know gradred, with their help."""


def _configure_environment(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("environment (by default all of it goes to every rank)")
    what.add_argument(
        "-x",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        dest="variables",
        help="environment variable for the ranks; may be repeated",
    )
    for serves, about in _SERVES.items():
        what.add_argument(f"--{serves}", action="store_true", help=about)
    what.add_argument(
        "--leaves",
        type=positive,
        metavar="L",
        help='the number of leaves that leaves="job" splits among the ranks; sums that depend on '
        f"the number of ranks are refused ({config.variable('deterministic')}=ranks, unless set)",
    )
    what.add_argument(
        "--env",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="send all variables to other hosts, unencrypted, or only those of -x "
        f"(default: all, unless {config.variable('carry_env')}=0)",
    )


def _with_horovod(variables: dict[str, str]) -> None:
    """Make the ranks find gradred when they import horovod."""
    before = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [horovod.path(), before]))


def _with_torch(variables: dict[str, str]) -> None:
    """Make gradred replace gloo and mpi on the ranks, which PyTorch's entry points load."""
    autoload = "TORCH_DEVICE_BACKEND_AUTOLOAD"
    if (value := variables.get(autoload, os.environ.get(autoload, "1"))) != "1":
        found = f"{autoload} is {value!r}, and so PyTorch would not load gradred"
        raise UsageError("--torch", found, "Unset this variable, or set it to 1")
    variables[config.variable("torch")] = "1"


def _warn_if_kept_out(program: str) -> None:
    """Print a line if a program never loads the library: it runs as without `--preload`."""
    try:
        found = shutil.which(program)
        with open(found or "", "rb") as file:
            reason = preload.why_not(found) if found and file.read(4) == preload.ELF else None
    except OSError:
        return  # for a rank to report
    if reason is not None:
        line = f"gradred run --preload: {reason[0]}. The MPI carries out all its calls"
        print(line, file=sys.stderr, flush=True)


def _configure_output(parser: argparse.ArgumentParser) -> None:
    look = parser.add_argument_group("output")
    look.add_argument(
        "--prefix",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="begin each line with [rank] (default: if several ranks print to a terminal)",
    )
    look.add_argument(
        "--output-filename",
        metavar="DIR",
        dest="folder",
        help="also write the output of each rank to DIR/rank.N.txt on this host",
    )
    look.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the commands of mpiexec and the ranks, and all output of mpiexec",
    )


def _configure_end(parser: argparse.ArgumentParser) -> None:
    end = parser.add_argument_group("end")
    end.add_argument(
        "--grace",
        type=duration(0.0),
        metavar="SECONDS",
        help="after a rank failed: time in which the others have to end by themselves "
        "(default: 5), or, in an elastic job, to continue without it (default: 60)",
    )
    end.add_argument(
        "--timeout",
        type=duration(None),
        metavar="SECONDS",
        help=f"end the job after this time, with status {foreground.TIMED_OUT}",
    )
    end.add_argument(
        "--dry-run",
        action="store_true",
        help="print the commands of mpiexec and the ranks; start nothing",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the job; returns the exit status of the first rank that failed."""
    values = config.load()  # reports a misspelt setting here, once, and not in every rank
    parts = programs.parse(arguments)
    for_all = {} if "PYTHONUNBUFFERED" in os.environ else {"PYTHONUNBUFFERED": "1"}
    if arguments.leaves is not None:
        for_all[config.variable("leaves")] = str(arguments.leaves)
        if config.snapshot()["deterministic"].source == "default":
            for_all[config.variable("deterministic")] = "ranks"
    for_all |= {**horovod_flags.variables(arguments), **_variables(arguments.variables)}
    variables = [for_all | _variables(part.variables) for part in parts]
    for of_program in variables:
        if arguments.horovod:
            _with_horovod(of_program)
        if arguments.torch:
            _with_torch(of_program)
        if arguments.preload:
            preload.add_to(of_program)
    for name in dict.fromkeys(part.words[0] for part in parts if arguments.preload):
        _warn_if_kept_out(name)
    launch.refuse_inside_job("starting a job")
    job = job_order.JobOrder(arguments, parts, variables, values.carry_env)
    if elastic.is_asked(arguments):
        return elastic.run(arguments, job)
    placed, ranks, source = job_order.place(arguments, job.options, job.ranks)
    if arguments.dry_run:
        print(*job.commands(placed, ranks), sep="\n")
        return 0
    return foreground.run(job.order(placed, ranks, source), job.look())


def _variables(texts: Sequence[str]) -> dict[str, str]:
    """Return the variables of -x."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not (equals or name in os.environ):
            found_text = "there is no such variable here"
            raise UsageError(f"-x {text}", found_text, "Write -x NAME=VALUE, or set it")
        found[name] = value if equals else os.environ[name]
    config.check(found)  # reports errors here, once, and not in every rank
    return found
