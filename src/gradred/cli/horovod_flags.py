"""horovodrun's flags, which `gradred run` accepts as well, and their meaning here.

All flags are in one table. A flag sets a variable that `gradred.torch` reads, or has no effect; one
warning names the flags without effect.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradred.errors import UsageError


@dataclass(frozen=True)
class Flag:
    """One flag, with its spellings."""

    names: tuple[str, ...]
    values: int = 1  # the number of values that follow it
    variable: str = ""  # the variable that it sets for the ranks
    value: Callable[[str], str] = str  # makes the variable's value from the flag's, or from ""


def _mebibytes(text: str) -> str:
    return str(int(float(text) * (1 << 20)))


def _ignored(values: int, *names: str) -> list[Flag]:
    return [Flag((name,), values) for name in names]


FLAGS = (
    Flag(("--fusion-threshold-mb",), 1, "HOROVOD_FUSION_THRESHOLD", _mebibytes),
    Flag(("--timeline-filename",), 1, "HOROVOD_TIMELINE"),
    Flag(("--timeline-mark-cycles",), 0, "HOROVOD_TIMELINE_MARK_CYCLES", lambda _: "1"),
    Flag(("--no-timeline-mark-cycles",), 0, "HOROVOD_TIMELINE_MARK_CYCLES", lambda _: "0"),
    Flag(("--no-stall-check",), 0, "HOROVOD_STALL_CHECK_DISABLE", lambda _: "1"),
    Flag(("--stall-check",), 0, "HOROVOD_STALL_CHECK_DISABLE", lambda _: "0"),
    Flag(("--stall-check-warning-time-seconds",), 1, "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    Flag(("--stall-check-shutdown-time-seconds",), 1, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    # Flags for features that do not exist here, or that need no setting.
    *_ignored(1, "--cycle-time-ms", "--cache-capacity", "--log-level", "--start-timeout"),
    *_ignored(1, "--network-interfaces", "--network-interface", "--nics", "--num-nccl-streams"),
    *_ignored(1, "--ssh-port", "-p", "--ssh-identity-file", "-i", "--thread-affinity"),
    *_ignored(1, "--binding-args", "--gloo-timeout-seconds", "--autotune-log-file"),
    *_ignored(1, "--autotune-warmup-samples", "--autotune-steps-per-sample"),
    *_ignored(1, "--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"),
    *_ignored(0, "--disable-cache", "--autotune", "--no-autotune", "--tcp", "--mpi", "--gloo"),
    *_ignored(0, "--hierarchical-allreduce", "--no-hierarchical-allreduce"),
    *_ignored(0, "--hierarchical-allgather", "--no-hierarchical-allgather"),
    *_ignored(0, "--torus-allreduce", "--no-torus-allreduce"),
    *_ignored(0, "--mpi-threads-disable", "--no-mpi-threads-disable", "--log-with-timestamp"),
    *_ignored(0, "--log-without-timestamp", "--log-hide-timestamp", "--no-log-hide-timestamp"),
    *_ignored(0, "--prefix-output-with-timestamp", "-prefix-timestamp"),
    Flag(("--blacklist-cooldown-range",), 2),  # a host that failed twice gets no more ranks
    *_ignored(1, "--config-file"),  # all its settings exist as flags
    *_ignored(0, "--jsrun"),  # under LSF the hosts are the granted ones in any case
)


class _Seen(argparse.Action):
    """Records a flag with its value, in the order of the command line."""

    def __init__(self, *, flag: Flag, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self.flag = flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        text = " ".join(map(str, values)) if isinstance(values, list) else ""
        seen = [*namespace.horovod_flags, (self.flag, option_string, text)]
        namespace.horovod_flags = seen


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; the help does not list them."""
    parser.set_defaults(horovod_flags=[])
    for flag in FLAGS:
        parser.add_argument(
            *flag.names,
            action=_Seen,
            flag=flag,
            nargs=flag.values,
            dest="horovod_flags",
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def variables(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Return the variables that the given flags set for the ranks. Warns of flags without effect.

    Raises:
        UsageError: a flag's value cannot be read.
    """
    found: dict[str, str] = {}
    ignored: list[str] = []
    for flag, name, text in arguments.horovod_flags:
        if not flag.variable:
            ignored.append(name)
            continue
        try:
            found[flag.variable] = flag.value(text)
        except ValueError:
            raise UsageError(f"{name} {text}", "that is not a number", "Pass one") from None
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        print(f"gradred run: warning: without effect here: {names}", file=sys.stderr, flush=True)
    return found
