"""`gradred doctor`: print what works on this host, what does not, and the remedies."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from typing import NoReturn

from gradred import __version__, config, doctor, launch
from gradred.cli.option_types import duration
from gradred.errors import UsageError
from gradred.launch import output

SCHEMA = "gradred-doctor/1"
_HOST = re.compile(r"(?!-)[\w.:@%\[\]-]+")
_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Takes two or three seconds on an idle host. The exit status is 0 if all is well or there "
        "are only warnings, 1 if a check failed, 2 for a usage error."
    )
    parser.add_argument(
        "-H",
        "--hosts",
        type=_hosts,
        default=[],
        metavar="A,B",
        help="run a small job across these hosts (host or host:slots), and check that ssh reaches "
        "them (default: check only ssh, for the hosts that Slurm, PBS or LSF granted)",
    )
    parser.add_argument(
        "--timeout",
        type=duration(None),
        default=doctor.SECONDS,
        metavar="SECONDS",
        help=f"time limit of all checks (default: {doctor.SECONDS:g}); a check without a result by "
        "then fails, or warns if the machine is busy",
    )
    parser.add_argument(
        "--preload",
        metavar="PROGRAM",
        help="check only whether gradred run --preload would have the calls of this program, which "
        "is not run",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Run the checks, and print a line per check."""
    config.load()
    if arguments.preload is not None:
        found = doctor.examine_program(arguments.preload)
        return _report(found, found[0].seconds, as_json=arguments.json)
    launch.refuse_inside_job("gradred doctor")
    ending = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, _leave) for number in ending]  # the job must end as well
    begin = time.monotonic()
    try:
        results = doctor.examine(arguments.hosts, timeout=arguments.timeout)
    finally:
        for number, handler in zip(ending, before, strict=True):
            signal.signal(number, handler)
    seconds = time.monotonic() - begin
    return _report(results, seconds, as_json=arguments.json)


def _report(results: list[doctor.Result], seconds: float, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(_as_json(results, seconds), indent=2))
    else:
        _print(results, seconds)
    return 1 if doctor.worst(results) == "fail" else 0


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _print(results: list[doctor.Result], seconds: float) -> None:
    width = max(len(result.name) for result in results)
    for result in results:
        finding = result.finding
        print(f"{_status(finding.status)}  {result.name:{width}}  {finding.found}")
        if finding.fix:
            print(f"{'':6}{'':{width}}  fix: {finding.fix}")
    count = dict.fromkeys(_COLOURS, 0)
    for result in results:
        count[result.finding.status] += 1
    summary = ", ".join(f"{number} {status}" for status, number in count.items())
    print(f"gradred {__version__}: {summary} ({seconds:.1f} s)")


def _status(status: str) -> str:
    text = f"{status:4}"
    if not (sys.stdout.isatty() and output.colours_wanted()):
        return text
    return f"\033[{_COLOURS[status]}m{text}\033[0m"


def _as_json(results: list[doctor.Result], seconds: float) -> dict[str, object]:
    checks = [
        {"name": one.name, **vars(one.finding), "seconds": round(one.seconds, 3)} for one in results
    ]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "status": doctor.worst(results),
        "seconds": round(seconds, 3),
        "checks": checks,
    }


def _hosts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _HOST.fullmatch(name):
            raise UsageError(f"--hosts {text}", f"{name!r} is not a host", "Write a,b,c")
    return names
